//! Takeovers one after the other on one mount, under programs that go on all the time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::program::Program;
use super::{KILL, UPGRADE, kill_server, make_dirty, upgrade};
use crate::fuse::{Mounted, Server};
use crate::harness::{Options, Series};

pub(super) const ROW: &str = "256 MiB, 100 in a row under load";
/// Upper bound of the pause of an upgrade.
pub(super) const PAUSE_MS: f64 = 1000.0;

const CACHE_BYTES: u64 = 256 << 20;
const TAKEOVERS: u32 = 100;
const QUICK_TAKEOVERS: u32 = 20;
const PROGRAMS: usize = 3;
const STREAM_BYTES: u64 = 32 << 20;

/// Adds the pauses to `series`: each is that of the program that waited longest.
pub(super) fn measure(options: &Options, kept: &Server, home: &Path, series: &mut Series) -> Result<()> {
    let mounted = Mounted::new(kept, home, CACHE_BYTES)?;
    let folders = (0..PROGRAMS).map(|nth| mounted.path().join(nth.to_string())).collect::<Vec<PathBuf>>();
    let programs = folders.iter().map(|folder| {
        std::fs::create_dir(folder).context("cannot create a folder")?;
        Program::start(folder)
    });
    let programs = programs.collect::<Result<Vec<_>>>()?;
    let stop = Arc::new(AtomicBool::new(false));
    let (place, stops) = (mounted.path().to_owned(), Arc::clone(&stop));
    let stream = thread::spawn(move || -> Result<()> {
        while !stops.load(Ordering::Relaxed) {
            make_dirty(&place, STREAM_BYTES)?;
            File::open(place.join("dirty"))?.sync_all().context("cannot sync")?;
        }
        Ok(())
    });
    for _ in 0..options.pick(TAKEOVERS, QUICK_TAKEOVERS) {
        for turn in [KILL, UPGRADE] {
            match turn {
                KILL => kill_server(mounted.pid())?,
                _ => upgrade(&mounted, kept.program())?,
            }
            let mut longest = Duration::ZERO;
            for program in &programs {
                longest = longest.max(program.pause()?);
            }
            series.add(ROW, turn, longest.as_secs_f64() * 1e3);
        }
    }
    programs.into_iter().try_for_each(Program::end)?;
    stop.store(true, Ordering::Relaxed);
    stream.join().map_err(|_| anyhow!("the program that writes most has panicked"))??;
    mounted.umount().context("the mount of many takeovers").map(drop)
}

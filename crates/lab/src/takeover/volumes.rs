//! A daemon with many volumes, whose process is killed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::program::{self, Program};
use super::{KILL, REMOUNT, kill_server, make_dirty};
use crate::daemon::{Daemon, Volume};
use crate::fuse::slackwater;
use crate::harness::{Options, Series, rounds};
use crate::scratch::Scratch;

pub(super) const ROW: &str = "a daemon with 200 volumes, 1 MiB of each dirty";
/// Upper bound of the pause.
pub(super) const PAUSE_MS: f64 = 2000.0;

const VOLUMES: usize = 200;
const DIRTY_BYTES: u64 = 1 << 20;
/// Dirty data stays dirty until the kill.
const CONFIG: &str = "cache = \"1GiB\"\ndirty-ratio = 75\ndirty-expire = \"1h\"\n";

/// Adds the pauses to `series`.
pub(super) fn measure(options: &Options, home: &Scratch, series: &mut Series) -> Result<()> {
    let program = slackwater()?;
    let folder = home.subdirectory("volumes")?;
    let volumes = (0..2 * VOLUMES).map(|nth| Volume::make(&folder, format!("v{nth}"))).collect::<Result<Vec<_>>>()?;
    let (of_kept, of_other) = volumes.split_at(VOLUMES);
    let kept = Daemon::start(&program, &config(of_kept), &["--keep"], "TERM")?;
    rounds::run(ROW, options.rounds(), &[KILL, REMOUNT], |_, turn| {
        let pause = match *turn {
            KILL => killed(&kept, of_kept)?,
            _ => remounted(&program, of_other)?,
        };
        series.add(ROW, turn, pause.as_secs_f64() * 1e3);
        Ok(())
    })?;
    kept.end().context("the kept daemon").map(drop)
}

fn config(volumes: &[Volume]) -> String {
    volumes.iter().map(Volume::table).fold(CONFIG.to_owned(), |config, table| config + &table)
}

fn prepare(volumes: &[Volume]) -> Result<&Path> {
    volumes.iter().try_for_each(|volume| make_dirty(&volume.mountpoint, DIRTY_BYTES))?;
    Ok(&volumes.last().context("there are no volumes")?.mountpoint)
}

/// The longest call around a kill.
fn killed(daemon: &Daemon, volumes: &[Volume]) -> Result<Duration> {
    let program = Program::start(prepare(volumes)?)?;
    kill_server(daemon.pid())?;
    program.only_pause()
}

/// From the end of a daemon until a program can write again.
fn remounted(program: &Path, volumes: &[Volume]) -> Result<Duration> {
    let config = config(volumes);
    let daemon = Daemon::start(program, &config, &[], "TERM")?;
    let last = prepare(volumes)?;
    program::prepare(last)?;
    let start = Instant::now();
    daemon.end()?;
    let again = Daemon::start(program, &config, &[], "TERM")?;
    program::call(last)?;
    let pause = start.elapsed();
    again.end()?;
    Ok(pause)
}

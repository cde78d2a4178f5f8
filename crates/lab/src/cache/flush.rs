//! Flushing a file that is wholly in the cache, beside a plain loop of direct writes of as many bytes.
//!
//! Both end with the data durable. Each is measured on a new file, whose blocks are allocated on the way,
//! and then on the same file again.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{OFlags, fdatasync, ftruncate, syncfs};
use rustix::io::{ReadWriteFlags, pwritev2};
use slackwater::Tunables;

use super::pattern::{Order, PAGE, Pattern};
use super::subject::{Cached, Operation, Sharing, Subject, Writer};
use crate::options::Options;
use crate::quantity::mb_per_s;
use crate::series::Series;
use crate::{lanes, rounds, scratch};

const BYTES: u64 = 512 << 20;
const UNIT: usize = 1 << 20;
/// The cache holds twice what is flushed: the engine is not short of frames.
const ARENA_BYTES: u64 = 1 << 30;

pub(crate) const ENGINE: &str = "engine";
pub(crate) const DIRECT_1: &str = "direct, 1 thread";
pub(crate) const DIRECT_4: &str = "direct, 4 threads";
pub(crate) const NEW: &str = "flush 512 MiB, new file";
const AGAIN: &str = "flush 512 MiB, overwritten";

/// What is measured: in a quick run new files alone.
pub(crate) fn rows(options: &Options) -> &'static [&'static str] {
    options.pick(&[NEW, AGAIN], &[NEW])
}

/// Nothing is flushed before it is asked for.
fn tunables() -> Tunables {
    Tunables {
        dirty_writeback: Duration::ZERO,
        dirty_background_percent: 99,
        dirty_percent: 100,
        volume_share_percent: 90,
        ..Tunables::default()
    }
}

/// Measures MB/s.
pub(crate) fn measure(options: &Options, dir: &Path, series: &mut Series) -> Result<()> {
    let mut cached = Cached::new(dir, ARENA_BYTES, tunables(), 1, BYTES, Writer::Anybody)?;
    let mut direct = open_direct(dir)?;
    let mut source = vec![0; BYTES as usize + PAGE];
    let rows = rows(options);
    rounds::run("flush", options.rounds(), 3, |_, turn| match turn {
        0 => {
            cached.empty()?;
            quieten(&direct)?;
            for row in rows {
                series.add(row, ENGINE, flush(&mut cached)?);
            }
            Ok(())
        }
        _ => {
            let (threads, name) = if turn == 1 { (1, DIRECT_1) } else { (4, DIRECT_4) };
            ftruncate(&direct, 0).context("ftruncate")?;
            quieten(&direct)?;
            for row in rows {
                series.add(row, name, write_directly(&mut direct, &mut source, threads)?);
            }
            Ok(())
        }
    })
}

/// Writes back whatever else is on its way on the file system: both sides wait for its journal.
fn quieten(file: &File) -> Result<()> {
    syncfs(file).context("syncfs")
}

/// Fills the cache and flushes it; only the flush is timed.
fn flush(cached: &mut Cached) -> Result<f64> {
    let pages = BYTES / PAGE as u64;
    for mut lane in cached.lanes(1, Sharing::Own) {
        lane.batch(Operation::Write, &mut Pattern::new(Order::Sequential, 0, pages, 0), pages)?;
    }
    let dirty = cached.volume().status().dirty_bytes;
    ensure!(dirty == BYTES, "{dirty} bytes are dirty before the flush, not all {BYTES}");
    let start = Instant::now();
    cached.settle()?;
    Ok(mb_per_s(BYTES, start.elapsed()))
}

fn open_direct(dir: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).custom_flags(OFlags::DIRECT.bits() as i32);
    scratch::nameless(dir, &options).context("the file system of --dir takes no direct I/O")
}

/// The plain loop: each thread takes every `threads`th unit. Like the cache, it writes bytes that have just
/// been put into as much memory as the file is large: a single buffer, written again and again, would come
/// out of the processor's cache.
fn write_directly(file: &mut File, source: &mut [u8], threads: u64) -> Result<f64> {
    let file = &*file;
    source.fill(threads as u8);
    let source = &*source;
    let skip = source.as_ptr().align_offset(PAGE);
    let start = Instant::now();
    lanes::run((0..threads).collect(), |first: &mut u64| {
        for number in (*first..BYTES / UNIT as u64).step_by(threads as usize) {
            let unit = &source[skip + number as usize * UNIT..][..UNIT];
            let slices = [std::io::IoSlice::new(unit)];
            let written = pwritev2(file, &slices, number * UNIT as u64, ReadWriteFlags::empty()).context("pwritev2")?;
            ensure!(written == UNIT, "a short write of {written} bytes");
        }
        Ok(())
    })?;
    fdatasync(file).context("fdatasync")?;
    Ok(mb_per_s(BYTES, start.elapsed()))
}

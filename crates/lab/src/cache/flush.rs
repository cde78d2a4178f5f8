//! Flushing a file that is entirely in the cache, beside a plain loop of direct writes of as many bytes.
//!
//! Both end with the data durable. Each is measured on a new file, whose blocks are allocated during the writes, and then on
//! the same file again.

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
use crate::harness::{Options, Series, mb_per_s, rounds, threads};
use crate::scratch;

const BYTES: u64 = 512 << 20;
const UNIT: usize = 1 << 20;
/// Twice what is flushed, so that the engine is not short of frames.
const ARENA_BYTES: u64 = 1 << 30;

pub(crate) const ENGINE: &str = "engine";
pub(crate) const DIRECT_1: &str = "direct, 1 thread";
pub(crate) const DIRECT_4: &str = "direct, 4 threads";
pub(crate) const NEW: &str = "flush 512 MiB, new file";
const AGAIN: &str = "flush 512 MiB, overwritten";

/// The rows; a quick run only has new files.
pub(crate) fn rows(options: &Options) -> &'static [&'static str] {
    options.pick(&[NEW, AGAIN], &[NEW])
}

/// Nothing is written back before the flush.
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
    let mut cached = Cached::new(dir, ARENA_BYTES, tunables(), 1, BYTES, Writer::Root)?;
    let mut direct = open_direct(dir)?;
    let mut source = vec![0; BYTES as usize + PAGE];
    let rows = rows(options);
    rounds::run("flush", options.rounds(), &[(ENGINE, 0), (DIRECT_1, 1), (DIRECT_4, 4)], |_, (name, threads)| {
        if *name == ENGINE {
            cached.empty()?
        } else {
            ftruncate(&direct, 0).context("ftruncate")?
        }
        // Both sides wait for the journal of the file system, so nothing else may be on its way there.
        syncfs(&direct).context("syncfs")?;
        for row in rows {
            let rate =
                if *name == ENGINE { flush(&mut cached)? } else { write_directly(&mut direct, &mut source, *threads)? };
            series.add(row, name, rate);
        }
        Ok(())
    })
}

/// Fills the cache and flushes it; only the flush is timed.
fn flush(cached: &mut Cached) -> Result<f64> {
    let pages = BYTES / PAGE as u64;
    for mut lane in cached.lanes(1, Sharing::Own) {
        lane.batch(Operation::Write, &mut Pattern::new(Order::Sequential, 0, pages, 0), pages)?;
    }
    let dirty = cached.volume().status().dirty_bytes;
    ensure!(dirty == BYTES, "only {dirty} of {BYTES} bytes are dirty before the flush");
    let start = Instant::now();
    cached.settle()?;
    Ok(mb_per_s(BYTES, start.elapsed()))
}

fn open_direct(dir: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).custom_flags(OFlags::DIRECT.bits() as i32);
    scratch::nameless(dir, &options).context("the file system of --dir does not support direct I/O")
}

/// The plain loop: each thread writes every `count`th unit. As with the cache, the bytes have just been stored in as much
/// memory as the file is large. A single buffer, written again and again, would come out of the processor's cache.
fn write_directly(file: &mut File, source: &mut [u8], count: u64) -> Result<f64> {
    let file = &*file;
    source.fill(count as u8);
    let source = &*source;
    let skip = source.as_ptr().align_offset(PAGE);
    let start = Instant::now();
    threads::run_lanes((0..count).collect(), |first: &mut u64| {
        for number in (*first..BYTES / UNIT as u64).step_by(count as usize) {
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

//! A run: all threads of a job start at once, and each write is timed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::sites::{Block, Site, open};
use super::{Cell, Job};
use crate::harness::threads::{beside, join};
use crate::harness::{Series, mb_per_s, time_us};
use crate::interrupt;

/// Time between two looks at what is dirty.
const PAUSE: Duration = Duration::from_millis(1);

/// The figures of a run. The latency has a sample for each write.
pub(super) const RATE: &str = "MB/s";
pub(super) const LATENCY: &str = "us of a write";
pub(super) const PEAK: &str = "most dirty, MB";
/// The growth once all is clean.
pub(super) const GROWTH: &str = "growth of the cache, MB";
pub(super) const KICKS: &str = "kicks per pass of the flusher";
/// The rates of the first file and of the others.
pub(super) const FIRST: &str = "MB/s of the first file";
pub(super) const OTHER: &str = "MB/s of the others";
/// The rate of the slower of two competing writers by that of the faster.
pub(super) const FAIRNESS: &str = "slower by faster";

/// Runs a job once. Adds nothing if the file system does not support the subject.
pub(super) fn run(cell: Cell, scale_bytes: u64, folder: &Path, seed: u64, series: &mut Series) -> Result<()> {
    let Some(site) = open(cell, scale_bytes, folder)? else { return Ok(()) };
    let (site, shape) = (&*site, cell.shape(scale_bytes));
    let blocks = shape.file_bytes / shape.block_bytes as u64;
    let order = cell.job.order(blocks, seed);
    let next: Vec<_> = (0..shape.files).map(|_| AtomicUsize::new(0)).collect();
    let written: Vec<_> = (0..shape.files).map(|_| AtomicU64::new(0)).collect();
    let is_over = AtomicBool::new(false);
    let work = |file: usize| -> Result<Vec<f64>> {
        let block = Block::new(shape.block_bytes);
        // The first of two competing writers is a buffered one.
        let dontcache = cell.subject.is_dontcache() && (cell.job != Job::Competing || file != 0);
        let mut latencies_us = Vec::with_capacity(order.len() / shape.threads_per_file + 1);
        while !(cell.job == Job::Competing && is_over.load(Ordering::Relaxed)) {
            let Some(number) = order.get(next[file].fetch_add(1, Ordering::Relaxed)) else { break };
            interrupt::check()?;
            let offset_bytes = number * shape.block_bytes as u64;
            time_us(&mut latencies_us, || site.write(file, dontcache, offset_bytes, &block))?;
            written[file].fetch_add(shape.block_bytes as u64, Ordering::Relaxed);
            cell.place.think_time().into_iter().for_each(thread::sleep);
        }
        is_over.store(true, Ordering::Relaxed); // a writer that goes on alone does not compete
        Ok(latencies_us)
    };
    let ((latencies_us, time), peaks) = beside([|stop: &AtomicBool| peak_dirty(site, stop)], |_| {
        thread::scope(|scope| {
            let (start, work) = (Instant::now(), &work);
            let threads = 0..shape.files * shape.threads_per_file;
            let writers: Vec<_> = threads.map(|thread| scope.spawn(move || work(thread % shape.files))).collect();
            let latencies: Vec<Result<Vec<f64>>> = writers.into_iter().map(join).collect();
            let time = start.elapsed();
            Ok((latencies.into_iter().collect::<Result<Vec<_>>>()?.concat(), time))
        })
    })?;
    let mb_per_s: Vec<_> = written.iter().map(|bytes| mb_per_s(bytes.load(Ordering::Relaxed), time)).collect();
    let (all, first) = (mb_per_s.iter().sum::<f64>(), *mb_per_s.first().context("a job has files")?);
    let other = all - first;
    let kicks = latencies_us.len() as f64 / site.passes().max(1) as f64;
    let peak_bytes = peaks.into_iter().max().unwrap_or(0);
    series.add_round(&cell.row(LATENCY), cell.subject.name(), latencies_us);
    for (figure, value) in [
        (RATE, all),
        (PEAK, peak_bytes as f64 / 1e6),
        (KICKS, kicks),
        (FIRST, first),
        (OTHER, other),
        (FAIRNESS, other.min(first) / other.max(first)),
        (GROWTH, site.clean()? as f64 / 1e6),
    ] {
        series.add(&cell.row(figure), cell.subject.name(), value);
    }
    Ok(())
}

fn peak_dirty(site: &dyn Site, stop: &AtomicBool) -> Result<u64> {
    let mut peak = 0;
    while !stop.load(Ordering::Relaxed) {
        peak = peak.max(site.dirty_bytes()?);
        thread::sleep(PAUSE);
    }
    Ok(peak)
}

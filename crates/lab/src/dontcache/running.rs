//! One run: all threads of a job start at once, and each write is timed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::jobs::{Job, Shape};
use super::site::{Block, Cell, Site};
use crate::harness::threads::{beside, join};
use crate::harness::{axis, mb_per_s, quantile, time_us};
use crate::interrupt;

/// Between two looks at what is dirty.
const PAUSE: Duration = Duration::from_millis(1);

/// The result of one run.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Of all writers together.
    pub(super) mb_per_s: f64,
    /// Of the writers of the first file.
    pub(super) first_mb_per_s: f64,
    pub(super) latencies_us: Vec<f64>,
    pub(super) peak_dirty_bytes: u64,
    /// When all is clean.
    pub(super) cache_growth_bytes: u64,
    /// Passes of flushers for DONTCACHE writes.
    pub(super) passes: u64,
}

axis! {
    /// The figures of a run, with their names in JSON.
    pub(super) enum Figure {
        MbPerS = "mb_per_s",
        P50Us = "p50_us",
        P99Us = "p99_us",
        P999Us = "p999_us",
        PeakDirtyMb = "peak_dirty_mb",
        CacheGrowthMb = "cache_growth_mb",
        KicksPerPass = "kicks_per_pass",
        /// Of two competing writers, the slower by the faster.
        Fairness = "fairness",
        FirstMbPerS = "first_mb_per_s",
        OtherMbPerS = "other_mb_per_s",
    }
}

impl Outcome {
    pub(super) fn of(&self, figure: Figure) -> f64 {
        let other = self.mb_per_s - self.first_mb_per_s;
        match figure {
            Figure::MbPerS => self.mb_per_s,
            Figure::P50Us => quantile(&self.latencies_us, 0.5),
            Figure::P99Us => quantile(&self.latencies_us, 0.99),
            Figure::P999Us => quantile(&self.latencies_us, 0.999),
            Figure::PeakDirtyMb => self.peak_dirty_bytes as f64 / 1e6,
            Figure::CacheGrowthMb => self.cache_growth_bytes as f64 / 1e6,
            Figure::KicksPerPass => self.latencies_us.len() as f64 / self.passes.max(1) as f64,
            Figure::Fairness => other.min(self.first_mb_per_s) / other.max(self.first_mb_per_s),
            Figure::FirstMbPerS => self.first_mb_per_s,
            Figure::OtherMbPerS => other,
        }
    }
}

/// Runs a job once; `None` if the file system does not support the subject.
pub(super) fn run(cell: Cell, scale_bytes: u64, folder: &Path, seed: u64) -> Result<Option<Outcome>> {
    let Some(site) = cell.open(scale_bytes, folder)? else { return Ok(None) };
    let shape = cell.shape(scale_bytes);
    let mut outcome = write(cell, shape, &*site, seed)?;
    outcome.passes = site.passes();
    outcome.cache_growth_bytes = site.clean()?;
    Ok(Some(outcome))
}

fn write(cell: Cell, shape: Shape, site: &dyn Site, seed: u64) -> Result<Outcome> {
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
    let of_each: Vec<_> = written.iter().map(|bytes| mb_per_s(bytes.load(Ordering::Relaxed), time)).collect();
    Ok(Outcome {
        mb_per_s: of_each.iter().sum(),
        first_mb_per_s: *of_each.first().context("a job has files")?,
        latencies_us,
        peak_dirty_bytes: peaks.into_iter().max().unwrap_or(0),
        cache_growth_bytes: 0,
        passes: 0,
    })
}

fn peak_dirty(site: &dyn Site, stop: &AtomicBool) -> Result<u64> {
    let mut peak = 0;
    while !stop.load(Ordering::Relaxed) {
        peak = peak.max(site.dirty_bytes()?);
        thread::sleep(PAUSE);
    }
    Ok(peak)
}

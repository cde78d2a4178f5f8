//! One run: all threads of a job start at once, and each write is timed.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::block::Block;
use super::jobs::{Job, Shape};
use super::records::Outcome;
use super::site::{Cell, Site};
use crate::interrupt;
use crate::quantity::mb_per_s;

/// Between two looks at what is dirty.
const LOOK: Duration = Duration::from_millis(1);

/// Runs a job once; `None` if the subject cannot do it here.
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
        // Of two that compete the first is an ordinary writer.
        let dontcache = cell.subject.is_dontcache() && (cell.job != Job::Competing || file != 0);
        let mut latencies_us = Vec::with_capacity(order.len() / shape.threads_per_file + 1);
        while !(cell.job == Job::Competing && is_over.load(Ordering::Relaxed)) {
            let Some(number) = order.get(next[file].fetch_add(1, Ordering::Relaxed)) else { break };
            interrupt::check()?;
            let start = Instant::now();
            site.write(file, dontcache, number * shape.block_bytes as u64, &block)?;
            latencies_us.push(start.elapsed().as_secs_f64() * 1e6);
            written[file].fetch_add(shape.block_bytes as u64, Ordering::Relaxed);
        }
        is_over.store(true, Ordering::Relaxed); // who goes on alone does not compete
        Ok(latencies_us)
    };
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let sampler = scope.spawn(|| most_dirty(site, &ended));
        let start = Instant::now();
        let work = &work;
        let writers: Vec<_> = (0..shape.files * shape.threads_per_file)
            .map(|thread| scope.spawn(move || work(thread % shape.files)))
            .collect();
        let latencies =
            writers.into_iter().map(|writer| writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let latencies = latencies.collect::<Vec<Result<Vec<f64>>>>();
        let time = start.elapsed();
        ended.store(true, Ordering::Relaxed);
        let peak_dirty_bytes = sampler.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let latencies_us = latencies.into_iter().collect::<Result<Vec<_>>>()?.concat();
        let of_each: Vec<_> = written.iter().map(|bytes| mb_per_s(bytes.load(Ordering::Relaxed), time)).collect();
        let first = of_each.first().context("a job has files")?;
        Ok(Outcome {
            mb_per_s: of_each.iter().sum(),
            first_mb_per_s: *first,
            latencies_us,
            peak_dirty_bytes,
            cache_growth_bytes: 0,
            passes: 0,
        })
    })
}

fn most_dirty(site: &dyn Site, ended: &AtomicBool) -> Result<u64> {
    let mut most = 0;
    while !ended.load(Ordering::Relaxed) {
        most = most.max(site.dirty_bytes()?);
        thread::sleep(LOOK);
    }
    Ok(most)
}

//! Threads that look up paths all the time, while something else is done.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::interrupt;
use crate::samples::Samples;
use crate::statistics::median;

/// What the lookers saw.
pub(crate) struct Lookups {
    pub(crate) per_s: f64,
    /// Nanoseconds of each.
    pub(crate) ns: Histogram<u64>,
    /// That ended during one change, the median of all.
    pub(crate) during_one: f64,
}

/// Changes of the tree, one after the other.
pub(crate) struct Pass {
    pub(crate) times: Samples,
    /// From the first to the last.
    pub(crate) all: Duration,
    /// None without lookers.
    pub(crate) lookups: Option<Lookups>,
}

/// Lookups of a thread that have ended.
#[repr(align(128))]
#[derive(Default)]
struct Count(AtomicU64);

/// Does `change` so many times and notes the time of each, while `lookers` threads call `look` with one number after another.
///
/// # Errors
/// The first of a lookup or a change, or that an interrupt came.
pub(crate) fn pass(
    lookers: usize,
    look: impl Fn(usize) -> Result<()> + Sync,
    changes: usize,
    mut change: impl FnMut(usize) -> Result<()>,
) -> Result<Pass> {
    let counts: Vec<Count> = (0..lookers).map(|_| Count::default()).collect();
    let (stop, begun) = (AtomicBool::new(false), Barrier::new(lookers + 1));
    thread::scope(|scope| {
        let start = |(number, count)| {
            let (look, stop, begun) = (&look, &stop, &begun);
            scope.spawn(move || look_until(stop, begun, count, |nth| look(number + lookers * nth)))
        };
        let threads: Vec<_> = counts.iter().enumerate().map(start).collect();
        begun.wait();
        let changed = change_all(&counts, changes, &mut change);
        stop.store(true, Ordering::Relaxed);
        let mut ns = histogram()?;
        for thread in threads {
            ns.add(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)?;
        }
        let Changed { times, all, looked_up, during_each } = changed?;
        let per_s = looked_up as f64 / all.as_secs_f64().max(1e-9);
        let lookups = (lookers != 0).then_some(Lookups { per_s, ns, during_one: median(&during_each) });
        Ok(Pass { times, all, lookups })
    })
}

struct Changed {
    times: Samples,
    all: Duration,
    looked_up: u64,
    during_each: Vec<f64>,
}

fn change_all(counts: &[Count], changes: usize, change: &mut impl FnMut(usize) -> Result<()>) -> Result<Changed> {
    let looked_up = || counts.iter().map(|count| count.0.load(Ordering::Relaxed)).sum::<u64>();
    let (mut times, mut during_each) = (Samples::default(), Vec::with_capacity(changes));
    let (before_all, start) = (looked_up(), Instant::now());
    for nth in 0..changes {
        interrupt::check()?;
        let before = looked_up();
        times.time(|| change(nth))?;
        during_each.push((looked_up() - before) as f64);
    }
    Ok(Changed { times, all: start.elapsed(), looked_up: looked_up() - before_all, during_each })
}

/// Looks up until told to stop, and says how long each took. The others wait until it has begun.
fn look_until(
    stop: &AtomicBool,
    begun: &Barrier,
    count: &Count,
    look: impl Fn(usize) -> Result<()>,
) -> Result<Histogram<u64>> {
    let first = look(0);
    begun.wait();
    first?;
    let mut ns = histogram()?;
    let mut nth = 1;
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        look(nth)?;
        ns.saturating_record(start.elapsed().as_nanos() as u64);
        count.0.store(nth as u64, Ordering::Relaxed);
        nth += 1;
    }
    Ok(ns)
}

/// Of nanoseconds, up to a minute.
pub(crate) fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).context("cannot keep times of lookups")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_beside_are_counted() {
        let alone = pass(0, |_| anyhow::bail!("nobody looks"), 3, |_| Ok(())).unwrap();
        assert!(alone.lookups.is_none() && alone.times.count() == 3);

        let begun = AtomicU64::new(0);
        let look = |_| {
            begun.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        // So many begin during each change that two of one thread have: the first of them has ended, and was counted.
        let change = |_| {
            let before = begun.load(Ordering::Relaxed);
            while begun.load(Ordering::Relaxed) < before + 4 {
                thread::yield_now();
            }
            Ok(())
        };
        let lookups = pass(2, look, 5, change).unwrap().lookups.unwrap();
        assert!(lookups.during_one >= 1.0 && lookups.ns.len() >= 5 && lookups.per_s > 0.0);
    }

    #[test]
    fn a_lookup_that_fails_is_told() {
        let failed = AtomicBool::new(false);
        let look = |nth| {
            if nth != 0 {
                failed.store(true, Ordering::Relaxed);
                anyhow::bail!("no");
            }
            Ok(())
        };
        let change = |_| {
            while !failed.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            Ok(())
        };
        let error = pass(1, look, 1, change).err().unwrap();
        assert_eq!(error.to_string(), "no");
    }
}

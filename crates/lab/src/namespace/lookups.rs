//! Threads that look up paths all the time, while something else is done.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::harness::threads::beside;
use crate::harness::{median, time_us};
use crate::interrupt;

/// The lookups of all threads.
pub(super) struct Lookups {
    pub(super) per_s: f64,
    /// Nanoseconds of each.
    pub(super) ns: Histogram<u64>,
    /// Lookups that ended during one change, the median of all changes.
    pub(super) during_one: f64,
}

/// Changes of the tree, one after the other.
pub(super) struct Pass {
    /// Microseconds of each.
    pub(super) us: Vec<f64>,
    /// Time from the first to the last.
    pub(super) all: Duration,
    /// `None` without lookers.
    pub(super) lookups: Option<Lookups>,
}

/// Lookups of a thread that have ended. Aligned, so that threads do not share a cache line.
#[repr(align(128))]
#[derive(Default)]
struct Count(AtomicU64);

/// Calls `change` with the numbers below `changes`, while `lookers` threads call `look` with one number after another.
///
/// # Errors
/// The first of a lookup or a change, or an interrupt.
pub(super) fn pass(
    lookers: usize,
    look: impl Fn(usize) -> Result<()> + Sync,
    changes: usize,
    mut change: impl FnMut(usize) -> Result<()>,
) -> Result<Pass> {
    let counts: Vec<Count> = (0..lookers).map(|_| Count::default()).collect();
    let (look, begun) = (&look, &Barrier::new(lookers + 1));
    let looker =
        |(number, count)| move |stop: &AtomicBool| look_until(stop, begun, count, |nth| look(number + lookers * nth));
    let looked_up = || counts.iter().map(|count| count.0.load(Ordering::Relaxed)).sum::<u64>();
    let (mut us, mut during_each) = (Vec::with_capacity(changes), Vec::with_capacity(changes));
    let ((all, sum), histograms) = beside(counts.iter().enumerate().map(looker), |_| {
        begun.wait();
        let (before_all, start) = (looked_up(), Instant::now());
        for nth in 0..changes {
            interrupt::check()?;
            let before = looked_up();
            time_us(&mut us, || change(nth))?;
            during_each.push((looked_up() - before) as f64);
        }
        Ok((start.elapsed(), looked_up() - before_all))
    })?;
    let mut ns = histogram()?;
    histograms.into_iter().try_for_each(|histogram| ns.add(histogram))?;
    let per_s = sum as f64 / all.as_secs_f64().max(1e-9);
    let lookups = (lookers != 0).then(|| Lookups { per_s, ns, during_one: median(&during_each) });
    Ok(Pass { us, all, lookups })
}

/// Looks up until `stop` and returns how long each lookup took. Changes begin when all lookers have begun.
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

/// Samples in microseconds whose curve looks like that of all values in the histogram.
pub(super) fn samples_us(histogram: &Histogram<u64>) -> Vec<f64> {
    const POINTS: u64 = 400;
    let points = histogram.len().min(POINTS);
    let share = |point| (point as f64 + 0.5) / points as f64;
    (0..points).map(|point| histogram.value_at_quantile(share(point)) as f64 / 1e3).collect()
}

/// A histogram of nanoseconds, up to a minute.
fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).context("cannot create a histogram")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn lookups_during_changes_are_counted() {
        let alone = pass(0, |_| anyhow::bail!("there are no lookers"), 3, |_| Ok(())).unwrap();
        assert!(alone.lookups.is_none() && alone.us.len() == 3);

        let begun = AtomicU64::new(0);
        let look = |_| {
            begun.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        // Four lookups begin during each change, so one thread begins two: its first has ended and was counted.
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
    fn a_failed_lookup_is_reported() {
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
        assert_eq!(pass(1, look, 1, change).err().unwrap().to_string(), "no");
    }

    #[test]
    fn samples_of_a_histogram_are_its_quantiles() {
        let mut histogram = histogram().unwrap();
        [1000_u64, 2000, 4000].into_iter().for_each(|value| histogram.record(value).unwrap());
        let samples: Vec<f64> = samples_us(&histogram).into_iter().map(f64::round).collect();
        assert_eq!(samples, [1.0, 2.0, 4.0]);
    }
}

//! Threads: several that do the same at once, and some in the background of what is measured.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::placement::{cpus, pin};
use crate::interrupt;

/// Longest wait for something that takes milliseconds, or seconds on a slow disk.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between two looks at a condition.
const PAUSE: Duration = Duration::from_micros(500);

/// Waits for the thread and passes its panic on.
pub(crate) fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Calls `work` with each item, all at once on threads of their own, and returns what they return. A single item stays on
/// the calling thread.
pub(crate) fn at_once<I: Send, T: Send>(items: Vec<I>, work: impl Fn(usize, I) -> T + Sync) -> Vec<T> {
    if items.len() == 1 {
        return items.into_iter().map(|item| work(0, item)).collect();
    }
    let (barrier, work) = (&Barrier::new(items.len()), &work);
    thread::scope(|scope| {
        let start = |(number, item)| {
            scope.spawn(move || {
                barrier.wait();
                work(number, item)
            })
        };
        let threads: Vec<_> = items.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(join).collect()
    })
}

/// Does `work` with every lane at once and returns the time from the first start to the last end. A single lane stays on the
/// calling thread, unpinned; several get a CPU each, as far as there are enough.
///
/// # Errors
/// That of the first lane that failed.
pub(crate) fn run_lanes<L: Send>(lanes: Vec<L>, work: impl Fn(&mut L) -> Result<()> + Sync) -> Result<Duration> {
    let cpus = if lanes.len() == 1 { Vec::new() } else { cpus() };
    let outcomes = at_once(lanes, |number, mut lane| {
        if !cpus.is_empty() {
            pin(cpus[number % cpus.len()]);
        }
        let start = Instant::now();
        work(&mut lane)?;
        Ok((start, Instant::now()))
    });
    let times = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    let (starts, ends): (Vec<_>, Vec<_>) = times.into_iter().unzip();
    let span = starts.into_iter().min().zip(ends.into_iter().max());
    Ok(span.map_or(Duration::ZERO, |(start, end)| end - start))
}

/// Does `work` while each of `background` runs on a thread of its own, and returns what all of them return. They end soon
/// after the flag is set, which happens when `work` ends or one of them fails. All have ended when this returns.
///
/// # Errors
/// The first of the background, or that of `work`.
pub(crate) fn beside<B: Send, T>(
    background: impl IntoIterator<Item = impl FnOnce(&AtomicBool) -> Result<B> + Send>,
    work: impl FnOnce(&AtomicBool) -> Result<T>,
) -> Result<(T, Vec<B>)> {
    /// Stops the threads when dropped, so also if `work` panics. Otherwise the scope would wait for them for ever.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let spawn = |run| scope.spawn(move || call(run, stop).inspect_err(|_| stop.store(true, Ordering::Relaxed)));
        let threads: Vec<_> = background.into_iter().map(spawn).collect();
        let outcome = {
            let _stop = Stop(stop);
            work(stop)
        };
        let ended = threads.into_iter().map(join).collect::<Result<Vec<B>>>()?;
        Ok((outcome?, ended))
    })
}

fn call<B>(run: impl FnOnce(&AtomicBool) -> Result<B>, stop: &AtomicBool) -> Result<B> {
    run(stop)
}

/// Waits until `is_reached`; fails with `what` when that takes too long.
pub(crate) fn wait_until(what: &str, mut is_reached: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_reached()? {
        interrupt::check()?;
        ensure!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn every_lane_runs_once_and_the_time_covers_the_longest() {
        let ran = AtomicU32::new(0);
        let work = |lane: &mut u64| {
            ran.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(*lane));
            Ok(())
        };
        assert!(run_lanes(vec![1, 20], work).unwrap() >= Duration::from_millis(20));
        assert!(run_lanes(vec![1], work).unwrap() >= Duration::from_millis(1));
        assert_eq!(ran.load(Ordering::Relaxed), 3);
        assert!(run_lanes(vec![1, 2], |lane| if *lane == 2 { anyhow::bail!("no") } else { Ok(()) }).is_err());
    }

    #[test]
    fn the_background_ends_with_the_work_and_its_failure_ends_the_work() {
        let until_stopped = |stop: &AtomicBool| {
            wait_until("never stopped", || Ok(stop.load(Ordering::Relaxed)))?;
            Ok(7)
        };
        assert_eq!(beside([until_stopped, until_stopped], |_| Ok("done")).unwrap(), ("done", vec![7, 7]));
        let fail = |_: &AtomicBool| -> Result<()> { anyhow::bail!("no") };
        let work = |stop: &AtomicBool| wait_until("never stopped", || Ok(stop.load(Ordering::Relaxed)));
        assert_eq!(beside([fail], work).unwrap_err().to_string(), "no");
    }
}

//! One or several threads doing the same at once, each on a CPU of its own.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Runs `work` for every lane at once, and returns the time from the first start to the last end. One lane
/// runs on the calling thread, unpinned; several get a thread and a CPU each, as far as there are enough.
///
/// # Errors
/// The first lane's that failed.
pub(crate) fn run<L: Send>(lanes: Vec<L>, work: impl Fn(&mut L) -> Result<()> + Sync) -> Result<Duration> {
    let mut lanes = lanes;
    if let [lane] = &mut lanes[..] {
        let start = Instant::now();
        work(lane)?;
        return Ok(start.elapsed());
    }
    let (cpus, barrier) = (cpus(), Barrier::new(lanes.len()));
    let outcomes: Vec<Result<(Instant, Instant)>> = std::thread::scope(|scope| {
        let start_lane = |(number, mut lane): (usize, L)| {
            let (cpu, barrier, work) = (cpus[number % cpus.len()], &barrier, &work);
            scope.spawn(move || {
                pin(cpu);
                barrier.wait();
                let start = Instant::now();
                work(&mut lane)?;
                Ok((start, Instant::now()))
            })
        };
        let threads: Vec<_> = lanes.into_iter().enumerate().map(start_lane).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let times = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    let (starts, ends): (Vec<_>, Vec<_>) = times.into_iter().unzip();
    let span = starts.into_iter().min().zip(ends.into_iter().max());
    Ok(span.map_or(Duration::ZERO, |(start, end)| end - start))
}

/// The CPUs this process may use.
pub(crate) fn cpus() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return vec![0] };
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Keeps the calling thread on `cpu`. Where that is not permitted it goes where it likes.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn every_lane_runs_once_and_the_time_covers_the_longest() {
        let ran = AtomicU32::new(0);
        let work = |lane: &mut u64| {
            ran.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(*lane));
            Ok(())
        };
        assert!(run(vec![1, 20], work).unwrap() >= Duration::from_millis(20));
        assert!(run(vec![1], work).unwrap() >= Duration::from_millis(1));
        assert_eq!(ran.load(Ordering::Relaxed), 3);
        assert!(run(vec![1, 2], |lane| if *lane == 2 { anyhow::bail!("no") } else { Ok(()) }).is_err());
    }
}

//! A counter that many CPUs change and few threads read.
//!
//! Each CPU has a shard for its recent changes. A shard that reaches the batch is folded into the shared value. Reading
//! the shared value is cheap and off by at most one batch per shard. A sum is exact and visits every shard.
//!
//! The shards are allocated at the first change: a machine with many CPUs may have thousands of volumes without
//! writers.
//!
//! # Invariants
//! P1. A change is in exactly one place: its shard or the shared value. It moves under the lock that `sum` takes, so a
//!     sum counts it once.
//! P2. When no `add` is running, every shard is below the batch.
//!
//! # Memory ordering
//! None. A caller that needs an exact sum must already be ordered after the changes, by the event from which it learned
//! that they are over. That event also makes the shards visible that the changes allocated.
//!
//! # Kernel counterpart
//! `percpu_counter`, with the batch of writeback statistics. Differs: preemption cannot be disabled, so the
//! CPU number only chooses the shard, and the change itself is atomic.

use crate::shim::atomic::{AtomicI64, Ordering};
use crate::shim::{OnceLock, cpu_hint, nr_cpus, raw};

/// The number of the CPU that this thread ran on a moment ago. It is a hint: use it to choose a shard, never to own
/// one.
#[inline]
pub fn shard_hint() -> usize {
    cpu_hint()
}

/// A part of the value, alone on its cache lines. There are two, since prefetchers fetch lines in pairs.
#[repr(align(128))]
struct Part {
    value: AtomicI64,
    /// Only that of the first part is used: it is held while a shard is folded into that part, and while the parts are summed.
    fold: raw::Mutex<()>,
}

/// A sharded counter; see the module documentation.
pub struct PercpuCounter {
    /// The shared value, followed by the shards.
    parts: OnceLock<Box<[Part]>>,
    shards: u32,
    batch: u32,
}

impl PercpuCounter {
    /// Zero, with a shard for each CPU that this process may use.
    pub fn new() -> Self {
        Self::with_shards(nr_cpus())
    }

    /// Zero, with `shards` shards, at least one. The batch follows from their number.
    ///
    /// # Panics
    /// If `shards` is zero.
    pub fn with_shards(shards: usize) -> Self {
        Self { parts: OnceLock::new(), shards: shards as u32, batch: 8 * (1 + shards.ilog2()) }
    }

    /// Adds `delta`.
    #[inline]
    pub fn add(&self, delta: i64) {
        let parts = self.parts.get_or_init(|| self.new_parts());
        let [shared, shards @ ..] = &**parts else { unreachable!("the shared one comes first") };
        let shard = &shards[shard_hint() % shards.len()];
        let old = shard.value.fetch_add(delta, Ordering::Relaxed);
        if old.wrapping_add(delta).unsigned_abs() >= self.batch.into() {
            shared.take_from(shard);
        }
    }

    #[cold]
    fn new_parts(&self) -> Box<[Part]> {
        (0..=self.shards).map(|_| Part { value: AtomicI64::new(0), fold: raw::Mutex::new(()) }).collect()
    }

    /// The value, off by at most [`PercpuCounter::max_error`] and never below zero.
    #[inline]
    pub fn read(&self) -> u64 {
        clamp(self.parts.get().map_or(0, |parts| parts[0].value.load(Ordering::Relaxed)))
    }

    /// The exact value, never below zero. Each change made during the call is either in it or not.
    pub fn sum(&self) -> u64 {
        let Some(parts) = self.parts.get() else { return 0 };
        let _fold = parts[0].fold.lock();
        clamp(parts.iter().fold(0, |sum: i64, part| sum.wrapping_add(part.value.load(Ordering::Relaxed))))
    }

    /// How far [`PercpuCounter::read`] may be from [`PercpuCounter::sum`] while no `add` is running.
    pub fn max_error(&self) -> u64 {
        u64::from(self.batch) * u64::from(self.shards)
    }
}

impl Part {
    /// Folds a shard into the shared value, which is `self` (P1).
    #[cold]
    fn take_from(&self, shard: &Self) {
        let _fold = self.fold.lock();
        let part = shard.value.swap(0, Ordering::Relaxed);
        self.value.store(self.value.load(Ordering::Relaxed).wrapping_add(part), Ordering::Relaxed);
    }
}

impl Default for PercpuCounter {
    fn default() -> Self {
        Self::new()
    }
}

fn clamp(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use super::*;
    use crate::shim::{Arc, thread};

    #[test]
    fn the_error_grows_with_the_number_of_cpus() {
        let errors = [1, 4, 16, 24, 64].map(|cpus| PercpuCounter::with_shards(cpus).max_error());
        assert_eq!(errors, [8, 96, 640, 960, 3584]);
    }

    #[test]
    fn an_unchanged_counter_has_no_shards() {
        let counter = PercpuCounter::with_shards(4);
        assert_eq!((counter.read(), counter.sum()), (0, 0));
        assert!(counter.parts.get().is_none() && size_of::<PercpuCounter>() <= 32);
        counter.add(0);
        assert_eq!(counter.parts.get().map(|parts| parts.len()), Some(5));
    }

    #[test]
    fn a_small_change_is_in_the_sum_before_the_value() {
        let counter = PercpuCounter::with_shards(1);
        counter.add(7);
        assert_eq!((counter.read(), counter.sum()), (0, 7));
        counter.add(1);
        assert_eq!((counter.read(), counter.sum()), (8, 8));
        counter.add(-20);
        assert_eq!((counter.read(), counter.sum()), (0, 0));
        counter.add(13);
        assert_eq!(counter.sum(), 1);
    }

    #[test]
    fn racing_changes_are_all_counted() {
        for shards in [1, nr_cpus()] {
            let counter = Arc::new(PercpuCounter::with_shards(shards));
            let adders: Vec<_> = [3, -1, 5, 1]
                .map(|delta| {
                    let counter = Arc::clone(&counter);
                    thread::spawn(move || (0..50_000).for_each(|_| counter.add(delta)))
                })
                .into();
            for _ in 0..100 {
                assert!(counter.sum() <= 9 * 50_000);
            }
            adders.into_iter().for_each(|adder| adder.join().unwrap());
            assert_eq!(counter.sum(), 8 * 50_000);
            assert!(counter.sum().abs_diff(counter.read()) < counter.max_error());
        }
    }
}

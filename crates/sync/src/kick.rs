//! Requesting one pass of a worker over counted work, however many producers request it before the pass begins.
//!
//! A producer counts its work, then *kicks*. Of all producers that kick before the worker looks, one call returns true,
//! and its caller wakes the worker. The worker *takes* the kick, then reads the count. Either the worker's count
//! includes the work, or the producer finds that the kick has been taken and sets it again, which causes another pass.
//!
//! ```text
//! producer                               worker, woken
//! count.add(n);                          if kick.take() {
//! if kick.kick() { wake the worker }         work off count.sum()
//!                                        }
//! ```
//!
//! # Memory ordering
//! O1. [`Site::KickFence`] with [`Site::KickTakeFence`]: each side writes, then reads what the other wrote. Without
//!     either barrier, the producer may find the kick still set while the worker reads the count without the work. No
//!     pass then follows for that work.
//! O2. The flag itself orders nothing: a thread that finds it changed sees the count because of the two barriers.
//!
//! # Kernel counterpart
//! `WB_start_dontcache`. How the worker is woken is up to the caller.

use crate::shim::atomic::{AtomicBool, Ordering};
use crate::shim::{Site, const_unless_loom};

/// A request for a pass, set or not; see the module documentation.
pub struct Kick {
    is_set: AtomicBool,
}

impl Kick {
    const_unless_loom! {
        /// Not set.
        pub const fn new() -> Self {
            Self { is_set: AtomicBool::new(false) }
        }
    }

    /// Requests a pass over the work that the caller has counted. True for the first request since the last pass began:
    /// its caller wakes the worker.
    #[inline]
    #[must_use = "no other thread wakes the worker"]
    pub fn kick(&self) -> bool {
        // O1: pairs with the barrier in `take`.
        Site::KickFence.smp_mb();
        // Read first: until the worker takes the kick, the cache line stays shared among all producers.
        !self.is_set() && !self.is_set.swap(true, Ordering::Relaxed)
    }

    /// Whether a pass is requested. The request stays set until the worker takes it. For a thread that has new input
    /// for a worker that was woken but could not do anything yet.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Whether a pass was requested. If so, the request is consumed, and the caller reads the count next.
    #[inline]
    #[must_use = "the request is gone"]
    pub fn take(&self) -> bool {
        if !self.is_set() {
            return false; // a producer that sets it now wakes the worker, which looks again
        }
        let taken = self.is_set.swap(false, Ordering::Relaxed);
        // O1: pairs with the barrier in `kick`.
        Site::KickTakeFence.smp_mb();
        taken
    }
}

impl Default for Kick {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use super::*;
    use crate::PercpuCounter;
    use crate::shim::atomic::AtomicU64;
    use crate::shim::{Arc, thread};

    #[test]
    fn only_the_first_kick_before_a_pass_wakes_the_worker() {
        let kick = Kick::new();
        assert!(!kick.is_set() && !kick.take());
        assert_eq!([(); 3].map(|()| kick.kick()), [true, false, false]);
        assert!(kick.is_set() && kick.take() && !kick.take());
        assert!(kick.kick());
    }

    #[test]
    fn all_counted_work_is_followed_by_a_pass() {
        const EACH: u64 = 20_000;
        let (kick, count, wakes) = (Arc::new(Kick::new()), Arc::new(PercpuCounter::new()), Arc::new(AtomicU64::new(0)));
        let producers = [(); 2].map(|()| {
            let (kick, count, wakes) = (Arc::clone(&kick), Arc::clone(&count), Arc::clone(&wakes));
            thread::spawn(move || {
                for _ in 0..EACH {
                    count.add(1);
                    if kick.kick() {
                        wakes.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        });
        let (mut passes, mut worked_off) = (0, 0);
        loop {
            let are_gone = producers.iter().all(thread::JoinHandle::is_finished);
            if kick.take() {
                passes += 1;
                worked_off = count.sum();
            } else if are_gone {
                break;
            }
            thread::yield_now();
        }
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        assert_eq!((worked_off, passes), (2 * EACH, wakes.load(Ordering::Relaxed)));
    }
}

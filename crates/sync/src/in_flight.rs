//! Counting operations in flight, so that the owner of an object can close it and wait for the rest.
//!
//! The owner has a flag that only ever changes from open to closed. A worker *pins*, then tests the flag, and backs off
//! if it is closed. The owner closes the flag, then *drains*. Either the owner sees the pin and waits, or the worker
//! sees the closed flag and has touched nothing.
//!
//! ```text
//! worker                        owner
//! in_flight.pin();              open.store(false);
//! if open.load() { work }       in_flight.drain();
//! in_flight.unpin();            free what was worked on
//! ```
//!
//! A pinned operation may be queued for another thread to run later. The owner then need not wait for that thread: with
//! [`InFlight::drain_with`] it takes the queued operations back.
//!
//! # Invariants
//! F1. After its unpin, a worker does not access the count again: the owner may have freed it. The wake uses the
//!     address only.
//! F2. WAITING is cleared only while the count is zero, in one step, so that no waiter of a later round loses its wake.
//! F3. A worker that queues a pinned operation tests the flag once more with the queue's lock held, and backs off if it
//!     is closed. Once the owner has closed the flag and emptied the queue under that lock, nothing more is queued.
//!
//! # Memory ordering
//! O1. [`Site::InFlightPinFence`] with [`Site::InFlightDrainFence`]: each side writes, then reads what the other wrote.
//!     Without either barrier, both may read the old value, and the owner frees what a worker is about to use.
//! O2. [`Site::InFlightUnpinRelease`] with [`Site::InFlightDrainAcquire`]: everything done under a pin happens before
//!     the drain returns. Without it, the owner may free the object while late writes of the worker are still in
//!     flight.
//!
//! # Kernel counterpart
//! The count of inode switches in flight in one super block, with `wake_up_var`.

use crate::lock::might_sleep;
use crate::shim::atomic::{AtomicU32, Ordering};
use crate::shim::{Site, const_unless_loom, futex_wait, futex_wake_all};

const WAITING: u32 = 1 << 31;

/// A count of pins that its owner can drain; see the module documentation.
pub struct InFlight {
    word: AtomicU32,
}

impl InFlight {
    const_unless_loom! {
        /// Nothing in flight.
        pub const fn new() -> Self {
            Self { word: AtomicU32::new(0) }
        }
    }

    /// Counts one more. The caller tests the owner's flag next, and unpins if it is closed.
    #[inline]
    pub fn pin(&self) {
        let old = self.word.fetch_add(1, Ordering::Relaxed);
        debug_assert!(old & !WAITING != !WAITING, "in-flight count overflows");
        // O1: pairs with the barrier in `drain`.
        Site::InFlightPinFence.smp_mb();
    }

    /// Counts one less. The owner may free the count at once (F1).
    #[inline]
    pub fn unpin(&self) {
        let address: *const AtomicU32 = &self.word;
        // O2.
        let old = self.word.fetch_sub(1, Site::InFlightUnpinRelease.order(Ordering::Release));
        debug_assert!(old & !WAITING != 0, "unpin without a pin");
        if old == WAITING | 1 {
            futex_wake_all(address);
        }
    }

    /// Waits until nothing is in flight. The caller has closed its flag.
    ///
    /// # Blocking
    /// While anything is in flight. No grace period is involved. Returns at once if the count is zero.
    ///
    /// # Panics
    /// Where `debug_assertions` are on, if the caller may not sleep.
    #[inline]
    #[track_caller]
    pub fn drain(&self) {
        self.drain_with(|| {});
    }

    /// Drains as [`InFlight::drain`] does, after `take_back` has unpinned the queued operations that no thread has
    /// begun (F3). `take_back` is not called if nothing is in flight.
    ///
    /// # Blocking
    /// While any operation is in flight that was not taken back.
    ///
    /// # Panics
    /// Where `debug_assertions` are on, if the caller may not sleep.
    #[inline]
    #[track_caller]
    pub fn drain_with(&self, take_back: impl FnOnce()) {
        might_sleep();
        if !self.is_drained() {
            take_back();
            self.drain_slow();
        }
    }

    /// Whether a drain would return at once: for an owner that has closed its flag and waits elsewhere.
    #[inline]
    pub fn is_drained(&self) -> bool {
        // O1: pairs with the barrier in `pin`.
        Site::InFlightDrainFence.smp_mb();
        self.count() == 0
    }

    /// How many operations are in flight at this moment. Only after the flag has been closed does zero mean that all
    /// are done.
    #[inline]
    pub fn count(&self) -> u32 {
        // O2.
        self.word.load(Site::InFlightDrainAcquire.order(Ordering::Acquire)) & !WAITING
    }

    #[cold]
    fn drain_slow(&self) {
        loop {
            let old = self.word.fetch_or(WAITING, Site::InFlightDrainAcquire.order(Ordering::Acquire));
            if old & !WAITING == 0 {
                break;
            }
            futex_wait(&self.word, old | WAITING, None);
            if self.count() == 0 {
                break;
            }
        }
        // F2. Failure means that a late pin was added: it will back off, and its unpin may cause a needless wake.
        let _ = self.word.compare_exchange(WAITING, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Default for InFlight {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use super::*;
    use crate::shim::atomic::AtomicBool;
    use crate::shim::{Arc, thread};

    #[test]
    fn an_idle_count_drains_at_once() {
        let in_flight = InFlight::new();
        in_flight.drain();
        in_flight.pin();
        assert_eq!(in_flight.count(), 1);
        in_flight.unpin();
        in_flight.drain();
    }

    #[test]
    fn queued_operations_can_be_taken_back() {
        let in_flight = InFlight::new();
        in_flight.drain_with(|| panic!("nothing is in flight"));
        in_flight.pin();
        in_flight.pin();
        in_flight.drain_with(|| {
            in_flight.unpin();
            in_flight.unpin();
        });
        assert_eq!(in_flight.count(), 0);
    }

    #[test]
    fn no_worker_uses_an_object_after_its_owner_freed_it() {
        struct Owner {
            in_flight: InFlight,
            is_open: AtomicBool,
            is_freed: AtomicBool,
        }
        for _ in 0..200 {
            let owner = Arc::new(Owner {
                in_flight: InFlight::new(),
                is_open: AtomicBool::new(true),
                is_freed: AtomicBool::new(false),
            });
            let workers = [(); 2].map(|()| {
                let owner = Arc::clone(&owner);
                thread::spawn(move || {
                    let mut is_open = true;
                    while is_open {
                        owner.in_flight.pin();
                        is_open = owner.is_open.load(Ordering::Relaxed);
                        assert!(!is_open || !owner.is_freed.load(Ordering::Relaxed), "used after it was freed");
                        owner.in_flight.unpin();
                    }
                })
            });
            thread::yield_now();
            owner.is_open.store(false, Ordering::Relaxed);
            owner.in_flight.drain();
            owner.is_freed.store(true, Ordering::Relaxed);
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            assert_eq!(owner.in_flight.count(), 0);
        }
    }
}

//! Counting what is in flight, so that its owner can close and wait for the rest.
//!
//! The owner has a flag that only ever goes from open to closed. A worker *pins*, then tests the flag, and backs off if it
//! is closed. The owner closes the flag, then *drains*. Either the owner sees the pin and waits, or the worker sees the
//! flag and has touched nothing.
//!
//! ```text
//! worker                        owner
//! in_flight.pin();              open.store(false);
//! if open.load() { work }       in_flight.drain();
//! in_flight.unpin();            free what was worked on
//! ```
//!
//! What is pinned may be put on a queue, for somebody to work on later. The owner then need not wait for him: it takes back
//! what is on the queue, with [`InFlight::drain_with`].
//!
//! # Invariants
//! F1. After an unpin nothing of the count is read or written: the owner may have freed it. The wake goes by address.
//! F2. WAITING is cleared only while the count is zero, in one step, so that no waiter of a later round loses its wake.
//! F3. Whoever queues what he has pinned tests the flag once more with the queue's lock held, and backs off if it is
//!     closed. So once the owner has closed the flag and emptied the queue, under that lock, nothing comes to it any more.
//!
//! # Memory ordering
//! O1. [`Site::InFlightPinFence`] with [`Site::InFlightDrainFence`]: each side writes, then reads what the other wrote.
//!     Without either barrier both may read the old value; the owner frees what a worker is about to use.
//! O2. [`Site::InFlightUnpinRelease`] with [`Site::InFlightDrainAcquire`]: what was done under a pin happens before the
//!     drain returns. Without it the owner frees while late writes of the worker are still on their way.
//!
//! # Kernel counterpart
//! The count of inode switches in flight in one super block (sem. 6.4, 6.5), with `wake_up_var`.

use crate::lock::might_sleep;
use crate::shim::atomic::{AtomicU32, Ordering};
use crate::shim::{Site, const_unless_loom, futex_wait, futex_wake_all};

const WAITING: u32 = 1 << 31;

/// A count of pins that can be waited out; see the module's head.
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
    /// While anything is in flight. No grace period is involved, and nothing is waited for if the count is zero.
    ///
    /// # Panics
    /// Where `debug_assertions` are on, if the caller may not sleep.
    #[inline]
    #[track_caller]
    pub fn drain(&self) {
        self.drain_with(|| {});
    }

    /// As [`InFlight::drain`], after `take_back` has unpinned what nobody is at (F3). Not called if nothing is in flight.
    ///
    /// # Blocking
    /// While anything is in flight that was not taken back.
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

    /// Whether a drain would return at once: for an owner who has closed his flag, and waits elsewhere.
    #[inline]
    pub fn is_drained(&self) -> bool {
        // O1: pairs with the barrier in `pin`.
        Site::InFlightDrainFence.smp_mb();
        self.count() == 0
    }

    /// How many are in flight at this moment. Zero means that all is done only after the flag has been closed.
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
        // F2. Failure means that a late pin came in: it will back off, and its unpin may wake somebody for nothing.
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
    fn what_is_in_flight_can_be_taken_back() {
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
    fn no_worker_uses_what_its_owner_has_freed() {
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

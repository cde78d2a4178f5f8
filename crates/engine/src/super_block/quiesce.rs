//! Keeps flushers away from a volume that is about to be unmounted.
//!
//! # Invariants
//! Q1. A flusher is counted in `flushers` while it works on the volume, from before it examines anything. An inode that
//!     it has taken but not yet submitted may be reachable from nowhere else.
//! Q2. A flusher that finds `is_quiescing` set returns at once. So once it is set, no flusher is working, nothing is in
//!     flight and the volume has no users, nothing more is sent to the backend. Nothing that the unmount still does has
//!     to wait for it.
//!
//! # Memory ordering
//! The barrier pair of [`slackwater_sync::InFlight`]: a flusher pins, then reads the flag; `quiesce` sets the flag,
//! then reads the count.

use slackwater_sync::gate;
use slackwater_sync::shim::atomic::Ordering;
use slackwater_sync::shim::thread;

use crate::super_block::SuperBlock;
use crate::units::Tick;

/// Counts a flusher as working on the volume until dropped (Q1).
pub(crate) struct FlusherGuard<'a>(&'a SuperBlock);

impl Drop for FlusherGuard<'_> {
    fn drop(&mut self) {
        self.0.flushers.unpin();
        self.0.wake_umount();
    }
}

impl SuperBlock {
    /// Called by a flusher before it examines the volume. `None`: it must not (Q2).
    pub(crate) fn enter_flusher(&self) -> Option<FlusherGuard<'_>> {
        self.flushers.pin();
        let guard = FlusherGuard(self);
        (!self.is_quiescing.load(Ordering::Relaxed)).then_some(guard)
    }

    /// Keeps flushers away and waits until nothing is in flight, including readahead. False if something still is at
    /// `deadline`. The caller has frozen and flushed the volume, and calls [`SuperBlock::resume_flushers`] if the
    /// volume stays.
    ///
    /// # Blocking
    /// Waits for the backend, until `deadline` at most.
    pub(crate) fn quiesce(&self, deadline: Option<Tick>) -> bool {
        self.is_quiescing.store(true, Ordering::Relaxed);
        while !self.flushers.is_drained() {
            // A thread that steps an engine by hand cannot wait for itself: another thread must be working.
            let is_late = || deadline.is_some_and(|deadline| deadline <= self.engine.clock.now());
            if !self.pause(deadline) && (self.engine.tunables.flusher_threads != 0 || is_late()) {
                return false;
            }
            thread::yield_now();
        }
        while self.syncs.load(Ordering::SeqCst) != 0 || self.in_flight.count() != 0 {
            if !self.pause(deadline) {
                return false;
            }
        }
        gate::pass("umount.quiet");
        true
    }

    /// Lets flushers work on the volume again, because it stays mounted.
    pub(crate) fn resume_flushers(&self) {
        if self.is_quiescing.swap(false, Ordering::Relaxed) {
            self.wake_wbs();
        }
    }
}

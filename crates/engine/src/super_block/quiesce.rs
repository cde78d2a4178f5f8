//! Keeping flushers away from a volume that is about to go.
//!
//! # Invariants
//! Q1. A flusher is counted in `flushers` while it is at work on the volume, from before it looks at anything: what it has
//!     chosen and not sent yet is nowhere else, if it is of an inode that nobody finds any more.
//! Q2. A flusher that finds `is_quiescing` set goes away. So once it is set, no flusher is at work, nothing is in flight and
//!     nobody uses the volume, nothing is sent to the backend any more: nothing of what an unmount still does waits for it.
//!
//! # Memory ordering
//! The barrier pair of [`slackwater_sync::InFlight`]: a flusher pins, then looks at the mark; who quiesces sets the mark, then
//! counts.

use slackwater_sync::gate;
use slackwater_sync::shim::atomic::Ordering;
use slackwater_sync::shim::thread;

use crate::super_block::SuperBlock;
use crate::units::Tick;

/// A flusher is at work on a volume, until dropped (Q1).
pub(crate) struct AtWork<'a>(&'a SuperBlock);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.flushers.unpin();
        self.0.wake_umount();
    }
}

impl SuperBlock {
    /// A flusher is about to look at the volume. `None`: there is nothing for it to do (Q2).
    pub(crate) fn begin_work(&self) -> Option<AtWork<'_>> {
        self.flushers.pin();
        let at_work = AtWork(self);
        (!self.is_quiescing.load(Ordering::Relaxed)).then_some(at_work)
    }

    /// Keeps flushers away, and waits until nothing is in flight, reads ahead among it. False if something still is at
    /// `deadline`. The caller has frozen and flushed the volume, and calls [`SuperBlock::resume_work`] if it does not go.
    ///
    /// # Blocking
    /// For the backend, until `deadline` at most.
    pub(crate) fn quiesce(&self, deadline: Option<Tick>) -> bool {
        self.is_quiescing.store(true, Ordering::Relaxed);
        while !self.flushers.is_drained() {
            // Who drives an engine by hand does not wait for itself: another thread is at work.
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

    /// The volume stays: flushers look at it again.
    pub(crate) fn resume_work(&self) {
        if self.is_quiescing.swap(false, Ordering::Relaxed) {
            self.wake_wbs();
        }
    }
}

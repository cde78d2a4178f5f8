//! Freezing: refusing changes for a while, and waiting for the thaw.

use std::time::Duration;

use slackwater_sync::gate;
use slackwater_sync::shim::atomic::Ordering;

use crate::inode::Inode;
use crate::super_block::{FROZEN, MOUNTED, SuperBlock};
use crate::units::Tick;

impl SuperBlock {
    /// Refuses changes from now on and waits for those in progress, each of which holds its inode's `rwsem` and checked
    /// the state under it. Calls `waiting` often meanwhile. False if one is still in progress at `deadline`; the caller
    /// thaws.
    ///
    /// # Blocking
    /// Waits for changes that wait for the backend, until `deadline` at most.
    pub(crate) fn freeze(&self, deadline: Option<Tick>, waiting: &dyn Fn()) -> bool {
        self.state.store(FROZEN, Ordering::SeqCst);
        for inode in self.all_inodes() {
            while self.is_being_changed(&inode) {
                waiting();
                if !self.pause(deadline) {
                    return false;
                }
            }
        }
        true
    }

    fn is_being_changed(&self, inode: &Inode) -> bool {
        // A probe is no user and does not come back. A thread that would release the inode's record meanwhile has to
        // wait for it.
        let _one = self.releasing.lock();
        let exclusive = inode.rwsem.try_write();
        gate::pass("freeze.looking");
        exclusive.is_none()
    }

    /// Waits a moment, or until something of this volume ends: for polling conditions that have no wake-up of their
    /// own. False at the deadline, and in an engine that is stepped by hand, where nothing would change.
    pub(crate) fn pause(&self, deadline: Option<Tick>) -> bool {
        const MOMENT: Duration = Duration::from_millis(5);
        let now = self.engine.clock.now();
        if deadline.is_some_and(|deadline| deadline <= now) || self.engine.tunables.flusher_threads == 0 {
            return false;
        }
        self.engine.progress.pause(deadline.map_or(MOMENT, |deadline| deadline.since(now).min(MOMENT)));
        true
    }

    /// A counter of events that freed frames or made them evictable. Read it before an attempt whose failure you want
    /// to wait out with [`SuperBlock::wait_for_progress`].
    pub fn progress_count(&self) -> u64 {
        self.engine.progress.count()
    }

    /// Waits until the counter has moved on from `seen`; false if `deadline` came first.
    ///
    /// # Blocking
    /// Until write-back progresses, or `deadline`.
    pub fn wait_for_progress(&self, seen: u64, deadline: Option<Tick>) -> bool {
        self.engine.progress.wait(seen, deadline)
    }

    /// Accepts changes again after [`SuperBlock::freeze_writes`]. An unmounted volume stays unmounted.
    pub fn thaw(&self) {
        if self.state.compare_exchange(FROZEN, MOUNTED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.engine.progress.note();
        }
    }

    /// Whether changes are refused for the time being.
    pub fn is_frozen(&self) -> bool {
        self.state.load(Ordering::Acquire) == FROZEN
    }

    /// Waits for the end of a freeze, for callers that were refused with `NotMounted` and want to wait. True if changes
    /// are accepted now; false if the volume is unmounted, or still frozen at `deadline`.
    ///
    /// # Blocking
    /// Until [`SuperBlock::thaw`], the unmount, or `deadline`.
    pub fn wait_while_frozen(&self, deadline: Option<Tick>) -> bool {
        loop {
            let seen = self.engine.progress.count();
            if !self.is_frozen() {
                return self.is_mounted();
            }
            if !self.engine.progress.wait(seen, deadline) {
                return false;
            }
        }
    }
}

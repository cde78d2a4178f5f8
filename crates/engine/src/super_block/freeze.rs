//! Refusing changes for a while, and how who is refused waits for the end of it.

use std::time::Duration;

use slackwater_sync::gate;
use slackwater_sync::shim::atomic::Ordering;

use crate::inode::Inode;
use crate::super_block::{FROZEN, MOUNTED, SuperBlock};
use crate::units::Tick;

impl SuperBlock {
    /// Refuses changes from now on, and waits for those that are running: each holds its inode's `rwsem`,
    /// under which it looked at the state. False if one still runs at `deadline`; the caller thaws.
    ///
    /// # Blocking
    /// For changes that wait for the backend, until `deadline` at most.
    pub(crate) fn freeze(&self, deadline: Option<Tick>) -> bool {
        self.state.store(FROZEN, Ordering::SeqCst);
        for inode in self.all_inodes() {
            while self.is_being_changed(&inode) {
                if !self.pause(deadline) {
                    return false;
                }
            }
        }
        true
    }

    fn is_being_changed(&self, inode: &Inode) -> bool {
        // This is no user, and does not come back: who would let go of the inode's record meanwhile waits.
        let _one = self.releasing.lock();
        let exclusive = inode.rwsem.try_write();
        gate::pass("freeze.looking");
        exclusive.is_none()
    }

    /// Waits a moment, or until something of this volume ends, for who polls what has no wake-up of its own.
    /// False at the deadline, and in an engine that is driven by hand, where nothing would change.
    pub(crate) fn pause(&self, deadline: Option<Tick>) -> bool {
        const MOMENT: Duration = Duration::from_millis(5);
        let now = self.engine.clock.now();
        if deadline.is_some_and(|deadline| deadline <= now) || self.engine.tunables.flusher_threads == 0 {
            return false;
        }
        self.engine.room.pause(deadline.map_or(MOMENT, |deadline| deadline.since(now).min(MOMENT)));
        true
    }

    /// Times that room was given so far: frames came free, or may be evicted. Read it before the attempt whose
    /// failure is to be waited for.
    pub fn room_given(&self) -> u64 {
        self.engine.room.given()
    }

    /// Waits until room was given after `seen` was read; false when `deadline` came first.
    ///
    /// # Blocking
    /// Until write-back gets on, or `deadline`.
    pub fn wait_for_room(&self, seen: u64, deadline: Option<Tick>) -> bool {
        self.engine.room.wait(seen, &*self.engine.clock, deadline)
    }

    /// Takes changes again after [`SuperBlock::freeze_writes`]. A volume that is gone stays so.
    pub fn thaw(&self) {
        if self.state.compare_exchange(FROZEN, MOUNTED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.engine.room.give();
        }
    }

    /// Whether changes are refused for a while.
    pub fn is_frozen(&self) -> bool {
        self.state.load(Ordering::Acquire) == FROZEN
    }

    /// Waits for the end of a freeze: for whoever was refused with `NotMounted` and would rather wait. True if
    /// changes are taken now; false if the volume is gone, or still frozen at `deadline`.
    ///
    /// # Blocking
    /// Until [`SuperBlock::thaw`], the end of the volume, or `deadline`.
    pub fn wait_while_frozen(&self, deadline: Option<Tick>) -> bool {
        loop {
            let seen = self.engine.room.given();
            if !self.is_frozen() {
                return self.is_mounted();
            }
            if !self.engine.room.wait(seen, &*self.engine.clock, deadline) {
                return false;
            }
        }
    }
}

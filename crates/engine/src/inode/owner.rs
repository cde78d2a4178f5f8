//! Which wb an inode belongs to, and what it has in the counts of that wb.
//!
//! An inode is given a wb when it first becomes dirty, that of its writer, and keeps it when it is clean. A *switch*
//! (`writeback::cgwb`) may give it another one at any time, with its counts.
//!
//! # Invariants
//! W1. Every change of a wb's counts is a change of `counted` of one of its inodes too, in one [`Inode::account`]. So a
//!     switch moves exactly what the inode has, and the counts of a wb are the sums of those of its inodes.
//! W2. `is_switching` is set and cleared with `Inode::state` held, and at most one switch has it. Once a grace period
//!     has passed, every `account` that had not seen it is over, and the others take the state's lock.
//! W3. The wb changes with both wbs' `LIST_LOCK`s and the state's lock held, and with `is_switching` set; the first time
//!     without, while the inode is on no list.
//! W4. An inode that was given a cgroup wb has one of its references.
//! W5. It is on a list of that wb as long as it has it, dirty or not: whoever empties a killed wb finds all its inodes.
//!
//! # Memory ordering
//! O1. `is_switching` is cleared with Release after the wb was replaced, and read with Acquire before the wb: who finds it
//!     clear finds the new wb. That who found it clear before the switch is not counting still is the grace period's
//!     doing, W2.
//!
//! # Kernel counterpart
//! `inode_attach_wb`, `unlocked_inode_to_wb_begin`; sem. 5.4. Differs: the switch moves what the inode has counted
//! instead of walking its pages, since our counts change in batches, outside the lock of the page tree.

use slackwater_sync::lock::lock_two;
use slackwater_sync::rcu::{Domain, RcuArc};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::cgroup::Memcg;
use crate::inode::Inode;
use crate::units::Tick;
use crate::writeback::{BdiWriteback, ListName, Pages};

/// See the [module documentation](self).
pub(crate) struct Owner {
    wb: RcuArc<BdiWriteback>,
    /// It was given its wb; before, it stands for the root wb.
    is_attached: AtomicBool,
    is_switching: AtomicBool,
    reclaimable: AtomicI64,
    writeback: AtomicI64,
    unstable: AtomicI64,
    dontcache_dirty: AtomicI64,
}

impl Owner {
    pub(super) fn new(domain: &Domain, root_wb: Arc<BdiWriteback>) -> Self {
        Self {
            wb: RcuArc::new(domain, root_wb),
            is_attached: AtomicBool::new(false),
            is_switching: AtomicBool::new(false),
            reclaimable: AtomicI64::new(0),
            writeback: AtomicI64::new(0),
            unstable: AtomicI64::new(0),
            dontcache_dirty: AtomicI64::new(0),
        }
    }

    fn add(&self, pages: Pages) {
        let Pages { reclaimable, writeback, unstable, dontcache_dirty } = pages;
        for (counted, pages) in [
            (&self.reclaimable, reclaimable),
            (&self.writeback, writeback),
            (&self.unstable, unstable),
            (&self.dontcache_dirty, dontcache_dirty),
        ] {
            if pages != 0 {
                counted.fetch_add(pages, Ordering::Relaxed);
            }
        }
    }

    fn counted(&self) -> Pages {
        Pages {
            reclaimable: self.reclaimable.load(Ordering::Relaxed),
            writeback: self.writeback.load(Ordering::Relaxed),
            unstable: self.unstable.load(Ordering::Relaxed),
            dontcache_dirty: self.dontcache_dirty.load(Ordering::Relaxed),
        }
    }
}

impl Inode {
    /// What it has in the counts of its wb.
    pub(crate) fn counted(&self) -> Pages {
        self.owner.counted()
    }

    fn domain(&self) -> &Domain {
        &self.super_block().engine().pool.rcu
    }

    /// The wb that writes this inode back, now.
    pub(crate) fn wb(&self) -> Arc<BdiWriteback> {
        self.owner.wb.load(self.domain())
    }

    /// The tenant whose flusher writes this inode back: the one that dirtied it first, until others write most of it.
    pub fn memcg(&self) -> Arc<Memcg> {
        Arc::clone(&self.wb().memcg)
    }

    /// Whether its wb is `wb`. Stays so while that one's lists are locked.
    pub(crate) fn belongs_to(&self, wb: &Arc<BdiWriteback>) -> bool {
        self.owner.wb.holds(wb)
    }

    /// Changes the counts of its wb, whichever that is (W1).
    pub(crate) fn account(&self, pages: Pages) {
        if pages.is_zero() {
            return;
        }
        self.with_owner(|wb| {
            self.owner.add(pages);
            wb.stat.add(pages);
            let global = &wb.pool.global;
            if pages.reclaimable != 0 {
                global.nr_dirty.add(pages.reclaimable);
            }
            if pages.writeback + pages.unstable != 0 {
                global.nr_writeback.add(pages.writeback + pages.unstable);
            }
        });
    }

    /// Runs `f` with its wb, which it keeps until `f` returns (W2). Kernel: `unlocked_inode_to_wb_begin`.
    pub(crate) fn with_owner<R>(&self, f: impl FnOnce(&BdiWriteback) -> R) -> R {
        let section = self.domain().read_lock();
        let _moving = self.owner.is_switching.load(Ordering::Acquire).then(|| self.state.lock());
        f(self.owner.wb.read(&section))
    }

    /// Gives the inode the wb of `memcg`, unless it has one. Kernel: `inode_attach_wb`.
    pub(crate) fn attach_wb(self: &Arc<Self>, memcg: &Arc<Memcg>) {
        if self.owner.is_attached.load(Ordering::Acquire) {
            return;
        }
        let wb = self.super_block().wb_get_create(memcg);
        if !self.attach_to(&wb) {
            wb.put();
        } else if wb.is_dying() {
            wb.wake(); // killed before the inode was on its list: it moves away at once, unless it becomes dirty
        }
    }

    /// W3, W5. True if the inode has the caller's reference to `wb` from here on.
    fn attach_to(self: &Arc<Self>, wb: &Arc<BdiWriteback>) -> bool {
        let root = self.super_block().root_wb();
        let (from, to) = if wb.is_root() {
            (root.lists.lock(), None)
        } else {
            let (from, to) = lock_two(&root.lists, &wb.lists);
            (from, Some(to))
        };
        let _state = self.state.lock();
        if self.owner.is_attached.load(Ordering::Relaxed) || self.is_switching() {
            return false;
        }
        // It is left to the root wb until it is clean if it waits on a list there, for its times say; or if somebody is
        // dirtying it who found it so: he has its record (N2), may have counted, and lists it later.
        if from.list_of(self).is_some() || self.slot().is_some() {
            return false;
        }
        debug_assert!(self.owner.counted().is_zero(), "nothing of it was dirty");
        if let Some(mut to) = to {
            self.owner.wb.replace(self.domain(), Arc::clone(wb));
            to.place(self, ListName::Attached, Tick::default());
        }
        self.owner.is_attached.store(true, Ordering::Release);
        true
    }

    /// Whether a switch has it. Stays so while its state is locked.
    pub(crate) fn is_switching(&self) -> bool {
        self.owner.is_switching.load(Ordering::Relaxed)
    }

    /// W2: with `state` locked.
    pub(crate) fn set_switching(&self, switching: bool) {
        self.owner.is_switching.store(switching, Ordering::Release); // O1
    }

    /// Makes `new` its wb, with all that it has counted (W3). `new` has a reference for it already, and that of the old
    /// wb is the caller's.
    pub(crate) fn move_to(&self, old: &BdiWriteback, new: &Arc<BdiWriteback>) {
        let pages = self.owner.counted();
        old.stat.add(pages.negated());
        new.stat.add(pages);
        self.owner.wb.replace(self.domain(), Arc::clone(new));
        self.owner.is_attached.store(true, Ordering::Release);
    }
}

impl Drop for Inode {
    /// Leaves its wb: the list of clean inodes does not keep it, and W4.
    fn drop(&mut self) {
        let slot = self.list_slot();
        let wb = self.owner.wb.get_mut();
        if let Some(slot) = slot {
            wb.lists.lock().forget(slot);
        }
        if *self.owner.is_attached.get_mut() {
            wb.put();
        }
    }
}

#[cfg(test)]
mod tests {
    use slackwater_arena::{Arena, ArenaConfig};

    use super::*;
    use crate::backend::{MemBackend, NewNode};
    use crate::clock::ManualClock;
    use crate::engine::Engine;
    use crate::tunables::Tunables;
    use crate::units::Timestamp;

    #[test]
    fn an_inode_that_somebody_is_dirtying_keeps_its_wb() {
        let arena = Arena::create(&ArenaConfig::memfd(1 << 20)).unwrap();
        let tunables = Tunables { flusher_threads: 0, ..Tunables::default() };
        let engine = Engine::new(arena, Arc::new(ManualClock::new(Timestamp(0))), tunables);
        let sb = engine.mount("a", Arc::new(MemBackend::new())).unwrap();
        let inode = sb.make(&sb.root().unwrap(), "x", NewNode::File, 0o644).unwrap();
        let memcg = engine.memcg_create("a", None, None);
        // Between its page and its place on a list, where another writer may meet it.
        assert_eq!(inode.ensure_slot(&inode.node().unwrap()), Some(true));
        let page = Pages { reclaimable: 1, ..Pages::default() };
        inode.account(page);
        inode.arc().attach_wb(&memcg);
        inode.account(page.negated());
        assert!(inode.memcg().is_root());
        assert_eq!(sb.root_wb().stat.sum(), Pages::default());
    }
}

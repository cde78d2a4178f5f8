//! The wb that an inode belongs to, and its share of that wb's counts.
//!
//! An inode gets the wb of its writer when it first becomes dirty, and keeps it when it is clean. A *switch*
//! (`writeback::cgwb`) may move it to another wb at any time, with its counts.
//!
//! # Invariants
//! W1. Every change of a wb's counts also changes `counted` of one of its inodes, in one [`Inode::account`]. So a
//!     switch moves exactly the inode's contribution, and the counts of a wb are the sums over its inodes.
//! W2. `is_switching` is set and cleared with `Inode::state` held, by at most one switch at a time. Once a grace period
//!     has passed, every `account` that had not seen it has ended, and later ones take the state's lock.
//! W3. The wb changes with both wbs' `LIST_LOCK`s and the state's lock held, and with `is_switching` set. The first
//!     assignment does without that flag, while the inode is on no list.
//! W4. An inode with a cgroup wb holds one of its references.
//! W5. It is on a list of that wb, dirty or clean, for as long as it belongs to it. So all inodes of a killed wb can be
//!     found.
//!
//! # Memory ordering
//! O1. `is_switching` is cleared with Release after the wb was replaced, and read with Acquire before the wb. A reader
//!     that finds it clear therefore finds the new wb. The grace period ensures that no reader that found it clear
//!     before the switch is still counting (W2).
//!
//! # Kernel counterpart
//! `inode_attach_wb`, `unlocked_inode_to_wb_begin`. Differs: the switch moves the inode's counts instead of
//! walking its pages, since our counts change in batches, outside the lock of the page tree.

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
    /// Whether the inode has been assigned a wb. Until then, `wb` is the root wb.
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
    /// The inode's share of the counts of its wb.
    pub(crate) fn counted(&self) -> Pages {
        self.owner.counted()
    }

    fn domain(&self) -> &Domain {
        &self.super_block().engine().pool.rcu
    }

    /// The wb that currently writes this inode back.
    pub(crate) fn wb(&self) -> Arc<BdiWriteback> {
        self.owner.wb.load(self.domain())
    }

    /// The tenant whose flusher writes this inode back: the one that dirtied it first, until other tenants write most
    /// of it.
    pub fn memcg(&self) -> Arc<Memcg> {
        Arc::clone(&self.wb().memcg)
    }

    /// Whether its wb is `wb`. The answer stays valid while the lists of `wb` are locked.
    pub(crate) fn belongs_to(&self, wb: &Arc<BdiWriteback>) -> bool {
        self.owner.wb.holds(wb)
    }

    /// Changes the counts of its current wb (W1).
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

    /// Runs `f` with its wb, which does not change until `f` returns (W2). Kernel: `unlocked_inode_to_wb_begin`.
    pub(crate) fn with_owner<R>(&self, f: impl FnOnce(&BdiWriteback) -> R) -> R {
        let section = self.domain().read_lock();
        let _moving = self.owner.is_switching.load(Ordering::Acquire).then(|| self.state.lock());
        f(self.owner.wb.read(&section))
    }

    /// Assigns the wb of `memcg` to the inode, unless it has one. Kernel: `inode_attach_wb`.
    pub(crate) fn attach_wb(self: &Arc<Self>, memcg: &Arc<Memcg>) {
        if self.owner.is_attached.load(Ordering::Acquire) {
            return;
        }
        let wb = self.super_block().wb_get_create(memcg);
        if !self.attach_to(&wb) {
            wb.put();
        } else if wb.is_dying() {
            wb.wake(); // killed before the inode was on its list: the inode moves away at once, unless it becomes dirty
        }
    }

    /// W3, W5. True if the inode has taken over the caller's reference to `wb`.
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
        // It stays with the root wb until it is clean if it is on a list there, for example because of its times. The
        // same holds if another thread that found it on the root wb is dirtying it: that thread holds its record (N2),
        // may have counted, and lists it later.
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

    /// Whether a switch of it is in progress. The answer stays valid while its state is locked.
    pub(crate) fn is_switching(&self) -> bool {
        self.owner.is_switching.load(Ordering::Relaxed)
    }

    /// W2: with `state` locked.
    pub(crate) fn set_switching(&self, switching: bool) {
        self.owner.is_switching.store(switching, Ordering::Release); // O1
    }

    /// Makes `new` its wb and moves its counts there (W3). `new` already has a reference for it, and the caller takes
    /// over the reference of the old wb.
    pub(crate) fn move_to(&self, old: &BdiWriteback, new: &Arc<BdiWriteback>) {
        let pages = self.owner.counted();
        old.stat.add(pages.negated());
        new.stat.add(pages);
        self.owner.wb.replace(self.domain(), Arc::clone(new));
        self.owner.is_attached.store(true, Ordering::Release);
        if let Some(slot) = self.slot() {
            self.super_block().engine().arena.set_tenant(slot, new.memcg.key()); // S2 of `record`
        }
    }
}

impl Drop for Inode {
    /// Leaves its wb: the list of clean inodes holds no reference, and W4.
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
    fn an_inode_that_is_being_dirtied_keeps_its_wb() {
        let arena = Arena::create(&ArenaConfig::memfd(1 << 20)).unwrap();
        let tunables = Tunables { flusher_threads: 0, ..Tunables::default() };
        let engine = Engine::new(arena, Arc::new(ManualClock::new(Timestamp(0))), tunables);
        let sb = engine.mount("a", Arc::new(MemBackend::new())).unwrap();
        let inode = sb.make(&sb.root().unwrap(), "x", NewNode::File, 0o644).unwrap();
        let memcg = engine.memcg_create("a", None, None);
        // The first writer is between its page and its place on a list, where another may meet it.
        assert_eq!(inode.ensure_slot(&inode.node().unwrap()), Some(true));
        let page = Pages { reclaimable: 1, ..Pages::default() };
        inode.account(page);
        inode.arc().attach_wb(&memcg);
        inode.account(page.negated());
        assert!(inode.memcg().is_root());
        assert_eq!(sb.root_wb().stat.sum(), Pages::default());
    }
}

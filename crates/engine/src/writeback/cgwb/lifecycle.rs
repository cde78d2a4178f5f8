//! Creation, lookup and release of a tenant's wb.
//!
//! # Invariants
//! L1. A bdi has at most one live wb (not killed) per tenant. Lookup is by the tenant's number, without a lock. A
//!     killed wb is not returned by it, and stays in `all` until it is released.
//! L2. Every lookup here returns a reference, which the caller must put.
//!
//! # Lock order
//! The bdi's wbs (`CGWB_TREE`), then the tenant's list (`CGROUP`).
//!
//! # Kernel counterpart
//! `wb_get_create`, `cgwb_create`, `cgwb_kill`, `cgwb_release_workfn`, `wb_shutdown`. Differs: one
//! tenant stands for both controllers, so a wb cannot have the wrong io cgroup. The tree is a table of short lists.

use slackwater_sync::lock::Mutex;
use slackwater_sync::rcu::{Domain, RcuArc};
use slackwater_sync::shim::{Arc, Weak};

use crate::cgroup::{Memcg, MemcgId};
use crate::lock_order::CGWB_TREE;
use crate::super_block::SuperBlock;
use crate::writeback::{BdiWriteback, Pages};

/// Number of lists of live wbs. Tenants are numbered consecutively, so the lists have equal lengths, and a change
/// copies only one.
const LISTS: usize = 64;

fn list_of(memcg: MemcgId) -> usize {
    (memcg.0 % LISTS as u64) as usize
}

/// Live wbs by the tenant's number. The references are weak, and `all` keeps the wbs alive. A replaced list must not
/// keep them during its grace period, because the last reference to a wb may be the last one to a backend.
type Live = Vec<(MemcgId, Weak<BdiWriteback>)>;

/// The wbs of a volume, except its root wb.
pub(crate) struct CgroupWbs {
    /// Live wbs; changed with `made` locked. Has no lists before the first wb, because most volumes have no tenants and
    /// are mounted and dropped faster that way. Kernel: `cgwb_tree`.
    live: RcuArc<Vec<RcuArc<Live>>>,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    /// Wbs that are not released. Kernel: `bdi->wb_list`.
    all: Vec<Arc<BdiWriteback>>,
    /// The volume has ended: no more wbs are created.
    is_closed: bool,
}

impl CgroupWbs {
    pub(crate) fn new(domain: &Domain) -> Self {
        Self { live: RcuArc::new(domain, Arc::default()), made: Mutex::new(CGWB_TREE, Made::default()) }
    }

    /// L1, L2. Kernel: `wb_get_lookup`.
    fn find(&self, domain: &Domain, memcg: MemcgId) -> Option<Arc<BdiWriteback>> {
        let section = domain.read_lock();
        let live = self.live.read(&section).get(list_of(memcg))?.read(&section);
        let (_, wb) = live.iter().find(|(id, _)| *id == memcg)?;
        wb.upgrade().filter(|wb| wb.tryget_live())
    }

    /// Changes the list of `memcg`, with `made` locked.
    fn change_live(&self, domain: &Domain, memcg: MemcgId, change: impl FnOnce(&mut Live)) {
        let mut lists = self.live.load(domain);
        if lists.is_empty() {
            let none = Arc::<Live>::default();
            lists = Arc::new((0..LISTS).map(|_| RcuArc::new(domain, Arc::clone(&none))).collect());
            self.live.replace(domain, Arc::clone(&lists));
        }
        let list = &lists[list_of(memcg)];
        let mut changed = Live::clone(&list.load(domain));
        change(&mut changed);
        list.replace(domain, Arc::new(changed));
    }

    fn remove_live(&self, domain: &Domain, wb: &Arc<BdiWriteback>) {
        let _made = self.made.lock();
        self.change_live(domain, wb.memcg.id(), |live| live.retain(|(_, other)| other.as_ptr() != Arc::as_ptr(wb)));
    }
}

impl SuperBlock {
    /// All wbs of the volume, the root wb first.
    pub(crate) fn wbs(&self) -> Vec<Arc<BdiWriteback>> {
        let mut wbs = Vec::new();
        self.for_each_wb(|wb| wbs.push(Arc::clone(wb)));
        wbs
    }

    /// Runs `f` on all wbs of the volume, the root wb first, under a lock of the volume.
    pub(crate) fn for_each_wb(&self, mut f: impl FnMut(&Arc<BdiWriteback>)) {
        f(self.root_wb());
        self.cgroup_wbs.made.lock().all.iter().for_each(f);
    }

    /// The number of wbs of the volume: the root wb, and one for each tenant that still has inodes here.
    pub fn wbs_alive(&self) -> usize {
        1 + self.cgroup_wbs.made.lock().all.len()
    }

    /// The sum of the counts of all wbs.
    pub(crate) fn pages(&self) -> Pages {
        let mut pages = Pages::default();
        self.for_each_wb(|wb| pages = pages.plus(wb.stat.sum()));
        pages
    }

    /// Makes a flusher run every wb.
    pub(crate) fn wake_wbs(&self) {
        self.for_each_wb(BdiWriteback::wake);
    }

    /// The wb of `memcg`, or of its nearest ancestor that still accepts inodes (L2). Kernel: `wb_get_create`.
    pub(crate) fn wb_get_create(self: &Arc<Self>, memcg: &Arc<Memcg>) -> Arc<BdiWriteback> {
        let mut memcg = Some(memcg);
        while let Some(candidate) = memcg.filter(|memcg| !memcg.is_root()) {
            if let Some(wb) = self.wb_of(candidate) {
                return wb;
            }
            memcg = candidate.parent();
        }
        Arc::clone(self.root_wb())
    }

    fn wb_of(self: &Arc<Self>, memcg: &Arc<Memcg>) -> Option<Arc<BdiWriteback>> {
        let (wbs, domain) = (&self.cgroup_wbs, &*self.engine().pool.rcu);
        if let Some(wb) = wbs.find(domain, memcg.id()) {
            return Some(wb);
        }
        if !memcg.is_online() {
            return None; // `add_wb` would refuse it
        }
        let wb = BdiWriteback::for_memcg(self, memcg);
        let mut made = wbs.made.lock();
        if let Some(wb) = wbs.find(domain, memcg.id()) {
            return Some(wb); // another thread was faster
        }
        if made.is_closed || !memcg.add_wb(&wb) {
            return None;
        }
        wb.get();
        made.all.push(Arc::clone(&wb));
        wbs.change_live(domain, memcg.id(), |live| live.push((memcg.id(), Arc::downgrade(&wb))));
        Some(wb)
    }

    /// Kills and forgets the wbs of a volume that has ended, even if references to them remain.
    pub(crate) fn close_wbs(&self) {
        let all = {
            let mut made = self.cgroup_wbs.made.lock();
            made.is_closed = true;
            std::mem::take(&mut made.all)
        };
        for wb in &all {
            wb.memcg.remove_wb(wb);
            let _ = wb.kill_ref();
            wb.abandon();
        }
        self.root_wb().abandon();
    }
}

impl BdiWriteback {
    /// Called when the tenant is going offline and no longer has a list of wbs (T3 of `cgroup`). Lookups no longer
    /// return this wb. Existing references remain valid until they are put.
    pub(crate) fn kill(self: &Arc<Self>) {
        if let Some(sb) = self.super_block() {
            sb.cgroup_wbs.remove_live(&self.pool.rcu, self);
        }
        if self.kill_ref() {
            tracing::trace!(target: "slackwater::writeback", memcg = %self.memcg.id(), "cgwb_kill");
            self.wake(); // the flusher moves its clean inodes away
        }
    }

    /// Called when the last reference has been put: no inode belongs to the wb and nothing on it is dirty.
    pub(in crate::writeback) fn release(self: &Arc<Self>, sb: &SuperBlock) {
        debug_assert_eq!(self.stat.sum(), Pages::default(), "W1: no inode, no counts");
        sb.cgroup_wbs.made.lock().all.retain(|other| !Arc::ptr_eq(other, self));
        self.abandon();
    }
}

#[cfg(test)]
mod tests {
    use slackwater_arena::{Arena, ArenaConfig};

    use super::*;
    use crate::backend::{MemBackend, NewNode};
    use crate::clock::ManualClock;
    use crate::engine::Engine;
    use crate::file::File;
    use crate::filemap::{WaitFor, WriteRequest};
    use crate::tunables::Tunables;
    use crate::units::Timestamp;
    use crate::writeback::commit;

    fn engine() -> (Engine, Arc<SuperBlock>) {
        let arena = Arena::create(&ArenaConfig::memfd(1 << 20)).unwrap();
        let tunables = Tunables { flusher_threads: 0, ..Tunables::default() };
        let engine = Engine::new(arena, Arc::new(ManualClock::new(Timestamp(0))), tunables);
        let sb = engine.mount("a", Arc::new(MemBackend::new())).unwrap();
        (engine, sb)
    }

    /// A second attempt to lock the volume's wbs would panic on the lock order.
    #[test]
    fn balance_dirty_pages_runs_without_the_lock_of_all_wbs() {
        let (engine, sb) = engine();
        let memcg = engine.memcg_create("a", None, None);
        let inode = sb.make(&sb.root().unwrap(), "x", NewNode::File, 0o644).unwrap();
        let file = File::open_for(&inode, &memcg).unwrap();
        let _ = file.write(WriteRequest::at(0).wait(WaitFor::Backend), b"dirty").unwrap();
        let locked = sb.cgroup_wbs.made.lock();
        let pause = file.balance_dirty_pages(file.memcg());
        drop(locked);
        assert_eq!(pause, crate::throttle::Pause::None);
    }

    #[test]
    fn a_unit_ends_without_the_lock_of_all_wbs() {
        let (engine, sb) = engine();
        let inode = sb.make(&sb.root().unwrap(), "x", NewNode::File, 0o644).unwrap();
        let locked = sb.cgroup_wbs.made.lock();
        commit::note_unit_unstable(inode.arc(), commit::failures_of(&inode));
        drop(locked);
        drop((inode, engine));
    }
}

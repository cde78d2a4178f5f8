//! How the wb of a tenant comes to be, and how it goes.
//!
//! # Invariants
//! L1. A bdi has at most one wb of a tenant that is not killed. It is found by the tenant's number, without a lock; a
//!     killed one is not given any more, and is in `all` until it is released.
//! L2. Whoever gets a wb here gets one of its references.
//!
//! # Lock order
//! The bdi's wbs (`CGWB_TREE`), then the tenant's list (`CGROUP`).
//!
//! # Kernel counterpart
//! `wb_get_create`, `cgwb_create`, `cgwb_kill`, `cgwb_release_workfn`, `wb_shutdown`; sem. 1.7, 1.8. Differs: one tenant
//! stands for both controllers, so a wb cannot have the wrong io cgroup; the tree is a table of short lists.

use slackwater_sync::lock::Mutex;
use slackwater_sync::rcu::{Domain, RcuArc};
use slackwater_sync::shim::{Arc, Weak};

use crate::cgroup::{Memcg, MemcgId};
use crate::lock_order::CGWB_TREE;
use crate::super_block::SuperBlock;
use crate::writeback::{BdiWriteback, Pages};

/// Lists of live wbs. Tenants are numbered one after the other, so all are of one length, and a change copies one of them.
const LISTS: usize = 64;

fn list_of(memcg: MemcgId) -> usize {
    (memcg.0 % LISTS as u64) as usize
}

/// By the tenant's number. `all` keeps them alive, so that a replaced list does not for its grace period: whoever has the last
/// reference to a wb may have it to a backend.
type Live = Vec<(MemcgId, Weak<BdiWriteback>)>;

/// The wbs of a volume, other than its root wb.
pub(crate) struct CgroupWbs {
    /// Those that are not killed; changed with `made` locked. Without lists until there is one: most volumes have no
    /// tenants, and are mounted and dropped that much faster. Kernel: `cgwb_tree`.
    live: RcuArc<Vec<RcuArc<Live>>>,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    /// Those that are not released. Kernel: `bdi->wb_list`.
    all: Vec<Arc<BdiWriteback>>,
    /// The volume is gone: none is made.
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

    /// How many wbs the volume has: one, and one for each tenant of which inodes are left here.
    pub fn wbs_alive(&self) -> usize {
        1 + self.cgroup_wbs.made.lock().all.len()
    }

    /// The counts of all wbs together.
    pub(crate) fn pages(&self) -> Pages {
        let mut pages = Pages::default();
        self.for_each_wb(|wb| pages = pages.plus(wb.stat.sum()));
        pages
    }

    /// Has a flusher look at every wb.
    pub(crate) fn wake_wbs(&self) {
        self.for_each_wb(BdiWriteback::wake);
    }

    /// The wb of `memcg`, or of the nearest tenant above it that still takes one (L2). Kernel: `wb_get_create`.
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
            return None; // as `add_wb` would say
        }
        let wb = BdiWriteback::for_memcg(self, memcg);
        let mut made = wbs.made.lock();
        if let Some(wb) = wbs.find(domain, memcg.id()) {
            return Some(wb); // somebody else was faster
        }
        if made.is_closed || !memcg.add_wb(&wb) {
            return None;
        }
        wb.get();
        made.all.push(Arc::clone(&wb));
        wbs.change_live(domain, memcg.id(), |live| live.push((memcg.id(), Arc::downgrade(&wb))));
        Some(wb)
    }

    /// The volume is gone: its wbs are killed and forgotten, whoever still has a reference.
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
    /// Its tenant is going offline, and has no list of wbs any more (T3 of `cgroup`). Nobody gets it by looking for it from
    /// here on. Those who have it keep it until they put it.
    pub(crate) fn kill(self: &Arc<Self>) {
        if let Some(sb) = self.super_block() {
            sb.cgroup_wbs.remove_live(&self.pool.rcu, self);
        }
        if self.kill_ref() {
            tracing::trace!(target: "slackwater::writeback", memcg = %self.memcg.id(), "cgwb_kill");
            self.wake(); // its clean inodes are to move away
        }
    }

    /// Its last reference was put: no inode has it and nothing of it is dirty.
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

    /// Whoever took the lock of the volume's wbs a second time would be refused.
    #[test]
    fn a_writer_is_asked_to_wait_without_the_lock_of_all_wbs() {
        let (engine, sb) = engine();
        let memcg = engine.memcg_create("a", None, None);
        let inode = sb.make(&sb.root().unwrap(), "x", NewNode::File, 0o644).unwrap();
        let file = File::open_for(&inode, &memcg).unwrap();
        let _ = file.try_write_at(0, b"dirty").unwrap();
        let locked = sb.cgroup_wbs.made.lock();
        let pause = file.balance_dirty_pages();
        drop(locked);
        assert_eq!(pause, crate::throttle::Pause::None);
    }

    #[test]
    fn a_unit_ends_without_the_lock_of_all_wbs() {
        let (engine, sb) = engine();
        let inode = sb.make(&sb.root().unwrap(), "x", NewNode::File, 0o644).unwrap();
        let locked = sb.cgroup_wbs.made.lock();
        commit::unit_left_unstable(inode.arc(), commit::failures_of(&inode));
        drop(locked);
        drop((inode, engine));
    }
}

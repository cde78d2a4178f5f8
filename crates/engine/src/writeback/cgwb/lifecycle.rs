//! How the wb of a tenant comes to be, and how it goes.
//!
//! # Invariants
//! L1. A bdi has at most one wb of a tenant that is not killed. It is found by the tenant's number in the bdi's tree; a
//!     killed one is not found there any more, but in `all` until it is released.
//! L2. Whoever gets a wb here gets one of its references.
//!
//! # Lock order
//! The bdi's tree (`CGWB_TREE`), then the tenant's list (`CGROUP`).
//!
//! # Kernel counterpart
//! `wb_get_create`, `cgwb_create`, `cgwb_kill`, `cgwb_release_workfn`, `wb_shutdown`; sem. 1.7, 1.8. Differs: one tenant
//! stands for both controllers, so a wb cannot have the wrong io cgroup.

use std::collections::HashMap;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;

use crate::cgroup::{Memcg, MemcgId};
use crate::lock_order::CGWB_TREE;
use crate::super_block::SuperBlock;
use crate::writeback::{BdiWriteback, Pages};

/// The wbs of a volume, other than its root wb.
pub(crate) struct CgroupWbs(Mutex<Tree>);

#[derive(Default)]
struct Tree {
    /// Those that are not killed. Kernel: `cgwb_tree`.
    live: HashMap<MemcgId, Arc<BdiWriteback>>,
    /// Those that are not released. Kernel: `bdi->wb_list`.
    all: Vec<Arc<BdiWriteback>>,
    /// The volume is gone: none is made.
    is_closed: bool,
}

impl CgroupWbs {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(CGWB_TREE, Tree::default()))
    }

    fn all(&self) -> Vec<Arc<BdiWriteback>> {
        self.0.lock().all.clone()
    }

    fn remove_live(&self, wb: &Arc<BdiWriteback>) {
        let mut tree = self.0.lock();
        if tree.live.get(&wb.memcg.id()).is_some_and(|live| Arc::ptr_eq(live, wb)) {
            tree.live.remove(&wb.memcg.id());
        }
    }
}

impl SuperBlock {
    /// All wbs of the volume, the root wb first.
    pub(crate) fn wbs(&self) -> Vec<Arc<BdiWriteback>> {
        let mut wbs = vec![Arc::clone(self.root_wb())];
        wbs.extend(self.cgroup_wbs.all());
        wbs
    }

    /// How many wbs the volume has: one, and one for each tenant of which inodes are left here.
    pub fn wbs_alive(&self) -> usize {
        self.wbs().len()
    }

    /// The counts of all wbs together.
    pub(crate) fn pages(&self) -> Pages {
        self.wbs().iter().fold(Pages::default(), |sum, wb| sum.plus(wb.stat.sum()))
    }

    /// Has a flusher look at every wb.
    pub(crate) fn wake_wbs(&self) {
        self.wbs().iter().for_each(BdiWriteback::wake);
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
        let found = |tree: &Tree| tree.live.get(&memcg.id()).filter(|wb| wb.tryget_live()).cloned();
        if let Some(wb) = found(&self.cgroup_wbs.0.lock()) {
            return Some(wb);
        }
        if !memcg.is_online() {
            return None; // as `add_wb` would say
        }
        let made = BdiWriteback::for_memcg(self, memcg);
        let mut tree = self.cgroup_wbs.0.lock();
        if let Some(wb) = found(&tree) {
            drop(tree);
            return Some(wb); // somebody else was faster
        }
        if tree.is_closed || !memcg.add_wb(&made) {
            return None;
        }
        made.get();
        tree.live.insert(memcg.id(), Arc::clone(&made));
        tree.all.push(Arc::clone(&made));
        Some(made)
    }

    /// The volume is gone: its wbs are killed and forgotten, whoever still has a reference.
    pub(crate) fn close_wbs(&self) {
        let all = {
            let mut tree = self.cgroup_wbs.0.lock();
            tree.is_closed = true;
            tree.live.clear();
            std::mem::take(&mut tree.all)
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
    /// Its tenant is going offline, and has no list of wbs any more (T3 of `cgroup`). Nobody gets it by looking for it. Those who have it keep it until they put it.
    pub(crate) fn kill(self: &Arc<Self>) {
        if let Some(sb) = self.super_block() {
            sb.cgroup_wbs.remove_live(self);
        }
        if self.kill_ref() {
            tracing::trace!(target: "slackwater::writeback", memcg = %self.memcg.id(), "cgwb_kill");
            self.wake(); // its clean inodes are to move away
        }
    }

    /// Its last reference was put: no inode has it and nothing of it is dirty.
    pub(in crate::writeback) fn release(self: &Arc<Self>, sb: &SuperBlock) {
        debug_assert_eq!(self.stat.sum(), Pages::default(), "W1: no inode, no counts");
        sb.cgroup_wbs.0.lock().all.retain(|other| !Arc::ptr_eq(other, self));
        self.abandon();
    }
}

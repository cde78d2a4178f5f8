//! The table of tenants: the root, and those created since, by their slots.
//!
//! # Kernel counterpart
//! `css_idr` of the memory controller.

use std::collections::VecDeque;

use slackwater_sync::lock::RwLock;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::cgroup::{Memcg, MemcgId, MemcgState};
use crate::lock_order::LEAVES;
use crate::throttle::DirtyRatios;
use crate::tunables::Tunables;
use crate::wait::Progress;

struct Table {
    slots: Vec<Option<Arc<Memcg>>>,
    free: Vec<u32>,
    /// Tenants that went offline and have to be checked again.
    offline: VecDeque<u32>,
    last_id: u64,
}

/// Offline tenants checked for each tenant created, so that their number shrinks.
const CHECKED_PER_ADD: usize = 4;

impl Table {
    /// Checks up to `count` offline tenants, in the order in which they went offline.
    fn release_unused(&mut self, count: usize) {
        for _ in 0..count.min(self.offline.len()) {
            let Some(slot) = self.offline.pop_front() else { return };
            let Some(memcg) = &self.slots[slot as usize] else { continue };
            // Everything that may still charge it, and its wbs, hold references. No new reference comes from a slot
            // without charges.
            if memcg.charged_pages.load(Ordering::Acquire) == 0 && Arc::strong_count(memcg) == 1 {
                memcg.state.store(MemcgState::Released as u8, Ordering::Release);
                self.slots[slot as usize] = None;
                self.free.push(slot);
            } else {
                self.offline.push_back(slot);
            }
        }
    }
}

/// See the [module documentation](self).
pub(crate) struct Tenants {
    table: RwLock<Table>,
    root: Arc<Memcg>,
    ratios: DirtyRatios,
    progress: Arc<Progress>,
}

impl Tenants {
    /// `progress`: where writers of all tenants wait for frames.
    pub(crate) fn new(tunables: &Tunables, progress: Arc<Progress>) -> Self {
        let ratios = DirtyRatios::of(tunables);
        let root = Memcg::new(MemcgId::ROOT, 0, "root", None, None, ratios, &progress);
        let table =
            Table { slots: vec![Some(Arc::clone(&root))], free: Vec::new(), offline: VecDeque::new(), last_id: 0 };
        Self { table: RwLock::new(LEAVES, table), root, ratios, progress }
    }

    pub(crate) fn root(&self) -> &Arc<Memcg> {
        &self.root
    }

    /// Creates a tenant. Only [`FrameOwners::add_tenant`](crate::cgroup::FrameOwners::add_tenant) calls it (O2).
    pub(super) fn add(&self, name: &str, parent: Option<Arc<Memcg>>, limit_bytes: Option<u64>) -> Arc<Memcg> {
        let mut table = self.table.write();
        table.release_unused(CHECKED_PER_ADD);
        table.last_id += 1;
        let id = MemcgId(table.last_id);
        let slot = table.free.pop().unwrap_or_else(|| {
            table.slots.push(None);
            (table.slots.len() - 1) as u32
        });
        let memcg = Memcg::new(id, slot, name, parent, limit_bytes, self.ratios, &self.progress);
        table.slots[slot as usize] = Some(Arc::clone(&memcg));
        memcg
    }

    /// All tenants that are not released, the root first.
    pub(crate) fn all(&self) -> Vec<Arc<Memcg>> {
        self.table.read().slots.iter().flatten().cloned().collect()
    }

    pub(crate) fn at(&self, slot: u32) -> Option<Arc<Memcg>> {
        self.table.read().slots.get(slot as usize).cloned().flatten()
    }

    /// Records that `memcg` went offline. Its slot is freed once it is unused (T2).
    pub(crate) fn note_offline(&self, memcg: &Memcg) {
        self.table.write().offline.push_back(memcg.slot);
    }

    /// Frees the slots of all offline tenants that have nothing left.
    pub(crate) fn release_unused(&self) {
        let mut table = self.table.write();
        let all = table.offline.len();
        table.release_unused(all);
    }
}

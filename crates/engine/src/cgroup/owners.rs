//! The tenant that each frame is charged to, and the table of tenants.
//!
//! # Invariants
//! O1. The owner of a frame changes only under the lock of its leaf, or while no other thread knows the frame. It is
//!     set when the page becomes unclean or another tenant writes to it, and read when the page becomes clean.
//! O2. Until the first tenant is created, all frames belong to the root and owners are not looked up.
//!
//! # Memory ordering
//! None beyond the leaf's lock. A thread that charges a tenant has got it from [`FrameOwners::add`], which has set
//! `is_used`. A thread that finds a frame of that tenant has taken the lock of its leaf after it.

use std::collections::VecDeque;

use slackwater_arena::{FrameId, prefetch_line};
use slackwater_sync::lock::RwLock;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU32, Ordering};

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
pub(crate) struct FrameOwners {
    owners: Box<[AtomicU32]>,
    /// O2.
    is_used: AtomicBool,
    table: RwLock<Table>,
    root: Arc<Memcg>,
    ratios: DirtyRatios,
    progress: Arc<Progress>,
}

impl FrameOwners {
    /// `progress`: where writers of all tenants wait for frames.
    pub(crate) fn new(frames: u32, tunables: &Tunables, progress: Arc<Progress>) -> Self {
        let ratios = DirtyRatios::of(tunables);
        let root = Memcg::new(MemcgId::ROOT, 0, "root", None, None, ratios, &progress);
        let table =
            Table { slots: vec![Some(Arc::clone(&root))], free: Vec::new(), offline: VecDeque::new(), last_id: 0 };
        Self {
            owners: (0..frames).map(|_| AtomicU32::new(0)).collect(),
            is_used: AtomicBool::new(false),
            table: RwLock::new(LEAVES, table),
            root,
            ratios,
            progress,
        }
    }

    pub(crate) fn root(&self) -> &Arc<Memcg> {
        &self.root
    }

    pub(crate) fn add(&self, name: &str, parent: Option<Arc<Memcg>>, limit_bytes: Option<u64>) -> Arc<Memcg> {
        let mut table = self.table.write();
        table.release_unused(CHECKED_PER_ADD);
        self.is_used.store(true, Ordering::Relaxed);
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

    #[inline]
    fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Prefetches the owner of the frame with this number, if there is one.
    #[inline]
    pub(crate) fn prefetch(&self, number: u32) {
        if self.is_used()
            && let Some(owner) = self.owners.get(number as usize)
        {
            prefetch_line(owner);
        }
    }

    /// The slot of the frame's owner.
    #[inline]
    pub(crate) fn of(&self, frame: FrameId) -> u32 {
        self.owners[frame.as_u32() as usize].load(Ordering::Relaxed)
    }

    /// Charges `frame`, which can no longer be dropped, to `memcg`.
    #[inline]
    pub(crate) fn charge(&self, frame: FrameId, memcg: &Memcg) {
        if self.is_used() {
            self.owners[frame.as_u32() as usize].store(memcg.slot, Ordering::Relaxed);
            memcg.charge(1);
        }
    }

    /// Moves a charge when `memcg` writes to a page whose frame `old` is charged to another tenant. From now on `memcg`
    /// is charged for `new`, which may be the same frame, and no tenant for `old`.
    #[inline]
    pub(crate) fn take_over(&self, old: FrameId, new: FrameId, memcg: &Memcg) {
        if !self.is_used() {
            return;
        }
        if self.of(old) != memcg.slot {
            self.uncharge(old);
            self.charge(new, memcg);
        } else if new != old {
            self.owners[new.as_u32() as usize].store(memcg.slot, Ordering::Relaxed);
        }
    }

    fn uncharge(&self, frame: FrameId) {
        let mut uncharges = Uncharges::new(self);
        uncharges.add(frame);
    }
}

/// Frames that can be dropped again, batched into one change per tenant. Dropping the batch uncharges them.
pub(crate) struct Uncharges<'a> {
    owners: &'a FrameOwners,
    slot: u32,
    pages: i64,
}

impl<'a> Uncharges<'a> {
    pub(crate) fn new(owners: &'a FrameOwners) -> Self {
        Self { owners, slot: 0, pages: 0 }
    }

    pub(crate) fn add(&mut self, frame: FrameId) {
        if !self.owners.is_used() {
            return;
        }
        let slot = self.owners.of(frame);
        if slot != self.slot {
            self.settle();
            self.slot = slot;
        }
        self.pages += 1;
    }

    fn settle(&mut self) {
        let pages = std::mem::take(&mut self.pages);
        if pages == 0 || self.slot == 0 {
            return;
        }
        let Some(memcg) = self.owners.at(self.slot) else { unreachable!("T2: a charged tenant has its slot") };
        memcg.uncharge(pages);
    }
}

impl Drop for Uncharges<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}

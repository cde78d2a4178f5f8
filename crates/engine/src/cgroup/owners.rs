//! The tenant that each frame is charged to.
//!
//! # Invariants
//! O1. The owner of a frame changes only under the lock of its leaf, or while no other thread knows the frame. It is
//!     set when the page becomes unclean or another tenant writes to it, and read when the page becomes clean.
//! O2. Until the first tenant is created, all frames belong to the root and owners are not looked up.
//!
//! # Memory ordering
//! None beyond the leaf's lock. A thread that charges a tenant has got it from [`FrameOwners::add_tenant`], which has
//! set `is_used`. A thread that finds a frame of that tenant has taken the lock of its leaf after it.

use slackwater_arena::{FrameId, prefetch_line};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU32, Ordering};
use slackwater_sync::zeroed_slice;

use crate::cgroup::{Memcg, Tenants};

/// See the [module documentation](self).
pub(crate) struct FrameOwners {
    owners: Box<[AtomicU32]>,
    /// O2.
    is_used: AtomicBool,
    tenants: Arc<Tenants>,
}

impl FrameOwners {
    /// All of `frames` frames belong to the root of `tenants`.
    pub(crate) fn new(frames: u32, tenants: Arc<Tenants>) -> Self {
        Self { owners: zeroed_slice(frames as usize), is_used: AtomicBool::new(false), tenants }
    }

    /// Creates a tenant. From now on, frames are charged (O2).
    pub(crate) fn add_tenant(&self, name: &str, parent: Option<Arc<Memcg>>, limit_bytes: Option<u64>) -> Arc<Memcg> {
        self.is_used.store(true, Ordering::Relaxed);
        self.tenants.add(name, parent, limit_bytes)
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
        let Some(memcg) = self.owners.tenants.at(self.slot) else { unreachable!("T2: a charged tenant has its slot") };
        memcg.uncharge(pages);
    }
}

impl Drop for Uncharges<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}

//! A mount: a volume at a place, the references to it, and the slot that holds both.
//!
//! # Invariants
//! M1. Slots are added and reused, but freed only with the namespace. So a reference to a mount needs nothing else to
//!     keep it alive, and two threads that look up one path write to no common word.
//! M2. A slot is reused a grace period after the last reference to its mount was dropped. By then, every lookup has
//!     ended that found the mount before it was detached and has not verified it.
//!
//! # Kernel counterpart
//! `struct mount`, `struct vfsmount`.

use std::path::PathBuf;

use slackwater_sync::SeqRefs;
use slackwater_sync::rcu::{Domain, RcuArc};
use slackwater_sync::shim::atomic::{AtomicU32, Ordering};
use slackwater_sync::shim::{Arc, OnceLock};

use crate::super_block::SuperBlock;

/// Identity of a mount; never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MountId(pub(super) u64);

/// See the [module documentation](self).
pub(super) struct Mount {
    pub(super) id: MountId,
    pub(super) slot: u32,
    /// The mount below; `None` for the root.
    parent: Option<Arc<Mount>>,
    /// The place, from the root of that mount.
    pub(super) at: PathBuf,
    /// The volume; `None` for the root, which has only mounts.
    pub(super) sb: Option<Arc<SuperBlock>>,
    /// The number of mounts on it; changes with the namespace's locks held.
    children: AtomicU32,
}

impl Mount {
    pub(super) fn root() -> Self {
        Self { id: MountId(0), slot: 0, parent: None, at: PathBuf::new(), sb: None, children: AtomicU32::new(0) }
    }

    pub(super) fn new(id: MountId, slot: u32, parent: Arc<Mount>, at: PathBuf, sb: Arc<SuperBlock>) -> Self {
        Self { id, slot, parent: Some(parent), at, sb: Some(sb), children: AtomicU32::new(0) }
    }

    /// The mount below.
    pub(super) fn on(&self) -> MountId {
        self.parent.as_ref().map_or(self.id, |parent| parent.id)
    }

    pub(super) fn parent(&self) -> Option<&Arc<Mount>> {
        self.parent.as_ref()
    }

    /// The path from the root of the namespace.
    pub(super) fn path(&self) -> PathBuf {
        match &self.parent {
            Some(parent) => parent.path().join(&self.at),
            None => "/".into(),
        }
    }

    /// The chain of mounts below it.
    pub(super) fn depth(&self) -> usize {
        self.parent.as_ref().map_or(0, |parent| 1 + parent.depth())
    }

    /// Whether it is mounted on `other`, or on a mount that is.
    pub(super) fn is_below(&self, other: &Mount) -> bool {
        self.parent.as_ref().is_some_and(|parent| parent.id == other.id || parent.is_below(other))
    }

    /// The number of mounts on it.
    pub(super) fn children(&self) -> u32 {
        self.children.load(Ordering::Relaxed)
    }

    /// Counts one mount more or less on it, with the namespace's locks held.
    pub(super) fn add_children(&self, more: u32, less: u32) {
        self.children.store(self.children() + more - less, Ordering::Relaxed);
    }
}

/// The references to a mount, and the mount.
pub(super) struct Slot {
    pub(super) refs: SeqRefs,
    pub(super) mount: RcuArc<Mount>,
}

/// All slots, in chunks of which each is twice as long as the one before (M1).
pub(super) struct Slots {
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
}

const FIRST_CHUNK: usize = 64;
/// Enough for 2^30 mounts.
const CHUNKS: usize = 24;

impl Slots {
    pub(super) fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// The chunk, and the place in it.
    fn place_of(slot: u32) -> (usize, usize) {
        let nth = slot as usize / FIRST_CHUNK + 1;
        let chunk = nth.ilog2() as usize;
        (chunk, slot as usize - FIRST_CHUNK * ((1 << chunk) - 1))
    }

    /// A slot that was added.
    pub(super) fn at(&self, slot: u32) -> &Slot {
        let (chunk, place) = Self::place_of(slot);
        match self.chunks[chunk].get() {
            Some(slots) => &slots[place],
            None => unreachable!("only slots that were added are known"),
        }
    }

    /// Makes sure that the slot with this number exists. `root` is its content until it gets a mount.
    pub(super) fn add(&self, slot: u32, domain: &Domain, root: &Arc<Mount>) {
        let (chunk, _) = Self::place_of(slot);
        let new = || Slot { refs: SeqRefs::new(), mount: RcuArc::new(domain, Arc::clone(root)) };
        let _ = self.chunks[chunk].get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| new()).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_one_another() {
        let mut last = (0, 0);
        for slot in 1..100_000 {
            let place = Slots::place_of(slot);
            let is_next =
                place == (last.0, last.1 + 1) || (place == (last.0 + 1, 0) && last.1 + 1 == FIRST_CHUNK << last.0);
            assert!(is_next, "{slot}: {last:?} {place:?}");
            last = place;
        }
        assert!(Slots::place_of(1 << 29).0 < CHUNKS);
    }
}

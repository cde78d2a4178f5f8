//! A mount: a volume at a place, the references to it, and the slot that both are in.
//!
//! # Invariants
//! M1. Slots are added, used again, and freed only with the namespace: who has a reference to a mount needs nothing else to
//!     keep it, and two threads that look up one path change no word in common.
//! M2. A slot is used again a grace period after the last reference to its mount was put: a lookup that found the mount
//!     before it was detached, and is not sure of it, is over by then.
//!
//! # Kernel counterpart
//! `struct mount`, `struct vfsmount`.

use std::path::PathBuf;

use slackwater_sync::SeqRefs;
use slackwater_sync::rcu::{Domain, RcuArc};
use slackwater_sync::shim::atomic::{AtomicU32, Ordering};
use slackwater_sync::shim::{Arc, OnceLock};

use crate::super_block::SuperBlock;

/// Which mount; never used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MountId(pub(super) u64);

/// See the [module documentation](self).
pub(super) struct Mount {
    pub(super) id: MountId,
    pub(super) slot: u32,
    /// On which other; on none, for the root.
    parent: Option<Arc<Mount>>,
    /// Where, from that one's root on.
    pub(super) at: PathBuf,
    /// `None`: the root, on which there is nothing but mounts.
    pub(super) sb: Option<Arc<SuperBlock>>,
    /// How many are on it; changes with the namespace's locks held.
    children: AtomicU32,
}

impl Mount {
    pub(super) fn root() -> Self {
        Self { id: MountId(0), slot: 0, parent: None, at: PathBuf::new(), sb: None, children: AtomicU32::new(0) }
    }

    pub(super) fn new(id: MountId, slot: u32, parent: Arc<Mount>, at: PathBuf, sb: Arc<SuperBlock>) -> Self {
        Self { id, slot, parent: Some(parent), at, sb: Some(sb), children: AtomicU32::new(0) }
    }

    /// Which mount it is on.
    pub(super) fn on(&self) -> MountId {
        self.parent.as_ref().map_or(self.id, |parent| parent.id)
    }

    pub(super) fn parent(&self) -> Option<&Arc<Mount>> {
        self.parent.as_ref()
    }

    /// From the root of the namespace on.
    pub(super) fn path(&self) -> PathBuf {
        match &self.parent {
            Some(parent) => parent.path().join(&self.at),
            None => "/".into(),
        }
    }

    /// Mounts that it is on, one on the other.
    pub(super) fn depth(&self) -> usize {
        self.parent.as_ref().map_or(0, |parent| 1 + parent.depth())
    }

    /// Whether it is on `other`, or on one that is.
    pub(super) fn is_below(&self, other: &Mount) -> bool {
        self.parent.as_ref().is_some_and(|parent| parent.id == other.id || parent.is_below(other))
    }

    /// How many mounts are on it.
    pub(super) fn children(&self) -> u32 {
        self.children.load(Ordering::Relaxed)
    }

    /// One more is on it, or one less, with the namespace's locks held.
    pub(super) fn add_children(&self, more: u32, less: u32) {
        self.children.store(self.children() + more - less, Ordering::Relaxed);
    }
}

/// The references to a mount, and which it is.
pub(super) struct Slot {
    pub(super) refs: SeqRefs,
    pub(super) mount: RcuArc<Mount>,
}

/// All slots: chunks of them, each twice as long as the one before (M1).
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

    /// Chunk and place in it.
    fn place_of(slot: u32) -> (usize, usize) {
        let nth = slot as usize / FIRST_CHUNK + 1;
        let chunk = nth.ilog2() as usize;
        (chunk, slot as usize - FIRST_CHUNK * ((1 << chunk) - 1))
    }

    /// A slot that has been added.
    pub(super) fn at(&self, slot: u32) -> &Slot {
        let (chunk, place) = Self::place_of(slot);
        match self.chunks[chunk].get() {
            Some(slots) => &slots[place],
            None => unreachable!("only slots that were added are known"),
        }
    }

    /// Makes sure that there is a slot of this number. `root`: what is in it until a mount is.
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

//! The volumes with inodes in the arena.
//!
//! # Invariants
//! V1. A record is written completely before it is LIVE, and its id does not change until it is FREE. The slot is taken in the
//!     heap first and freed there last. A crash in between leaves it free or in use.

use crate::arena::Arena;
use crate::ids::{VolumeId, VolumeSlot};
use crate::record::{FREE, LIVE};

/// The data that the arena keeps for a volume.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct VolumeRecord {
    /// The label by which the engine finds its backend again.
    pub id: VolumeId,
}

impl Arena {
    /// Takes a volume slot. `None` if all are in use. After the return it survives the process.
    #[must_use]
    pub fn alloc_volume(&self, record: &VolumeRecord) -> Option<VolumeSlot> {
        let slot = self.volume_slots.alloc()?;
        let entry = &self.mapping().volumes()[slot as usize];
        entry.id.set(&record.id);
        entry.failing_since_ns.set(0);
        entry.check.set(entry.sum(slot));
        entry.state.set(LIVE); // V1
        Some(VolumeSlot::new(slot))
    }

    /// Frees a volume slot. The caller has freed all inode slots that name it. After a crash, one that is left would be
    /// damage.
    ///
    /// # Panics
    /// If it is free already.
    pub fn free_volume(&self, slot: VolumeSlot) {
        self.mapping().volumes()[slot.index()].state.set(FREE);
        self.volume_slots.free(slot.as_u32());
    }

    /// A copy of a volume's record.
    #[must_use]
    pub fn volume(&self, slot: VolumeSlot) -> VolumeRecord {
        VolumeRecord { id: self.mapping().volumes()[slot.index()].id.get() }
    }

    /// Since when the attempts to write back fail: a time that [`set_failing_since_ns`](Self::set_failing_since_ns) has stored,
    /// in this process or an earlier one. 0 if the latest attempt succeeded, or if that is unknown.
    pub fn failing_since_ns(&self, slot: VolumeSlot) -> u64 {
        self.mapping().volumes()[slot.index()].failing_since_ns.get()
    }

    /// Stores since when the attempts to write back fail, on a clock that processes share.
    pub fn set_failing_since_ns(&self, slot: VolumeSlot, since_ns: u64) {
        self.mapping().volumes()[slot.index()].failing_since_ns.set(since_ns);
    }

    /// The volumes in use, by slot.
    pub fn volumes(&self) -> impl Iterator<Item = (VolumeSlot, VolumeRecord)> + '_ {
        let slots = (0..self.mapping().layout().counts.volumes).map(VolumeSlot::new);
        slots
            .filter(|slot| self.mapping().volumes()[slot.index()].state.get() == LIVE)
            .filter(|slot| !self.set_aside().volumes.contains(&slot.as_u32()))
            .map(|slot| (slot, self.volume(slot)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use crate::{Arena, ArenaConfig, VolumeId, VolumeRecord};

    fn record(name: &str) -> VolumeRecord {
        VolumeRecord { id: VolumeId::new(name.as_bytes()).unwrap() }
    }

    #[test]
    fn slots_are_listed_while_in_use_and_run_out() {
        let arena = Arena::create(&ArenaConfig::memfd(1 << 20).with_volumes(2)).unwrap();
        let first = arena.alloc_volume(&record("first")).unwrap();
        let second = arena.alloc_volume(&record(&"x".repeat(128))).unwrap();
        assert_eq!(arena.alloc_volume(&record("third")), None);
        assert_eq!(arena.volumes().collect::<Vec<_>>(), [(first, record("first")), (second, record(&"x".repeat(128)))]);
        arena.free_volume(first);
        assert_eq!(arena.volumes().map(|(slot, _)| slot).collect::<Vec<_>>(), [second]);
        arena.set_failing_since_ns(second, 7);
        arena.set_failing_since_ns(first, 8);
        assert_eq!(arena.alloc_volume(&record("third")), Some(first));
        assert_eq!((arena.failing_since_ns(first), arena.failing_since_ns(second)), (0, 7));
    }
}

//! The inode records: the data needed to write the pages of a file back after a crash.
//!
//! # Invariants
//! I1. A record is written completely before it is LIVE. Identity and handle do not change until it is FREE and are
//!     covered by the check word. They name the file by handle, never by path, since a rename must not redirect data to
//!     another file.
//! I2. Size, time, owner, mode and flags are single words: a crash leaves the old value or the new one.
//! I3. `SourceStamp::changing_since_ns` is published last when it is cleared, and after `changing_until_ns` when it is
//!     set: a crash never leaves an old stamp that claims to be unchanged since.
//! I4. Whether a call is unanswered is part of the word `changing_until_ns`. Programs that do not know that wrote the start
//!     of the last call there, which counts as unanswered but for one in a million.

use crate::arena::Arena;
use crate::ids::{FileHandleBytes, InodeSlot, VolumeSlot};
use crate::record::{FREE, LIVE};

/// The state of the backend's file when the engine last knew it. After a crash, it shows whether another program has
/// changed the file.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Default)]
pub struct SourceStamp {
    /// The size of the file.
    pub size_bytes: u64,
    /// The mtime of the file, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Start of the first of the engine's calls whose outcome is not in the stamp, nanoseconds since 1970. 0: there is
    /// none.
    pub changing_since_ns: i64,
    /// The time of the last answer, if all of these calls were answered; it is rounded up. Otherwise the start of the last
    /// of them.
    pub changing_until_ns: i64,
}

/// The time of an answer is a multiple of this (I4).
const ANSWERED_NS: i64 = 1 << 20;

impl SourceStamp {
    /// Whether every call of the engine was answered by `changing_until_ns`. One that was not may have changed the file
    /// at any later time.
    #[must_use]
    pub fn all_answered(&self) -> bool {
        self.changing_until_ns % ANSWERED_NS == 0
    }
}

/// The data that the arena keeps for an inode.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct InodeRecord {
    /// The volume it belongs to.
    pub volume: VolumeSlot,
    /// Device number in the backend.
    pub dev: u64,
    /// Inode number in the backend.
    pub ino: u64,
    /// Distinguishes a reused inode number from its earlier use.
    pub generation: u64,
    /// The handle by which the backend opens the file again.
    pub handle: FileHandleBytes,
    /// File size as acknowledged to its writers.
    pub size_bytes: u64,
    /// Last change of the data, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// The last known state in the backend.
    pub source: SourceStamp,
    /// File type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Flags of the engine, which the arena only stores: 8 bits.
    pub flags: u32,
    /// When the inode became dirty, by a clock of the engine, which the arena only stores: 24 bits. 0: unknown.
    pub dirtied: u32,
    /// The tenant that its data is charged to, by a number of the engine. 0: none.
    pub tenant: u64,
}

impl InodeRecord {
    /// A record with all fields zero except its volume.
    #[must_use]
    pub fn new(volume: VolumeSlot) -> Self {
        Self {
            volume,
            dev: 0,
            ino: 0,
            generation: 0,
            handle: FileHandleBytes::EMPTY,
            size_bytes: 0,
            mtime_ns: 0,
            source: SourceStamp::default(),
            mode: 0,
            uid: 0,
            gid: 0,
            flags: 0,
            dirtied: 0,
            tenant: 0,
        }
    }
}

impl Arena {
    /// Takes an inode slot. `None` if all are in use. After the return it survives the process.
    ///
    /// # Panics
    /// If the volume slot is not in use.
    #[must_use]
    pub fn alloc_inode(&self, record: &InodeRecord) -> Option<InodeSlot> {
        let volume = &self.mapping().volumes()[record.volume.index()];
        assert!(volume.state.get() == LIVE, "{:?} is not in use", record.volume);
        let slot = self.filled_until(|| self.inode_slots.alloc())?;
        let entry = &self.mapping().inodes()[slot as usize];
        entry.volume.set(record.volume.as_u32());
        entry.dev.set(record.dev);
        entry.ino.set(record.ino);
        entry.generation.set(record.generation);
        entry.handle.set(&record.handle);
        entry.check.set(entry.sum(slot));
        entry.size_bytes.set(record.size_bytes);
        entry.mtime_ns.set(record.mtime_ns.cast_unsigned());
        entry.source_size_bytes.set(record.source.size_bytes);
        entry.source_mtime_ns.set(record.source.mtime_ns.cast_unsigned());
        entry.source_changing_until_ns.set(record.source.changing_until_ns.cast_unsigned());
        entry.source_changing_since_ns.set(record.source.changing_since_ns.cast_unsigned());
        entry.owner.set(owner(record.uid, record.gid));
        entry.mode.set(record.mode);
        entry.set_flags(record.flags);
        entry.set_dirtied(record.dirtied);
        entry.set_tenant(slot, record.tenant);
        entry.state.set(LIVE); // I1
        Some(InodeSlot::new(slot))
    }

    /// The slot with that number, if the table has it: the inverse of [`InodeSlot::as_u32`].
    #[must_use]
    pub fn inode_slot(&self, number: u32) -> Option<InodeSlot> {
        ((number as usize) < self.mapping().inodes().len()).then(|| InodeSlot::new(number))
    }

    /// Frees an inode slot. The caller has cleaned or freed all frames that name it. After a crash, a DIRTY one that is
    /// left would be damage.
    ///
    /// # Panics
    /// If it is free already.
    pub fn free_inode(&self, slot: InodeSlot) {
        self.mapping().inodes()[slot.index()].state.set(FREE);
        self.inode_slots.free(slot.as_u32());
    }

    /// A copy of an inode's record. Each field is consistent in itself; one field may be from before a change and
    /// another from after it.
    #[must_use]
    pub fn inode(&self, slot: InodeSlot) -> InodeRecord {
        let entry = &self.mapping().inodes()[slot.index()];
        let owner = entry.owner.get();
        InodeRecord {
            volume: VolumeSlot::new(entry.volume.get()),
            dev: entry.dev.get(),
            ino: entry.ino.get(),
            generation: entry.generation.get(),
            handle: entry.handle.get(),
            size_bytes: entry.size_bytes.get(),
            mtime_ns: entry.mtime_ns.get().cast_signed(),
            source: SourceStamp {
                size_bytes: entry.source_size_bytes.get(),
                mtime_ns: entry.source_mtime_ns.get().cast_signed(),
                changing_since_ns: entry.source_changing_since_ns.get().cast_signed(),
                changing_until_ns: entry.source_changing_until_ns.get().cast_signed(),
            },
            mode: entry.mode.get(),
            uid: owner as u32,
            gid: (owner >> 32) as u32,
            flags: entry.flags(),
            dirtied: entry.dirtied(),
            tenant: entry.tenant(slot.as_u32()),
        }
    }

    /// Sets the file size (I2).
    pub fn set_size(&self, slot: InodeSlot, size_bytes: u64) {
        self.mapping().inodes()[slot.index()].size_bytes.set(size_bytes);
    }

    /// Sets the time of the last data change (I2).
    pub fn set_mtime_ns(&self, slot: InodeSlot, mtime_ns: i64) {
        self.mapping().inodes()[slot.index()].mtime_ns.set(mtime_ns.cast_unsigned());
    }

    /// Sets the state in the backend, which includes every call of the engine (I3).
    pub fn set_source(&self, slot: InodeSlot, size_bytes: u64, mtime_ns: i64) {
        let entry = &self.mapping().inodes()[slot.index()];
        entry.source_size_bytes.set(size_bytes);
        entry.source_mtime_ns.set(mtime_ns.cast_unsigned());
        entry.source_changing_since_ns.publish(0);
    }

    /// Records that a call of the engine that may change the file in the backend begins at `now_ns`, which is not 0
    /// (I3). The caller lets no other thread set the stamp meanwhile.
    pub fn set_source_changing(&self, slot: InodeSlot, now_ns: i64) {
        let entry = &self.mapping().inodes()[slot.index()];
        entry.source_changing_until_ns.set((now_ns | 1).cast_unsigned());
        if entry.source_changing_since_ns.get() == 0 {
            entry.source_changing_since_ns.publish(now_ns.cast_unsigned());
        }
    }

    /// Records that every call of the engine has been answered at `now_ns`. The caller lets no other thread set the stamp
    /// meanwhile.
    pub fn set_source_answered(&self, slot: InodeSlot, now_ns: i64) {
        let until_ns = (now_ns / ANSWERED_NS + 1).saturating_mul(ANSWERED_NS);
        self.mapping().inodes()[slot.index()].source_changing_until_ns.set(until_ns.cast_unsigned());
    }

    /// Sets file type and permissions (I2).
    pub fn set_mode(&self, slot: InodeSlot, mode: u32) {
        self.mapping().inodes()[slot.index()].mode.set(mode);
    }

    /// Sets owner and group, both or neither (I2).
    pub fn set_owner(&self, slot: InodeSlot, uid: u32, gid: u32) {
        self.mapping().inodes()[slot.index()].owner.set(owner(uid, gid));
    }

    /// Sets the engine's flags (I2).
    pub fn set_flags(&self, slot: InodeSlot, flags: u32) {
        self.mapping().inodes()[slot.index()].set_flags(flags);
    }

    /// When the inode became dirty; see [`InodeRecord::dirtied`].
    #[must_use]
    pub fn dirtied(&self, slot: InodeSlot) -> u32 {
        self.mapping().inodes()[slot.index()].dirtied()
    }

    /// Sets when the inode became dirty (I2).
    pub fn set_dirtied(&self, slot: InodeSlot, dirtied: u32) {
        self.mapping().inodes()[slot.index()].set_dirtied(dirtied);
    }

    /// Sets the tenant. The caller lets no other thread set it meanwhile.
    pub fn set_tenant(&self, slot: InodeSlot, tenant: u64) {
        self.mapping().inodes()[slot.index()].set_tenant(slot.as_u32(), tenant);
    }

    /// The number of free inode slots. Calls in flight may or may not be counted.
    #[must_use]
    pub fn free_inodes(&self) -> u64 {
        // In this order: slots move from the first to the second count.
        u64::from(self.filling().inodes()) + self.inode_slots.free_count()
    }
}

fn owner(uid: u32, gid: u32) -> u64 {
    u64::from(gid) << 32 | u64::from(uid)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use super::{InodeRecord, SourceStamp};
    use crate::{Arena, ArenaConfig, FileHandleBytes, VolumeId, VolumeRecord};

    #[test]
    fn a_record_is_read_back_as_stored_and_changed() {
        let arena = Arena::create(&ArenaConfig::memfd(1 << 20).with_inodes(1)).unwrap();
        let volume = arena.alloc_volume(&VolumeRecord { id: VolumeId::EMPTY }).unwrap();
        let mut record = InodeRecord {
            volume,
            dev: 1,
            ino: u64::MAX,
            generation: 2,
            handle: FileHandleBytes::new(&[9; 128]).unwrap(),
            size_bytes: 3,
            mtime_ns: -4,
            source: SourceStamp { size_bytes: 11, mtime_ns: -12, changing_since_ns: 0, changing_until_ns: 13 },
            mode: 0o100_644,
            uid: 5,
            gid: u32::MAX,
            flags: 6,
            dirtied: 7,
            tenant: u64::MAX,
        };
        let slot = arena.alloc_inode(&record).unwrap();
        assert_eq!(arena.inode(slot), record);
        assert_eq!((arena.alloc_inode(&record), arena.free_inodes()), (None, 0));
        (record.size_bytes, record.mtime_ns) = (u64::MAX, 7);
        (record.mode, record.uid, record.gid, record.flags) = (8, u32::MAX, 9, 10);
        arena.set_size(slot, u64::MAX);
        arena.set_mtime_ns(slot, 7);
        arena.set_mode(slot, 8);
        arena.set_owner(slot, u32::MAX, 9);
        arena.set_flags(slot, 10);
        assert_eq!(arena.dirtied(slot), 7, "flags and time share a word");
        record.dirtied = (1 << 24) - 1;
        arena.set_dirtied(slot, record.dirtied);
        for tenant in [7, 0, 8] {
            arena.set_tenant(slot, tenant);
            assert_eq!(arena.inode(slot).tenant, tenant);
        }
        record.tenant = 8;
        assert_eq!(arena.inode(slot), record);
        for (now_ns, until_ns) in [(21, 21), (super::ANSWERED_NS, super::ANSWERED_NS + 1)] {
            arena.set_source_changing(slot, now_ns);
            (record.source.changing_since_ns, record.source.changing_until_ns) = (21, until_ns);
            assert_eq!(arena.inode(slot), record);
            assert!(!record.source.all_answered());
        }
        arena.set_source_answered(slot, super::ANSWERED_NS + 1);
        record.source.changing_until_ns = 2 * super::ANSWERED_NS;
        assert_eq!(arena.inode(slot), record);
        assert!(record.source.all_answered());
        arena.set_source(slot, 31, i64::MIN);
        (record.source.size_bytes, record.source.mtime_ns, record.source.changing_since_ns) = (31, i64::MIN, 0);
        assert_eq!(arena.inode(slot), record);
        arena.free_inode(slot);
        assert_eq!(arena.alloc_inode(&InodeRecord::new(volume)), Some(slot));
        assert_eq!(arena.inode(slot), InodeRecord::new(volume));
    }

    /// A program that does not know tenants sets every field but these. The words are zero in its records, or those of an
    /// earlier record in the slot.
    #[test]
    fn a_record_of_a_program_without_tenants_has_none() {
        let arena = Arena::create(&ArenaConfig::memfd(1 << 20).with_inodes(1)).unwrap();
        let volume = arena.alloc_volume(&VolumeRecord { id: VolumeId::EMPTY }).unwrap();
        let slot = arena.alloc_inode(&InodeRecord { tenant: 9, ..InodeRecord::new(volume) }).unwrap();
        let entry = &arena.mapping().inodes()[slot.index()];
        entry.ino.set(1);
        entry.check.set(entry.sum(slot.as_u32()));
        assert_eq!(arena.inode(slot), InodeRecord { ino: 1, ..InodeRecord::new(volume) });
        entry.set_tenant(slot.as_u32(), 0);
        assert_eq!(arena.inode(slot).tenant, 0);
    }
}

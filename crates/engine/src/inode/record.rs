//! The inode's record in the arena, from which a later process recovers after this one is killed.
//!
//! # Invariants
//! S1. The record's stamp describes the durable state of the backend's file at a moment when none of our calls was in
//!     progress, or says that a call may have changed it since. The latter is cleared only with the inode lock held and
//!     if no call has begun since (K2). A call takes the lock after it was counted, so if both happen, the call comes
//!     last. In the same way it says whether all of these calls have been answered.
//! S2. The record's tenant is that of the inode's wb. Both are read and changed with the state locked.
//! S3. A record is marked nameless only by the volume that removed the last name. So a file that is missing on the
//!     backend without that mark was removed by another program.
//! S4. The record has the time since when some data of the inode is not durable. It is set once: when the data is durable,
//!     the record ends. Data that became dirty later may therefore count as older than it is, but none as younger.

use slackwater_arena::{InodeRecord, InodeSlot, ShortBytes, SourceStamp};
use slackwater_sync::shim::atomic::Ordering;

use super::reported::Change;
use super::{Inode, InodeState, NO_SLOT};
use crate::backend::Node;
use crate::page_cache::Mark;
use crate::units::{Tick, Timestamp};

/// Flag of a record in the arena: an unmount discarded its data.
pub(crate) const DOOMED: u32 = 1;
/// Flag of a record in the arena: its file has no name, because we removed it or created the file without one (S3).
pub(crate) const NAMELESS: u32 = 2;
/// Flag of a record in the arena: we are removing its last name, or have just done so.
pub(crate) const REMOVING: u32 = 4;

/// The unit of the time in a record (S4). With the 24 bits that it has, it repeats after 48 days.
const DIRTIED_UNIT_NS: u64 = 250_000_000;
const DIRTIED_MASK: u32 = (1 << 24) - 1;

/// "Since for ever": nothing is known about earlier changes.
const EVER_NS: i64 = 1;

impl Inode {
    /// Records the size with which the file is recovered after a crash.
    pub(crate) fn record_size(&self, size_bytes: u64) {
        if let Some(slot) = self.slot() {
            self.sb.engine().arena.set_size(slot, size_bytes);
        }
    }

    /// Marks the record's data as deliberately discarded, so that it is not recovered.
    pub(crate) fn record_doom(&self) {
        if let Some(slot) = self.slot() {
            self.sb.engine().arena.set_flags(slot, DOOMED);
        }
    }

    /// Records whether the file still has a name, after one of our calls added or removed one.
    pub(crate) fn record_names(&self, nlink: u32) {
        let mut state = self.state.lock();
        state.nameless = nlink == 0;
        if let Some(slot) = self.slot() {
            let arena = &self.sb.engine().arena;
            let others = arena.inode(slot).flags & !(NAMELESS | REMOVING);
            arena.set_flags(slot, others | if state.nameless { NAMELESS } else { 0 });
        }
        let hold = self.release_hold(&mut state);
        drop(state);
        drop(hold);
    }

    /// Records that the last name is about to be removed, or that it stays.
    pub(crate) fn record_removing(&self, is_removing: bool) {
        let _names = self.state.lock();
        if let Some(slot) = self.slot() {
            let arena = &self.sb.engine().arena;
            let others = arena.inode(slot).flags & !REMOVING;
            arena.set_flags(slot, others | if is_removing { REMOVING } else { 0 });
        }
    }

    /// Records since when the inode is dirty (S4).
    pub(crate) fn record_dirtied(&self, when: Tick) {
        let arena = &self.sb.engine().arena;
        if let Some(slot) = self.slot().filter(|slot| arena.dirtied(*slot) == 0) {
            // 0 is no time: one unit too young.
            arena.set_dirtied(slot, ((when.0 / DIRTIED_UNIT_NS) as u32 & DIRTIED_MASK).max(1));
        }
    }

    /// Counts one of our calls that may change data or times of the file, before it is submitted (S1).
    pub(crate) fn begin_change(&self) -> Change {
        let change = self.changes.begin();
        if let Some(slot) = self.slot() {
            let now = self.sb.engine().clock.wall();
            let _stamp = self.state.lock();
            self.sb.engine().arena.set_source_changing(slot, now.0.max(EVER_NS));
        }
        change
    }

    /// Records that all of our calls have been answered, if they have (S1). Called after one was counted as ended.
    pub(super) fn record_answered(&self) {
        let now = self.sb.engine().clock.wall();
        let _stamp = self.state.lock();
        if let (Some(slot), true) = (self.slot(), self.changes.quiet().is_some()) {
            self.sb.engine().arena.set_source_answered(slot, now.0.max(EVER_NS));
        }
    }

    /// Records the backend's answer, if it includes every call of ours (S1) and all of it is durable. A backend that
    /// crashes may revert to the earlier state.
    pub(crate) fn record_reported(&self, state: &InodeState) {
        let reported = state.reported.settled().filter(|reported| self.changes.is_still(reported.2));
        let is_durable = self.mapping.count(Mark::Writeback) + self.mapping.count(Mark::Unstable) == 0;
        if let (Some((size_bytes, mtime, _)), Some(slot), true) = (reported, self.slot(), is_durable) {
            self.sb.engine().arena.set_source(slot, size_bytes, mtime.0);
        }
    }

    fn stamp(&self, state: &InodeState) -> SourceStamp {
        let now = self.sb.engine().clock.wall();
        match state.reported.settled() {
            Some((size_bytes, Timestamp(mtime_ns), quiet)) if self.changes.is_still(quiet) => {
                SourceStamp { size_bytes, mtime_ns, ..SourceStamp::default() }
            }
            _ => SourceStamp {
                changing_since_ns: EVER_NS,
                changing_until_ns: now.0.max(EVER_NS) | 1, // perhaps not answered
                ..SourceStamp::default()
            },
        }
    }

    /// The record in the arena that this inode's dirty frames name.
    pub(crate) fn slot(&self) -> Option<InodeSlot> {
        match self.slot.load(Ordering::Acquire) {
            NO_SLOT => None,
            number => self.sb.engine().arena.inode_slot(number),
        }
    }

    /// A copy of the handle for the record.
    fn short_handle(&self) -> ShortBytes {
        ShortBytes::new(self.handle.as_bytes()).unwrap_or_else(|| unreachable!("both are at most 128 bytes"))
    }

    /// Takes a record in the arena unless the inode has one. `Some(true)`: it is new; `None`: the table is full.
    ///
    /// `node` is the inode's and stays open from here on. It may have been released since the caller opened it. The
    /// caller holds `rwsem`: [`Inode::release_if_clean`] frees the record only with it held for writing.
    pub(crate) fn ensure_slot(&self, node: &Node) -> Option<bool> {
        let mut state = self.state.lock();
        if self.slot.load(Ordering::Acquire) != NO_SLOT {
            return Some(false);
        }
        let record = InodeRecord {
            volume: self.sb.volume_slot(),
            dev: self.id.dev,
            ino: self.id.ino,
            generation: self.id.generation,
            handle: self.short_handle(),
            size_bytes: self.size_bytes(),
            mtime_ns: self.mtime().0,
            source: self.stamp(&state),
            mode: state.attr.mode,
            uid: state.attr.uid,
            gid: state.attr.gid,
            flags: if state.nameless { NAMELESS } else { 0 },
            dirtied: 0,
            tenant: self.memcg().key(),
        };
        let slot = self.sb.engine().arena.alloc_inode(&record)?;
        self.slot.store(slot.as_u32(), Ordering::Release);
        if self.changes.quiet().is_some() {
            self.sb.engine().arena.set_source_answered(slot, self.sb.engine().clock.wall().0.max(EVER_NS));
        }
        state.node.get_or_insert_with(|| node.clone());
        Some(true)
    }

    /// Adopts the record of an inode that was recovered from the arena. `node` stays open from here on.
    pub(crate) fn adopt_slot(&self, slot: InodeSlot, node: &Node) {
        let mut state = self.state.lock();
        self.slot.store(slot.as_u32(), Ordering::Release);
        state.node.get_or_insert_with(|| node.clone());
        self.sb.engine().arena.set_tenant(slot, self.memcg().key());
        self.record_reported(&state);
    }
}

/// The time in a record, on the clock whose time is `now`. `now` itself if the record has none, or one in the future: an
/// earlier program made it, or the clock is another one.
pub(crate) fn dirtied_at(dirtied: u32, now: Tick) -> Tick {
    let now_units = now.0 / DIRTIED_UNIT_NS;
    let age = (now_units as u32).wrapping_sub(dirtied) & DIRTIED_MASK;
    if dirtied == 0 || age > DIRTIED_MASK / 2 {
        return now;
    }
    Tick(now_units.saturating_sub(age.into()) * DIRTIED_UNIT_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_in_a_record_is_never_later_than_it_was() {
        const SECOND: u64 = 1_000_000_000;
        for now in [Tick(100 * SECOND), Tick((u64::from(DIRTIED_MASK) + 3) * DIRTIED_UNIT_NS + 7)] {
            for age in [0, 1, SECOND / 8, SECOND, 90 * SECOND] {
                let when = Tick(now.0 - age);
                let dirtied = (when.0 / DIRTIED_UNIT_NS) as u32 & DIRTIED_MASK;
                let found = dirtied_at(dirtied, now);
                assert!(found <= when || dirtied == 0, "{now:?} {age}: {found:?}");
                assert!(found.0 + 2 * DIRTIED_UNIT_NS > when.0, "{now:?} {age}: {found:?}");
            }
        }
    }

    #[test]
    fn a_record_without_a_time_or_of_another_clock_is_young() {
        let now = Tick(1 << 40);
        assert_eq!([0, (now.0 / DIRTIED_UNIT_NS) as u32 + 9].map(|dirtied| dirtied_at(dirtied, now)), [now; 2]);
    }
}

//! The inode's record in the arena: what a killed process leaves to the next one.
//!
//! # Invariants
//! S1. The record's stamp says what the backend's file durably was at a moment at which no call of ours ran, or that one
//!     may have changed it since. It is cleared of that with the inode lock held and no call begun since (K2); a call
//!     takes the lock after it was counted. So of the two the call is last.
//! S2. A record is marked nameless by the volume that removed the last name, and only then: a file that is gone from the
//!     backend without it was removed by somebody else.

use slackwater_arena::{InodeRecord, InodeSlot, ShortBytes, SourceStamp};
use slackwater_sync::shim::atomic::Ordering;

use super::told::Change;
use super::{Inode, InodeState, NO_SLOT};
use crate::backend::Node;
use crate::page_cache::Mark;
use crate::units::Timestamp;

/// Flag of a record in the arena: its data was discarded by an unmount.
pub(crate) const DOOMED: u32 = 1;
/// Flag of a record in the arena: its file has no name, by our own doing (S2).
pub(crate) const NAMELESS: u32 = 2;

/// Since the beginning of time: what was there before is not known.
const EVER_NS: i64 = 1;

impl Inode {
    /// The size with which a killed process is recovered.
    pub(crate) fn record_size(&self, size_bytes: u64) {
        if let Some(slot) = self.slot() {
            self.sb.engine().arena.set_size(slot, size_bytes);
        }
    }

    /// Marks the record as one whose data was thrown away on purpose: nobody is to recover it.
    pub(crate) fn record_doom(&self) {
        if let Some(slot) = self.slot() {
            self.sb.engine().arena.set_flags(slot, DOOMED);
        }
    }

    /// Notes whether its file has a name, after a call of ours that gave or took one.
    pub(crate) fn record_names(&self, nlink: u32) {
        let mut state = self.state.lock();
        state.nameless = nlink == 0;
        if let Some(slot) = self.slot() {
            let arena = &self.sb.engine().arena;
            let others = arena.inode(slot).flags & !NAMELESS;
            arena.set_flags(slot, others | if state.nameless { NAMELESS } else { 0 });
        }
        let hold = self.give_hold_back(&mut state);
        drop(state);
        drop(hold);
    }

    /// Counts a call of ours that may change data or times of the file, before it is submitted (S1).
    pub(crate) fn begin_change(&self) -> Change {
        let change = self.changes.begin();
        if let Some(slot) = self.slot() {
            let now = self.sb.engine().clock.wall();
            let _stamp = self.state.lock();
            self.sb.engine().arena.set_source_changing(slot, now.0.max(EVER_NS));
        }
        change
    }

    /// Records what the backend has told, if that has every call of ours in it (S1) and all of it is durable: a backend
    /// that crashes may go back to what it was before.
    pub(crate) fn record_told(&self, state: &InodeState) {
        let told = state.told.settled().filter(|told| self.changes.is_still(told.2));
        let is_durable = self.mapping.count(Mark::Writeback) + self.mapping.count(Mark::Unstable) == 0;
        if let (Some((size_bytes, mtime, _)), Some(slot), true) = (told, self.slot(), is_durable) {
            self.sb.engine().arena.set_source(slot, size_bytes, mtime.0);
        }
    }

    fn stamp(&self, state: &InodeState) -> SourceStamp {
        let now = self.sb.engine().clock.wall();
        match state.told.settled() {
            Some((size_bytes, Timestamp(mtime_ns), quiet)) if self.changes.is_still(quiet) => {
                SourceStamp { size_bytes, mtime_ns, ..SourceStamp::default() }
            }
            _ => SourceStamp {
                changing_since_ns: EVER_NS,
                changing_until_ns: now.0.max(EVER_NS),
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

    /// The record's copy of the handle.
    fn short_handle(&self) -> ShortBytes {
        ShortBytes::new(self.handle.as_bytes()).unwrap_or_else(|| unreachable!("both are at most 128 bytes"))
    }

    /// Takes a record in the arena if there is none yet. `Some(true)`: it is new; `None`: the table is full.
    ///
    /// `node` is the inode's: from here on it stays open. It may have been let go since the caller had it opened.
    /// The caller holds `rwsem`: [`Inode::release_if_clean`] gives the record back only with it held for
    /// writing.
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
        };
        let slot = self.sb.engine().arena.alloc_inode(&record)?;
        self.slot.store(slot.as_u32(), Ordering::Release);
        state.node.get_or_insert_with(|| node.clone());
        Some(true)
    }

    /// Adopts the record of an inode that survived in the arena. `node` stays open from here on.
    pub(crate) fn adopt_slot(&self, slot: InodeSlot, node: &Node) {
        let mut state = self.state.lock();
        self.slot.store(slot.as_u32(), Ordering::Release);
        state.node.get_or_insert_with(|| node.clone());
        self.record_told(&state);
    }
}

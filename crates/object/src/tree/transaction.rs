//! Changes that are not in the store yet.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use crate::format::{FooterEntry, Key, SegmentId};
use crate::tree::counters::Counters;
use crate::tree::view::Effects;

/// Memory that a change takes beside its value.
const CHANGE_BYTES: usize = 96;

/// Keys with their new values; `None` removes the key.
pub(crate) type Changes = BTreeMap<Key, Option<Bytes>>;

/// The changes of the calls between two commits.
pub(crate) struct Transaction {
    /// The counters with all its calls; `commit` and `writer_epoch` are those of the commit that will store it.
    pub(super) counters: Counters,
    pub(super) changes: Changes,
    /// By how much the live bytes of segments change.
    pub(super) live: HashMap<SegmentId, i64>,
    pub(super) pack: Pack,
    /// When its first call came, by the monotonic clock.
    pub(super) began_ms: Option<u64>,
    /// Calls that changed something.
    pub(super) calls: u64,
    /// About the memory that it takes.
    pub(super) bytes: usize,
}

impl Transaction {
    /// The transaction after the state `before`.
    pub(super) fn new(before: &Counters, writer_epoch: u64, pack: SegmentId) -> Self {
        let counters = Counters { commit: before.commit + 1, writer_epoch, ..*before };
        Self {
            counters,
            changes: Changes::new(),
            live: HashMap::new(),
            pack: Pack { segment: pack, pieces: Vec::new(), len: 0 },
            began_ms: None,
            calls: 0,
            bytes: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls == 0
    }

    /// Adds what a call did.
    pub(super) fn apply(&mut self, effects: Effects, now_ms: u64) {
        self.began_ms.get_or_insert(now_ms);
        self.calls += 1;
        for (key, value) in effects.changes {
            self.bytes += CHANGE_BYTES + value.as_ref().map_or(0, Bytes::len);
            if let Some(Some(old)) = self.changes.insert(key, value) {
                self.bytes -= old.len();
            }
        }
        for (segment, bytes) in effects.live {
            *self.live.entry(segment).or_default() += bytes;
        }
        for piece in effects.small {
            self.bytes += piece.bytes.len();
            self.pack.push(piece);
        }
        self.counters.next_ino += effects.new_inos;
        self.counters.inodes = self.counters.inodes.saturating_add_signed(effects.inodes);
        self.counters.data_bytes = self.counters.data_bytes.saturating_add_signed(effects.data_bytes);
    }
}

/// Small writes, whose bytes are in memory until the commit stores them as a segment.
pub(crate) struct Pack {
    pub(super) segment: SegmentId,
    /// The pieces, one after the other, by their offsets.
    pieces: Vec<(u32, Piece)>,
    len: u32,
}

/// A small write.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// The file and offset of the bytes, for the footer of the segment. Its offset in the segment is set by the pack.
    pub(crate) origin: FooterEntry,
    pub(crate) bytes: Bytes,
}

impl Pack {
    /// The pack's length, which is the offset of the next piece.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    fn push(&mut self, mut piece: Piece) {
        piece.origin.segment_offset_bytes = self.len;
        let at = self.len;
        self.len += piece.bytes.len() as u32;
        self.pieces.push((at, piece));
    }

    /// Bytes of one piece; `None` if the range is not in one.
    pub(super) fn read(&self, offset: u32, len: u32) -> Option<Bytes> {
        let index = self.pieces.partition_point(|(at, _)| *at <= offset).checked_sub(1)?;
        let (at, piece) = &self.pieces[index];
        let first = (offset - at) as usize;
        let end = first.checked_add(len as usize)?;
        (end <= piece.bytes.len()).then(|| piece.bytes.slice(first..end))
    }

    /// The pack's pieces in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().map(|(_, piece)| piece)
    }
}

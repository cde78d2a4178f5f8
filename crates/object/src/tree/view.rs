//! The tree as one call sees it, and the changes of the call.

use bytes::Bytes;
use slackwater::{BackendError, ErrorKind, Timestamp};

use crate::format::{Corrupt, Decode, FooterEntry, Key, SegmentId};
use crate::tree::counters::Counters;
use crate::tree::fetch::{Answers, Questions};
use crate::tree::state::State;
use crate::tree::transaction::{Changes, Piece};

/// Why a function on a [`View`] ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A key is not in memory. The view knows which; the function is run again when it is.
    Missing,
    /// The call fails, and changes nothing.
    Failed(BackendError),
}

impl Stop {
    /// The failure of a call that needs a record which cannot be decoded, or contradicts others.
    pub(crate) fn corrupt(key: Key, why: &Corrupt) -> Self {
        tracing::error!(target: "slackwater::object", ?key, error = %why, "cannot read a record of the volume");
        ErrorKind::Io.into()
    }
}

/// Decodes a record.
///
/// # Errors
/// `Io` if the record is corrupt.
pub(crate) fn decode<T: Decode>(key: Key, bytes: &[u8]) -> Result<T, Stop> {
    T::decode(bytes).map_err(|why| Stop::corrupt(key, &why))
}

impl From<ErrorKind> for Stop {
    fn from(kind: ErrorKind) -> Self {
        Self::Failed(kind.into())
    }
}

impl From<BackendError> for Stop {
    fn from(error: BackendError) -> Self {
        Self::Failed(error)
    }
}

/// The changes of one call: applied as a whole if the call succeeds.
#[derive(Default, Debug)]
pub(super) struct Effects {
    pub(super) changes: Changes,
    pub(super) live: Vec<(SegmentId, i64)>,
    /// The pieces for the pack of the running transaction, in the order of [`View::append_small`].
    pub(super) small: Vec<Piece>,
    pub(super) inodes: i64,
    pub(super) data_bytes: i64,
    pub(super) new_inos: u64,
}

impl Effects {
    /// Whether the call only read.
    pub(super) fn is_empty(&self) -> bool {
        let counted = self.inodes != 0 || self.data_bytes != 0 || self.new_inos != 0;
        self.changes.is_empty() && self.live.is_empty() && self.small.is_empty() && !counted
    }
}

/// The tree as one call sees it, with the changes of the call itself.
pub(crate) struct View<'a> {
    state: &'a State,
    /// The store's answers to this call.
    answers: &'a Answers,
    /// Questions that the store must answer.
    questions: Questions,
    effects: Effects,
    now: Timestamp,
}

impl<'a> View<'a> {
    pub(super) fn new(state: &'a State, answers: &'a Answers, now: Timestamp) -> Self {
        Self { state, answers, questions: Questions::default(), effects: Effects::default(), now }
    }

    pub(super) fn into_parts(self) -> (Effects, Questions) {
        (self.effects, self.questions)
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`Stop::Missing`] if it is not in memory.
    pub(crate) fn get(&mut self, key: Key) -> Result<Option<Bytes>, Stop> {
        if let Some(change) = self.effects.changes.get(&key) {
            return Ok(change.clone());
        }
        self.state.get(&key, self.answers).ok_or_else(|| {
            self.questions.ask(key);
            Stop::Missing
        })
    }

    /// The record at `key`, decoded.
    ///
    /// # Errors
    /// [`Stop::Missing`]; `Io` if the record is corrupt.
    pub(crate) fn record<T: Decode>(&mut self, key: Key) -> Result<Option<T>, Stop> {
        self.get(key)?.map(|bytes| decode(key, &bytes)).transpose()
    }

    /// Asks for keys that the call will read, so that those that are not in memory are read together.
    ///
    /// # Errors
    /// [`Stop::Missing`] if one is not in memory.
    pub(crate) fn expect(&mut self, keys: &[Key]) -> Result<(), Stop> {
        let mut missing = false;
        for key in keys {
            missing |= self.get(*key).is_err();
        }
        if missing { Err(Stop::Missing) } else { Ok(()) }
    }

    /// The first `limit` keys from `first` to `last`, both included, with their values.
    ///
    /// # Errors
    /// [`Stop::Missing`] if the range is not in memory.
    pub(crate) fn scan(&mut self, first: Key, last: Key, limit: usize) -> Result<Vec<(Key, Bytes)>, Stop> {
        let mut found = Vec::new();
        if first > last || limit == 0 {
            return Ok(found);
        }
        let (start, known_to) = if self.state.covers(&first, &last) {
            let base = self.state.cache.range(first, last);
            merge(&self.effects, self.state, (first, last), base, limit, &mut found);
            (first, last)
        } else if let Some(range) = self.answers.range(first) {
            let end = last.min(range.known_to);
            let base = range.entries.range(first..=end);
            merge(&self.effects, self.state, (first, end), base, limit, &mut found);
            (range.first, end)
        } else {
            self.questions.ask_range(first, None, last, limit);
            return Err(Stop::Missing);
        };
        if found.len() < limit && known_to < last {
            self.questions.ask_range(start, Some(known_to), last, limit);
            return Err(Stop::Missing);
        }
        Ok(found)
    }

    /// The keys of a range that are in memory, with their values: for messages, when the store does not answer.
    pub(crate) fn scan_memory(&self, first: Key, last: Key) -> Vec<(Key, Bytes)> {
        let (mut found, cached) = (Vec::new(), self.state.cache.range(first, last));
        merge(&self.effects, self.state, (first, last), cached, usize::MAX, &mut found);
        found
    }

    /// Sets the value of `key`.
    pub(crate) fn put(&mut self, key: Key, value: Bytes) {
        self.effects.changes.insert(key, Some(value));
    }

    /// Removes `key`.
    pub(crate) fn delete(&mut self, key: Key) {
        self.effects.changes.insert(key, None);
    }

    /// Counts bytes of a segment that extents of this call began (positive) or ceased (negative) to refer to. The
    /// commit adds them to the segment's record; until then the record that [`View::get`] returns lacks them.
    pub(crate) fn count_live(&mut self, segment: SegmentId, bytes: i64) {
        self.effects.live.push((segment, bytes));
    }

    /// Stores a small range of a file with the next commit, and returns its segment and its offset there. The record
    /// of that segment is made by the commit.
    pub(crate) fn append_small(
        &mut self,
        ino: u64,
        file_offset_bytes: u64,
        crc32c: u32,
        bytes: Bytes,
    ) -> (SegmentId, u32) {
        let (segment, len) = self.state.pack();
        let before: usize = self.effects.small.iter().map(|piece| piece.bytes.len()).sum();
        let segment_offset_bytes = len + before as u32;
        let len_bytes = bytes.len() as u32;
        let origin = FooterEntry { ino, file_offset_bytes, segment_offset_bytes, len_bytes, crc32c };
        self.effects.small.push(Piece { origin, bytes });
        (segment, segment_offset_bytes)
    }

    /// By how much calls before this one have changed the live bytes of a segment without being committed: its record
    /// lacks it.
    pub(crate) fn uncommitted_live(&self, segment: SegmentId) -> i64 {
        self.state.uncommitted_live(segment)
    }

    /// Stored bytes of a segment that is still in memory, because no commit has stored it. The range must be within
    /// one [`View::append_small`] of an earlier call.
    pub(crate) fn small(&self, segment: SegmentId, offset: u32, len: u32) -> Option<Bytes> {
        let pack = self.state.packs().find(|pack| pack.segment == segment)?;
        pack.read(offset, len)
    }

    /// Counts inodes and bytes for `statfs`.
    pub(crate) fn count(&mut self, inodes: i64, data_bytes: i64) {
        self.effects.inodes += inodes;
        self.effects.data_bytes += data_bytes;
    }

    /// The counters without the changes of this call.
    pub(crate) fn counters(&self) -> Counters {
        self.state.running.counters
    }

    /// A number for a new inode (F3).
    pub(crate) fn new_ino(&mut self) -> u64 {
        self.effects.new_inos += 1;
        self.state.running.counters.next_ino + self.effects.new_inos - 1
    }

    /// The time of the call.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    /// The salt of [`hash_of_name`](crate::format::hash_of_name).
    pub(crate) fn salt(&self) -> u64 {
        self.state.salt
    }
}

/// Appends the keys of a range, of which `base` are those in the store, until there are `limit`.
fn merge<'b>(
    effects: &Effects,
    state: &State,
    (first, last): (Key, Key),
    base: impl Iterator<Item = (&'b Key, &'b Bytes)>,
    limit: usize,
    found: &mut Vec<(Key, Bytes)>,
) {
    // Newest first, as in `State::get`.
    let mut layers: Vec<_> = std::iter::once(&effects.changes)
        .chain(state.layers())
        .map(|changes| changes.range(first..=last).peekable())
        .collect();
    let mut base = base.peekable();
    while found.len() < limit {
        let heads = layers.iter_mut().filter_map(|layer| layer.peek().map(|(key, _)| **key));
        let Some(key) = heads.chain(base.peek().map(|(key, _)| **key)).min() else { break };
        let mut value = None;
        for layer in &mut layers {
            if let Some((_, change)) = layer.next_if(|(head, _)| **head == key) {
                value.get_or_insert(change.as_ref());
            }
        }
        if let Some((_, bytes)) = base.next_if(|(head, _)| **head == key) {
            value.get_or_insert(Some(bytes));
        }
        if let Some(Some(bytes)) = value {
            found.push((key, bytes.clone()));
        }
    }
}

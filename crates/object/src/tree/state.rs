//! The layers of the tree that are in memory.
//!
//! # Invariants
//! S1. A key is looked up in the running transaction, the committing one, the settling ones from the newest to the
//!     oldest, the cache, and the answers of the store to the call itself, in this order. The first that has it counts.
//! S2. The store's answer to a call counts as long as every transaction is kept as a layer whose commit completed after
//!     the call began to ask. If one had to be [forgotten](State::forgotten), the call asks again.
//! S3. Nothing that the store answered replaces a newer value in the cache: a key that a commit has changed since the
//!     question was asked is not inserted.
//! S4. No committed key has an inode number from `settled_inos` on, unless it is in a layer.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;
use tokio::sync::oneshot;

use crate::clock;
use crate::format::{Key, SegmentId};
use crate::store::fenced;
use crate::tree::CACHE_BYTES;
use crate::tree::cache::Cache;
use crate::tree::commit::TRANSACTION_BYTES;
use crate::tree::counters::Counters;
use crate::tree::fetch::Answers;
use crate::tree::log::Log;
use crate::tree::transaction::{Changes, Pack, Transaction};
use crate::tree::view::Effects;

/// Bytes of completed transactions that are kept for calls that wait for the store.
const SETTLING_BYTES_MAX: usize = 64 << 20;

/// Everything under the tree's mutex. It is held for memory alone, never during a request.
pub(crate) struct State {
    pub(super) running: Transaction,
    /// Frozen, and not in the store yet.
    pub(super) committing: Option<Arc<Transaction>>,
    pub(super) settling: VecDeque<Settling>,
    pub(super) cache: Cache,
    /// How many commits have completed.
    pub(super) epoch: u64,
    /// The epochs in which calls began to ask the store, with their number.
    pub(super) asking: BTreeMap<u64, usize>,
    /// Answers to calls that began before this epoch do not count.
    pub(super) forgotten: u64,
    pub(super) settled_inos: u64,
    pub(super) log: Option<Log>,
    pub(super) mode: Mode,
    pub(super) salt: u64,
    pub(super) writer_epoch: u64,
    pub(super) last_segment: u64,
    /// The callers that wait for the next attempt to commit.
    pub(super) waiting: Vec<oneshot::Sender<Result<(), BackendError>>>,
    /// The committer tries nothing by itself before this time.
    pub(super) retry_at_ms: u64,
    /// When the last commit completed.
    pub(super) committed_at_ms: Option<u64>,
}

/// The role of the tree.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Mode {
    Writer,
    /// A reader, which follows the writer.
    Reader,
    /// Another writer has the volume.
    Fenced,
    Closed,
}

/// A transaction that is in the store, and still a layer.
pub(super) struct Settling {
    /// The epoch that its completion began.
    pub(super) epoch: u64,
    pub(super) transaction: Arc<Transaction>,
    /// Changes of its commit beyond that: records of segments, and bytes of its pack. They are newer.
    pub(super) extra: Arc<Changes>,
    /// Whether the cache has all of it.
    pub(super) is_cached: bool,
}

impl Settling {
    /// The changes of the transaction, newest first.
    pub(super) fn layers(&self) -> [&Changes; 2] {
        [&self.extra, &self.transaction.changes]
    }
}

impl State {
    /// The state of a writer whose tree has these counters in the store.
    pub(super) fn new(counters: Counters, writer_epoch: u64, salt: u64) -> Self {
        let pack = SegmentId::new(clock::unix_ms(), writer_epoch as u32, 1);
        Self {
            running: Transaction::new(&counters, writer_epoch, pack),
            committing: None,
            settling: VecDeque::new(),
            cache: Cache::new(CACHE_BYTES),
            epoch: 0,
            asking: BTreeMap::new(),
            forgotten: 0,
            settled_inos: counters.next_ino,
            log: None,
            mode: Mode::Writer,
            salt,
            writer_epoch,
            last_segment: 1,
            waiting: Vec::new(),
            retry_at_ms: 0,
            committed_at_ms: None,
        }
    }

    /// The changes that are newer than the cache, newest first.
    pub(super) fn layers(&self) -> impl Iterator<Item = &Changes> {
        [Some(&self.running), self.committing.as_deref()]
            .into_iter()
            .flatten()
            .map(|transaction| &transaction.changes)
            .chain(self.settling.iter().rev().flat_map(Settling::layers))
    }

    /// By how much the live bytes of a segment changed since the last commit.
    pub(super) fn uncommitted_live(&self, segment: SegmentId) -> i64 {
        let transactions = std::iter::once(&self.running).chain(self.committing.as_deref());
        transactions.filter_map(|transaction| transaction.live.get(&segment)).sum()
    }

    /// The small writes that no commit has stored, and some that one has.
    pub(super) fn packs(&self) -> impl Iterator<Item = &Pack> {
        let settling = self.settling.iter().map(|settling| &settling.transaction);
        let committing = self.committing.iter().chain(settling).map(|transaction| &transaction.pack);
        std::iter::once(&self.running.pack).chain(committing)
    }

    /// The value of a key; `None` if it is not in memory.
    pub(super) fn get(&self, key: &Key, answers: &Answers) -> Option<Option<Bytes>> {
        if let Some(change) = self.layers().find_map(|layer| layer.get(key)) {
            return Some(change.clone());
        }
        let is_new = || number_of(key).is_some_and(|ino| ino >= self.settled_inos);
        self.cache.get(key).or_else(|| answers.get(key)).or_else(|| is_new().then_some(None))
    }

    /// The committed value of a key; `None` if it is not in memory.
    pub(super) fn committed(&self, key: &Key) -> Option<Option<Bytes>> {
        let settling = self.settling.iter().rev().flat_map(Settling::layers);
        settling.into_iter().find_map(|layer| layer.get(key)).cloned().or_else(|| self.cache.get(key))
    }

    /// Whether the cache has all committed keys of this range, or there are none.
    pub(super) fn covers(&self, first: &Key, last: &Key) -> bool {
        let is_new = match (first, last) {
            (Key::Entries { dir: one, .. }, Key::Entries { dir: other, .. })
            | (Key::Chunk { ino: one, .. }, Key::Chunk { ino: other, .. })
            | (Key::Xattr { ino: one, .. }, Key::Xattr { ino: other, .. }) => one == other && *one >= self.settled_inos,
            _ => false,
        };
        is_new || self.cache.covers(first, last)
    }

    /// The segment of the running transaction's small writes, and its length so far.
    pub(super) fn pack(&self) -> (SegmentId, u32) {
        (self.running.pack.segment, self.running.pack.len())
    }

    /// The memory of the running transaction. Its log may be twice as long: calls that change one key again and again
    /// let only the log grow.
    pub(super) fn running_bytes(&self) -> usize {
        let log_bytes = self.log.as_ref().map_or(0, Log::len_bytes);
        self.running.bytes.max(log_bytes as usize / 2)
    }

    /// Whether calls that change something must wait for a commit.
    pub(super) fn is_full(&self) -> bool {
        self.mode == Mode::Writer && self.running_bytes() >= 2 * TRANSACTION_BYTES
    }

    /// Makes the effects of a call part of the running transaction, and writes them to the local log.
    ///
    /// # Errors
    /// Nothing was changed: the tree is not a writer, or the log could not be written.
    pub(super) fn apply(&mut self, effects: Effects) -> Result<(), BackendError> {
        match self.mode {
            Mode::Writer => {}
            Mode::Reader => return Err(ErrorKind::ReadOnly.into()),
            Mode::Fenced => return Err(fenced()),
            Mode::Closed => return Err(ErrorKind::NotMounted.into()),
        }
        if let Some(log) = &mut self.log {
            log.append(&effects)?;
        }
        self.running.apply(effects, clock::monotonic_ms());
        Ok(())
    }

    pub(super) fn new_segment_id(&mut self) -> SegmentId {
        self.last_segment += 1;
        SegmentId::new(clock::unix_ms(), self.writer_epoch as u32, self.last_segment)
    }

    /// Adds to the cache what the store answered to a call that began to ask in `epoch` (S3).
    pub(super) fn keep_answers(&mut self, answers: &Answers, epoch: u64) {
        // A commit that completed meanwhile may have made an entry that is evicted from the cache already.
        let is_quiet = self.epoch == epoch;
        for dir in answers.whole_directories().filter(|_| is_quiet) {
            self.cache.mark_whole(dir);
        }
        for (key, value) in answers.keys() {
            let newer = self.settling.iter().filter(|settling| settling.epoch > epoch);
            if !newer.flat_map(Settling::layers).any(|layer| layer.contains_key(&key)) {
                self.cache.insert(key, value);
            }
        }
    }

    /// Begins to ask the store for a call. Returns the epoch to end it with.
    pub(super) fn begin_asking(&mut self) -> u64 {
        *self.asking.entry(self.epoch).or_default() += 1;
        self.epoch
    }

    pub(super) fn end_asking(&mut self, epoch: u64) -> Vec<Settling> {
        if let Some(count) = self.asking.get_mut(&epoch) {
            *count -= 1;
            if *count == 0 {
                self.asking.remove(&epoch);
            }
        }
        self.drop_settled()
    }

    /// Takes the layers away that are in the cache and that no call needs (S2). The caller drops them without the lock.
    pub(super) fn drop_settled(&mut self) -> Vec<Settling> {
        let mut bytes: usize = self.settling.iter().map(|settling| settling.transaction.bytes).sum();
        let mut dropped = Vec::new();
        while let Some(oldest) = self.settling.front().filter(|oldest| oldest.is_cached) {
            let is_needed = self.asking.first_key_value().is_some_and(|(began, _)| *began < oldest.epoch);
            if is_needed && bytes <= SETTLING_BYTES_MAX {
                break;
            }
            if is_needed {
                self.forgotten = oldest.epoch;
            }
            bytes -= oldest.transaction.bytes;
            dropped.extend(self.settling.pop_front());
        }
        dropped
    }
}

/// The inode that a key belongs to.
fn number_of(key: &Key) -> Option<u64> {
    match key {
        Key::Chunk { ino, .. } | Key::Inode(ino) | Key::Orphan(ino) | Key::Xattr { ino, .. } => Some(*ino),
        Key::Entries { dir, .. } => Some(*dir),
        Key::Blob(_) | Key::Segment(_) | Key::Volume(_) => None,
    }
}

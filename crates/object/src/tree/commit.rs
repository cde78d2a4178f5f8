//! The committer: one task per tree, which makes transactions durable one after the other.
//!
//! A commit is frozen under the lock, and from then on absolute: its batch says what each key is, so it can be repeated
//! until it succeeds. One attempt is on its way at a time; all syncs that come meanwhile share the next.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::{Arc, Weak};
use slatedb::WriteBatch;
use tokio::sync::{Notify, oneshot};

use crate::clock;
use crate::format::{Decode, Encode, Footer, Key, SegmentId, SegmentPlace, SegmentRecord, VolumeKey};
use crate::store::fenced;
use crate::tree::Tree;
use crate::tree::base::Base;
use crate::tree::settings::COMMITS_PER_TABLE;
use crate::tree::state::{Mode, Settling, State};
use crate::tree::transaction::{Changes, Transaction};

/// A transaction of this size is committed without waiting for its age. At twice the size calls wait.
pub(super) const TRANSACTION_BYTES: usize = 16 << 20;
/// A pack of at most this size is stored in the commit itself.
const BLOB_BYTES_MAX: u32 = 64 << 10;
/// After a failure the committer waits this long, doubled with each further one.
const RETRY_MS: std::ops::RangeInclusive<u64> = 500..=30_000;
/// Keys that are moved to the cache under one hold of the lock.
const KEYS_PER_HOLD: usize = 256;
/// Records of segments that are read together.
const PARALLEL: usize = 32;

/// A frozen transaction with all that the store needs of it.
struct Prepared {
    transaction: Arc<Transaction>,
    batch: WriteBatch,
    /// The changes in the batch beyond those of the transaction.
    extra: Arc<Changes>,
}

impl State {
    /// How long the committer may wait, if there is anything to wait for.
    fn commit_in_ms(&self, now_ms: u64, age_ms: u64) -> Option<u64> {
        if !self.waiting.is_empty() {
            return Some(0);
        }
        if self.mode != Mode::Writer {
            return None;
        }
        let due_ms = if self.committing.is_some() || self.running_bytes() >= TRANSACTION_BYTES {
            Some(0)
        } else {
            self.running.began_ms.map(|began| began + age_ms)
        };
        due_ms.map(|due| due.max(self.retry_at_ms).saturating_sub(now_ms))
    }

    /// The transaction to commit next, frozen.
    fn freeze(&mut self) -> Result<Option<Arc<Transaction>>, BackendError> {
        match self.mode {
            Mode::Writer => {}
            Mode::Reader => return Ok(None),
            Mode::Closed => return Err(ErrorKind::NotMounted.into()),
            Mode::Fenced => return Err(fenced()),
        }
        if self.committing.is_none() && !self.running.is_empty() {
            let pack = self.new_segment_id();
            let done = self.running.counters;
            let next = Transaction::new(&done, self.writer_epoch, pack);
            if let Some(log) = &mut self.log {
                log.next(&done, (next.counters.commit, next.counters.writer_epoch), pack)?;
            }
            self.committing = Some(Arc::new(std::mem::replace(&mut self.running, next)));
        }
        Ok(self.committing.clone())
    }
}

/// Runs until the tree is dropped.
pub(super) async fn run(tree: Weak<Tree>, wake: Arc<Notify>) {
    let mut prepared = None;
    let mut failures = 0;
    loop {
        let Some(strong) = tree.upgrade() else { return };
        let pause_ms = strong.state.lock().commit_in_ms(clock::monotonic_ms(), strong.commit_age_ms);
        if pause_ms == Some(0) {
            strong.attempt_for_all(&mut prepared, &mut failures).await;
            continue;
        }
        drop(strong);
        let pause = async {
            match pause_ms {
                Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wake.notified() => {}
            () = pause => {}
        }
    }
}

impl Tree {
    /// Makes everything durable that was done before. Commits that are asked for at the same time are one.
    ///
    /// # Errors
    /// Those of the attempt. The changes stay, and are committed later. `Stale`: another writer has the volume.
    /// `TimedOut`: the attempt takes longer than the time limit of a sync; it goes on.
    pub(crate) async fn commit(&self) -> Result<(), BackendError> {
        let answer = {
            let mut state = self.state.lock();
            if state.mode == Mode::Fenced {
                return Err(fenced());
            }
            if state.running.is_empty() && state.committing.is_none() {
                return Ok(());
            }
            let (sender, answer) = oneshot::channel();
            state.waiting.push(sender);
            answer
        };
        self.wake.notify_one();
        match tokio::time::timeout(self.sync_limit, answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(ErrorKind::Abandoned.into()),
            Err(_) => Err(BackendError::new(ErrorKind::TimedOut, "the store has not answered in time")),
        }
    }

    /// Says that another writer has the volume. Changes and syncs fail from now on.
    pub(crate) fn give_up(&self) {
        if let Some(base) = &self.base {
            base.give_up();
        }
        let mut state = self.state.lock();
        if state.mode == Mode::Writer {
            state.mode = Mode::Fenced;
            drop(state);
            tracing::error!("another writer has taken the volume: changes and syncs fail from now on");
            self.wake.notify_one();
            self.room.notify_waiters();
        }
    }

    /// Gives up if SlateDB could not be opened again, because another writer has the volume.
    pub(super) fn notice_loss(&self) {
        if self.base.as_ref().is_some_and(|base| base.is_lost()) {
            self.give_up();
        }
    }

    /// Commits what is left, and stops. Later changes fail.
    ///
    /// # Errors
    /// Those of the commit. The local log has what is not in the store.
    pub(crate) async fn close(&self) -> Result<(), BackendError> {
        let result = self.commit().await;
        {
            let mut state = self.state.lock();
            state.mode = Mode::Closed;
            if let Some(log) = state.log.take()
                && state.running.is_empty()
            {
                // It has no records.
                let _ = std::fs::remove_file(log.path_of(state.running.counters.commit));
            }
        }
        self.wake.notify_one();
        self.room.notify_waiters();
        if let Some(base) = &self.base {
            base.close().await;
        }
        result
    }

    /// Makes an attempt, whose outcome is that of all syncs that wait for it.
    async fn attempt_for_all(&self, prepared: &mut Option<Prepared>, failures: &mut u32) {
        let waiting = std::mem::take(&mut self.state.lock().waiting);
        let result = self.attempt(prepared).await;
        match &result {
            Ok(()) => *failures = 0,
            Err(error) => {
                let pause_ms = (RETRY_MS.start() << (*failures).min(16)).min(*RETRY_MS.end());
                *failures += 1;
                tracing::warn!(%error, failures, pause_ms, "a commit failed; its changes are kept");
                self.state.lock().retry_at_ms = clock::monotonic_ms() + pause_ms;
                self.notice_loss();
            }
        }
        for sender in waiting {
            // One that does not wait any more has met its time limit.
            let _ = sender.send(result.clone());
        }
    }

    /// Commits what failed before, and then what is running.
    async fn attempt(&self, prepared: &mut Option<Prepared>) -> Result<(), BackendError> {
        let Some(base) = &self.base else { return Ok(()) };
        loop {
            let is_repeated = self.state.lock().committing.is_some();
            let Some(transaction) = self.state.lock().freeze()? else { return Ok(()) };
            // There is space in the running transaction again.
            self.room.notify_waiters();
            let ready = match prepared.take() {
                Some(ready) => ready,
                None => self.prepare(base, transaction).await?,
            };
            let result = base.write(&ready.batch).await;
            if let Err(error) = result {
                *prepared = Some(ready);
                return Err(error);
            }
            self.settle(&ready);
            if ready.transaction.counters.commit % COMMITS_PER_TABLE == 0 {
                self.store_table();
            }
            if !is_repeated {
                return Ok(());
            }
        }
    }

    /// Stores the pack if it is large, and reads what the batch depends on.
    async fn prepare(&self, base: &Base, transaction: Arc<Transaction>) -> Result<Prepared, BackendError> {
        let mut extra = Changes::new();
        let pack = &transaction.pack;
        if pack.len() > 0 {
            let footer = Footer { entries: pack.pieces().map(|piece| piece.origin).collect() };
            let place = if pack.len() <= BLOB_BYTES_MAX {
                let end = footer.to_bytes();
                let pieces: Vec<&[u8]> = pack.pieces().map(|piece| &*piece.bytes).chain([&*end]).collect();
                extra.insert(Key::Blob(pack.segment), Some(pieces.concat().into()));
                SegmentPlace::Blob
            } else {
                let data = pack.pieces().map(|piece| piece.bytes.clone());
                base.segments().put(pack.segment, data, &footer).await?;
                SegmentPlace::Object
            };
            let record = SegmentRecord::new(place, pack.len().into());
            extra.insert(Key::Segment(pack.segment), Some(record.encode()));
        }
        let mut live = Vec::new();
        for (segment, bytes) in &transaction.live {
            let key = Key::Segment(*segment);
            if *bytes != 0 {
                live.push((*segment, *bytes, extra.get(&key).or(transaction.changes.get(&key)).cloned()));
            }
        }
        let records = stream::iter(live)
            .map(|(segment, bytes, changed)| self.record_with(base, segment, bytes, changed))
            .buffer_unordered(PARALLEL)
            .try_collect::<Vec<_>>()
            .await?;
        for (segment, record) in records.into_iter().flatten() {
            extra.insert(Key::Segment(segment), Some(record.encode()));
        }
        extra.insert(Key::Volume(VolumeKey::Counters), Some(transaction.counters.encode()));

        let mut batch = WriteBatch::new();
        let changes = transaction.changes.iter().filter(|(key, _)| !extra.contains_key(key));
        for (key, change) in changes.chain(&extra) {
            match change {
                Some(value) => batch.put_bytes(Bytes::copy_from_slice(key.encode().as_ref()), value.clone()),
                None => batch.delete(key.encode()),
            }
        }
        Ok(Prepared { transaction, batch, extra: Arc::new(extra) })
    }

    /// The record of a segment after its live bytes changed; `None` if the segment is gone. `changed` is what the
    /// transaction itself made of the record.
    async fn record_with(
        &self,
        base: &Base,
        segment: SegmentId,
        live: i64,
        changed: Option<Option<Bytes>>,
    ) -> Result<Option<(SegmentId, SegmentRecord)>, BackendError> {
        let key = Key::Segment(segment);
        let stored = match changed {
            // A collector removes the record together with the last extents.
            Some(None) => return Ok(None),
            Some(Some(record)) => Some(record),
            None => {
                let in_memory = self.state.lock().committed(&key);
                match in_memory {
                    Some(value) => value,
                    None => base.get(key).await?,
                }
            }
        };
        let Some(stored) = stored else {
            tracing::error!(%segment, live, "a segment without record lost or gained bytes");
            return Ok(None);
        };
        let mut record = SegmentRecord::decode(&stored)
            .map_err(|bad| BackendError::new(ErrorKind::Io, format!("segment {segment}: {bad}")))?;
        record.live_bytes = live_after(&record, live).unwrap_or_else(|| {
            tracing::error!(%segment, ?record, live, "a count of live bytes is wrong: the segment is kept until a repair");
            record.total_bytes
        });
        record.dead_unix_ms = if record.live_bytes == 0 { clock::unix_ms() } else { 0 };
        Ok(Some((segment, record)))
    }

    /// Moves a transaction that is in the store to the cache, in steps that hold the lock for a moment each.
    fn settle(&self, ready: &Prepared) {
        let transaction = &ready.transaction;
        let mut directories = BTreeSet::new();
        for key in transaction.changes.keys() {
            if let Key::Entries { dir, .. } = key {
                directories.insert(*dir);
            }
        }
        {
            let mut state = self.state.lock();
            state.committing = None;
            state.epoch += 1;
            state.committed_at_ms = Some(clock::monotonic_ms());
            let epoch = state.epoch;
            let (transaction, extra) = (Arc::clone(transaction), Arc::clone(&ready.extra));
            state.settling.push_back(Settling { epoch, transaction, extra, is_cached: false });
            // New directories are whole. First the marks, then the entries: the eviction of one takes its mark away.
            for dir in directories.range(state.settled_inos..) {
                state.cache.mark_whole(*dir);
            }
        }
        let mut pairs =
            transaction.changes.iter().chain(&*ready.extra).map(|(key, value)| (*key, value.clone())).peekable();
        while pairs.peek().is_some() {
            let mut state = self.state.lock();
            for (key, value) in pairs.by_ref().take(KEYS_PER_HOLD) {
                state.cache.insert(key, value);
            }
        }
        let (dropped, log) = {
            let mut state = self.state.lock();
            state.settled_inos = state.settled_inos.max(transaction.counters.next_ino);
            if let Some(settling) = state.settling.back_mut() {
                settling.is_cached = true;
            }
            let log = state.log.as_ref().map(|log| log.path_of(transaction.counters.commit));
            (state.drop_settled(), log)
        };
        drop(dropped);
        if let Some(log) = log
            && let Err(error) = std::fs::remove_file(&log)
        {
            // The next mount finds that it is in the store.
            tracing::warn!(%error, "a log of the volume could not be removed");
        }
    }

    fn store_table(&self) {
        let Some(base) = self.base.clone() else { return };
        tokio::spawn(async move {
            if let Err(error) = base.store_table().await {
                tracing::debug!(%error, "storing a table");
            }
        });
    }
}

/// The live bytes of a segment after a change; `None` if it cannot have so many or so few.
fn live_after(record: &SegmentRecord, change: i64) -> Option<u64> {
    record.live_bytes.checked_add_signed(change).filter(|live| *live <= record.total_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_count_of_live_bytes_is_no_reason_to_collect_a_segment() {
        let record = SegmentRecord { live_bytes: 60, ..SegmentRecord::new(SegmentPlace::Object, 100) };
        assert_eq!([-60, 40].map(|change| live_after(&record, change)), [Some(0), Some(100)]);
        assert_eq!([-61, 41].map(|change| live_after(&record, change)), [None, None]);
    }
}

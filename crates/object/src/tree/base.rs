//! SlateDB: the part of the tree that is in the store.
//!
//! SlateDB closes itself on errors that it cannot repair, such as a store that failed for longer than requests are
//! repeated, and when another writer has opened it. Then it is opened again, unless the volume belongs to that writer.

use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use object_store::ObjectStore;
use parking_lot::RwLock;
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};
use slatedb::config::{CloseOptions, FlushOptions, FlushType};
use slatedb::{CloseReason, Db, DbIterator, DbReader, DbReaderMode, WriteBatch};
use tokio::time::timeout;

use crate::format::Key;
use crate::segments::Segments;
use crate::store::{fenced, of_database};
use crate::tree::{FOLDER, block_cache, settings};

/// How long the tasks of SlateDB may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// How often one operation opens SlateDB again. Processes without the volume may fence this one by opening it, one after
/// the other.
const REOPENINGS: u32 = 4;

/// Finds out whether this process still has the volume. Its error is `Stale` if not.
pub(crate) type Guard = Arc<dyn Fn() -> BoxFuture<'static, Result<(), BackendError>> + Send + Sync>;

/// Where a writer opens the tree of a volume.
#[derive(Clone)]
pub(crate) struct Place {
    /// Rooted at the prefix of the volume.
    pub(crate) store: Arc<dyn ObjectStore>,
    /// Whether the store can replace an object on the condition that it is unchanged.
    pub(crate) has_if_match: bool,
    /// Asked before and after each opening, since to open the tree fences the process that has it.
    pub(crate) guard: Guard,
}

#[cfg(test)]
impl Place {
    /// The place of a volume that no other process wants.
    pub(crate) fn alone(store: Arc<dyn ObjectStore>) -> Self {
        let guard: Guard = Arc::new(|| Box::pin(async { Ok(()) }));
        Self { store, has_if_match: true, guard }
    }
}

/// See the [module documentation](self).
pub(super) struct Base {
    segments: Segments,
    source: Source,
    /// Held while it is opened again.
    reopening: tokio::sync::Mutex<()>,
    /// The epoch of the first opening: it names this writer.
    epoch: u64,
    /// Another writer has the volume. SlateDB is not opened any more.
    is_lost: AtomicBool,
    is_closed: AtomicBool,
}

/// How SlateDB is open.
#[expect(clippy::large_enum_variant, reason = "there is one per volume")]
enum Source {
    Writer {
        place: Place,
        db: RwLock<Db>,
    },
    /// Open for reading; follows the writer.
    Reader(DbReader),
}

impl Base {
    /// Opens the tree for reading, in a state at most `age` older than that of the writer and one request.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn follow(store: Arc<dyn ObjectStore>, age: Duration) -> Result<Self, BackendError> {
        let reader = DbReader::builder(FOLDER, store.clone())
            // Nothing is written: a reader needs no permission to write, and does not disturb the writer. Files that the
            // reader still needs are kept for an hour; if it sleeps for longer, its calls fail until it has caught up.
            .with_reader_mode(DbReaderMode::FollowLatest)
            .with_db_cache(block_cache::new(), 0)
            .with_options(settings::reader(age));
        let source = Source::Reader(reader.build().await.map_err(|error| of_database(&error))?);
        Ok(Self::with(store, source, 0))
    }

    fn with(store: Arc<dyn ObjectStore>, source: Source, epoch: u64) -> Self {
        Self {
            segments: Segments::new(store),
            source,
            reopening: tokio::sync::Mutex::new(()),
            epoch,
            is_lost: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Whether it follows the writer.
    pub(super) fn is_reader(&self) -> bool {
        matches!(self.source, Source::Reader(_))
    }

    /// Opens the tree for writing, and fences every earlier writer.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn open(place: Place) -> Result<Self, BackendError> {
        let db = build(&place).await?;
        let epoch = db.manifest().writer_epoch();
        Ok(Self::with(place.store.clone(), Source::Writer { place, db: RwLock::new(db) }, epoch))
    }

    /// Names this writer among all writers of the volume.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The value of a key.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn get(&self, key: Key) -> Result<Option<Bytes>, BackendError> {
        let found = match &self.source {
            Source::Writer { .. } => self.with_db(|db| async move { db.get(key.encode()).await }).await?,
            Source::Reader(reader) => reader.get(key.encode()).await.map_err(|error| of_database(&error))?,
        };
        // SlateDB returns a part of a block, and would keep all of it in memory.
        Ok(found.map(|value| Bytes::copy_from_slice(&value)))
    }

    /// The first `limit` keys of a range, with their values.
    ///
    /// # Errors
    /// The store's, or a key that is not of this format.
    pub(super) async fn scan(
        &self,
        first: Bound<Key>,
        last: Key,
        limit: usize,
    ) -> Result<Vec<(Key, Bytes)>, BackendError> {
        let range = (first.map(encoded), Bound::Included(encoded(last)));
        let pairs = match &self.source {
            Source::Writer { .. } => {
                self.with_db(|db| {
                    let range = range.clone();
                    async move { collect(db.scan_with_options(range, &settings::scan()).await?, limit).await }
                })
                .await?
            }
            Source::Reader(reader) => {
                let entries =
                    reader.scan_with_options(range, &settings::scan()).await.map_err(|error| of_database(&error))?;
                collect(entries, limit).await.map_err(|error| of_database(&error))?
            }
        };
        pairs
            .into_iter()
            .map(|(key, value)| {
                let key = Key::decode(&key).map_err(|bad| BackendError::new(ErrorKind::Io, bad.to_string()))?;
                Ok((key, value))
            })
            .collect()
    }

    /// Makes a batch durable: one PUT.
    ///
    /// # Errors
    /// The store's. It may be durable nonetheless; to repeat it is harmless.
    pub(super) async fn write(&self, batch: &WriteBatch) -> Result<(), BackendError> {
        let written = self.with_db(|db| {
            let batch = batch.clone();
            async move {
                db.write(batch).await?;
                db.flush_with_options(FlushOptions { flush_type: FlushType::Wal }).await
            }
        });
        let result = written.await;
        if result.is_err()
            && let Ok(db) = self.db()
        {
            // SlateDB does not survive a log that it could not write, but may not have noticed yet.
            stop(&db).await;
        }
        result
    }

    /// Stores the memtable as a table, which shortens the log that the next mount reads.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn store_table(&self) -> Result<(), BackendError> {
        let db = self.db()?;
        db.flush_with_options(FlushOptions { flush_type: FlushType::MemTable })
            .await
            .map_err(|error| of_database(&error))
    }

    /// The segments beside the tree.
    pub(super) fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Stops SlateDB. Changes that are not durable are not written.
    pub(super) async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        match &self.source {
            Source::Writer { db, .. } => {
                let db = db.read().clone();
                stop(&db).await;
            }
            Source::Reader(reader) => {
                if let Err(error) = reader.close().await {
                    tracing::debug!(%error, "closing SlateDB");
                }
            }
        }
    }

    /// Runs `operation`, and again if it finds SlateDB closed and it could be opened again.
    async fn with_db<T, F>(&self, operation: impl Fn(Db) -> F) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, slatedb::Error>>,
    {
        let mut reopened = 0;
        let mut db = self.db()?;
        loop {
            let failure = match operation(db).await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            let is_worth_it = match reopened {
                0 => is_closed(&failure) || self.db()?.status().close_reason.is_some(),
                _ => reopened < REOPENINGS && is_fence(&failure),
            };
            if !is_worth_it {
                return Err(of_database(&failure));
            }
            reopened += 1;
            db = self.reopen().await?;
        }
    }

    /// The database, opened again if it is closed.
    async fn reopen(&self) -> Result<Db, BackendError> {
        let Source::Writer { place, db: current } = &self.source else { return Err(ErrorKind::ReadOnly.into()) };
        let _one_at_a_time = self.reopening.lock().await;
        let db = current.read().clone();
        match db.status().close_reason {
            None => return Ok(db),
            Some(_) if self.is_closed.load(Ordering::Acquire) => return Err(ErrorKind::NotMounted.into()),
            Some(reason) => tracing::warn!(?reason, "SlateDB has closed itself: opening it again"),
        }
        if self.is_lost() {
            return Err(fenced());
        }
        stop(&db).await;
        let db = build(place).await.inspect_err(|error| {
            if error.kind() == ErrorKind::Stale {
                self.give_up();
            }
        })?;
        *current.write() = db.clone();
        Ok(db)
    }

    /// Says that another writer has the volume.
    pub(super) fn give_up(&self) {
        self.is_lost.store(true, Ordering::Release);
    }

    /// Whether another writer is known to have the volume.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    fn db(&self) -> Result<Db, BackendError> {
        match &self.source {
            Source::Writer { db, .. } => Ok(db.read().clone()),
            Source::Reader(_) => Err(ErrorKind::ReadOnly.into()),
        }
    }
}

async fn build(place: &Place) -> Result<Db, BackendError> {
    (place.guard)().await?;
    let builder = Db::builder(FOLDER, place.store.clone())
        .with_settings(settings::writer(place.has_if_match))
        .with_db_cache(block_cache::new(), 0)
        .with_sst_block_size(settings::BLOCK_SIZE);
    let db = builder.build().await.map_err(|error| of_database(&error))?;
    match (place.guard)().await {
        Ok(()) => Ok(db),
        Err(error) => {
            stop(&db).await;
            Err(error)
        }
    }
}

/// Ends the tasks of a database, or lets them end by themselves if they wait for the store.
async fn stop(db: &Db) {
    let closed = timeout(STOP_LIMIT, db.close_with_options(CloseOptions { flush_type: None })).await;
    if !matches!(closed, Ok(Ok(()))) {
        tracing::debug!(?closed, "closing SlateDB");
    }
}

async fn collect(mut entries: DbIterator, limit: usize) -> Result<Vec<(Bytes, Bytes)>, slatedb::Error> {
    let mut pairs = Vec::new();
    while pairs.len() < limit
        && let Some(entry) = entries.next().await?
    {
        pairs.push((entry.key, Bytes::copy_from_slice(&entry.value)));
    }
    Ok(pairs)
}

fn encoded(key: Key) -> Bytes {
    Bytes::copy_from_slice(key.encode().as_ref())
}

fn is_closed(error: &slatedb::Error) -> bool {
    matches!(error.kind(), slatedb::ErrorKind::Closed(_))
}

fn is_fence(error: &slatedb::Error) -> bool {
    matches!(error.kind(), slatedb::ErrorKind::Closed(CloseReason::Fenced))
}

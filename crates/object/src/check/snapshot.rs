//! A state of a volume, as streams of records.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use object_store::ObjectStore;
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;
use slatedb::config::{DbReaderOptions, ScanOptions};
use slatedb::{DbIterator, DbReader, DbReaderMode};

use crate::check::problem::Problem;
use crate::format::{Chunk, Decode, Key, SegmentId, Source, VolumeKey};
use crate::store::{is_missing, of_database};
use crate::tree::{Counters, FOLDER};

/// How often a snapshot is taken anew because a writer changed the volume meanwhile.
const ATTEMPTS: u32 = 100;

/// The records of one kind, in the order of their keys.
pub(super) struct Records {
    entries: DbIterator,
    head: Option<(Vec<u8>, Bytes)>,
}

/// Streams of the same state of a volume.
pub(super) struct Snapshot {
    pub(super) reader: Arc<DbReader>,
    pub(super) counters: Option<Counters>,
    pub(super) blobs: Records,
    pub(super) chunks: Records,
    pub(super) names: Records,
    /// A second stream of names.
    pub(super) paths: Records,
    pub(super) inodes: Records,
    pub(super) orphans: Records,
    pub(super) segments: Records,
    pub(super) xattrs: Records,
    /// All keys that are of no known kind.
    pub(super) unknown: Vec<Records>,
}

/// The error of a check for an error of SlateDB.
pub(super) fn failed(error: slatedb::Error) -> BackendError {
    let advice = match is_missing(&error) {
        true => ". A writer removes old files of the tree after an hour: check the volume while it is not mounted",
        false => "",
    };
    let error = of_database(&error);
    BackendError::new(error.kind(), format!("cannot read the tree: {error}{advice}"))
}

impl Snapshot {
    /// Opens the tree, and one state of it.
    ///
    /// # Errors
    /// The store's; `Busy` if a writer makes it impossible.
    pub(super) async fn open(store: Arc<dyn ObjectStore>) -> Result<Self, BackendError> {
        let reader = Arc::new(reader(store).await?);
        for _ in 0..ATTEMPTS {
            let before = counters(&reader).await?;
            let of_tag = |tag: u8| records(&reader, tag, tag + 1);
            let mut unknown = Vec::new();
            for (first, end) in gaps() {
                unknown.push(records(&reader, first, end).await?);
            }
            let [blobs, chunks, names, paths] = [of_tag(b'b'), of_tag(b'c'), of_tag(b'd'), of_tag(b'd')];
            let [inodes, orphans, segments, xattrs] = [of_tag(b'i'), of_tag(b'o'), of_tag(b's'), of_tag(b'x')];
            let (blobs, chunks, names, paths) = futures::try_join!(blobs, chunks, names, paths)?;
            let (inodes, orphans, segments, xattrs) = futures::try_join!(inodes, orphans, segments, xattrs)?;
            // Each commit changes the counters, so all streams are of the state that has these.
            if counters(&reader).await? == before {
                let counters = before.and_then(|value| Counters::decode(&value).ok());
                return Ok(Self {
                    reader,
                    counters,
                    blobs,
                    chunks,
                    names,
                    paths,
                    inodes,
                    orphans,
                    segments,
                    xattrs,
                    unknown,
                });
            }
        }
        Err(BackendError::new(ErrorKind::Busy, "the volume changes too fast to be checked"))
    }

    /// Ends the tasks of SlateDB.
    pub(super) async fn close(self) {
        close(&self.reader).await;
    }
}

/// The volume as it is now, for single records.
pub(super) struct Now(DbReader);

impl Now {
    /// # Errors
    /// The store's.
    pub(super) async fn open(store: Arc<dyn ObjectStore>) -> Result<Self, BackendError> {
        Ok(Self(reader(store).await?))
    }

    /// Whether a part of this range of a chunk is in a segment.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn uses(&self, chunk: Key, range: Range<u32>, segment: SegmentId) -> Result<bool, BackendError> {
        let value = self.0.get(chunk.encode()).await.map_err(failed)?;
        let Some(value) = value else { return Ok(false) };
        // One that cannot be read may.
        let Ok(chunk) = Chunk::decode(&value) else { return Ok(true) };
        let is_in = |source: &Source| matches!(source, Source::Segment(stored) if stored.segment == segment);
        Ok(chunk.parts(range.start, range.end).iter().any(|extent| is_in(&extent.source)))
    }

    /// Ends the tasks of SlateDB.
    pub(super) async fn close(self) {
        close(&self.0).await;
    }
}

/// Opens a tree in the state that it has now.
async fn reader(store: Arc<dyn ObjectStore>) -> Result<DbReader, BackendError> {
    let options = DbReaderOptions {
        // It does not follow the writer.
        manifest_poll_interval: Duration::from_secs(86_400),
        object_store_max_retries: Some(0),
        ..DbReaderOptions::default()
    };
    let reader = DbReader::builder(FOLDER, store).with_reader_mode(DbReaderMode::FollowLatest).with_options(options);
    reader.build().await.map_err(failed)
}

async fn close(reader: &DbReader) {
    if let Err(error) = reader.close().await {
        tracing::debug!(%error, "closing the reader of a check");
    }
}

async fn counters(reader: &DbReader) -> Result<Option<Bytes>, BackendError> {
    reader.get(Key::Volume(VolumeKey::Counters).encode()).await.map_err(failed)
}

/// The first bytes of no known key: each range from the first to before the second.
fn gaps() -> impl Iterator<Item = (u8, u8)> {
    let known = *b"bcdiosvx";
    let starts = std::iter::once(0).chain(known.map(|tag| tag + 1));
    let ends = known.into_iter().chain([u8::MAX]);
    starts.zip(ends).filter(|(start, end)| start < end)
}

async fn records(reader: &DbReader, first: u8, end: u8) -> Result<Records, BackendError> {
    let options = ScanOptions::new().with_read_ahead_bytes(1 << 20).with_max_fetch_tasks(4).with_cache_blocks(false);
    let entries = reader.scan_with_options(vec![first]..vec![end], &options).await.map_err(failed)?;
    Ok(Records { entries, head: None })
}

impl Records {
    /// The next key, which stays next.
    async fn peek(&mut self) -> Result<Option<&(Vec<u8>, Bytes)>, BackendError> {
        if self.head.is_none() {
            let next = self.entries.next().await.map_err(failed)?;
            self.head = next.map(|entry| (entry.key.to_vec(), entry.value));
        }
        Ok(self.head.as_ref())
    }

    /// The next record. Keys that this version does not know are reported.
    pub(super) async fn next(
        &mut self,
        mut problem: impl FnMut(Problem),
    ) -> Result<Option<(Key, Bytes)>, BackendError> {
        loop {
            self.peek().await?;
            let Some((key, value)) = self.head.take() else { return Ok(None) };
            match Key::decode(&key) {
                Ok(key) => return Ok(Some((key, value))),
                Err(_) => problem(Problem::UnknownKey(key)),
            }
        }
    }

    /// The next record if its key is at most `last`. For a merge with another stream.
    pub(super) async fn next_up_to(
        &mut self,
        last: Key,
        problem: impl FnMut(Problem),
    ) -> Result<Option<(Key, Bytes)>, BackendError> {
        let last = last.encode();
        match self.peek().await? {
            Some((key, _)) if key.as_slice() <= last.as_ref() => self.next(problem).await,
            _ => Ok(None),
        }
    }
}

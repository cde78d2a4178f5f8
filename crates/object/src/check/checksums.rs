//! The bytes of extents against their checksums.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use object_store::{Error, ObjectStore, ObjectStoreExt};
use slackwater::BackendError;
use slackwater_sync::shim::Arc;
use slatedb::DbReader;

use crate::check::problem::Problem;
use crate::check::run::Findings;
use crate::check::snapshot::failed;
use crate::contents::checksum::first_wrong;
use crate::format::{CHUNK_BYTES, Key, SegmentPlace, Stored};
use crate::segments::path_of;
use crate::store::of_store;

/// Extents that are read at once: at most 1 MiB each.
const PARALLEL: usize = 16;

/// An extent to read.
pub(super) struct Job {
    pub(super) ino: u64,
    /// The index of the extent's chunk.
    pub(super) index: u64,
    pub(super) at: u32,
    pub(super) len: u32,
    pub(super) stored: Stored,
    pub(super) place: SegmentPlace,
}

/// Reads extents and compares them, several at once.
pub(super) struct Verifier {
    store: Arc<dyn ObjectStore>,
    reader: Arc<DbReader>,
    running: FuturesUnordered<BoxFuture<'static, Result<(Job, Bytes), BackendError>>>,
}

impl Verifier {
    pub(super) fn new(store: Arc<dyn ObjectStore>, reader: Arc<DbReader>) -> Self {
        Self { store, reader, running: FuturesUnordered::new() }
    }

    /// Starts to read an extent, as soon as fewer than [`PARALLEL`] are being read.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn start(&mut self, job: Job, findings: &mut Findings<'_>) -> Result<(), BackendError> {
        while self.running.len() >= PARALLEL {
            self.wait(findings).await?;
        }
        let (store, reader) = (self.store.clone(), self.reader.clone());
        let read = async move {
            let bytes = bytes_of(&*store, &reader, &job).await?;
            Ok((job, bytes))
        };
        self.running.push(read.boxed());
        Ok(())
    }

    /// Waits for the extents that are being read.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn finish(&mut self, findings: &mut Findings<'_>) -> Result<(), BackendError> {
        while !self.running.is_empty() {
            self.wait(findings).await?;
        }
        Ok(())
    }

    async fn wait(&mut self, findings: &mut Findings<'_>) -> Result<(), BackendError> {
        let Some(done) = self.running.next().await else { return Ok(()) };
        let (Job { ino, index, at, len, stored, .. }, bytes) = done?;
        findings.step("reading data", 1);
        findings.report.verified_bytes += bytes.len() as u64;
        let segment = stored.segment;
        if bytes.len() < stored.stored_len as usize {
            findings.add(Problem::LostExtent { ino, index, at, len, segment, why: "is missing" });
        } else if first_wrong([bytes.as_ref()], &stored.crc32c).is_some() {
            let offset_bytes = index * CHUNK_BYTES + u64::from(at);
            findings.add(Problem::CorruptExtent { ino, offset_bytes, len, segment });
        }
        Ok(())
    }
}

/// The bytes of an extent, with the blocks around it; fewer if they are not there any more.
async fn bytes_of(store: &dyn ObjectStore, reader: &DbReader, job: &Job) -> Result<Bytes, BackendError> {
    let stored = &job.stored;
    let range = u64::from(stored.offset)..u64::from(stored.offset) + u64::from(stored.stored_len);
    match job.place {
        SegmentPlace::Object => match store.get_range(&path_of(stored.segment), range).await {
            Ok(bytes) => Ok(bytes),
            // A writer may have collected it since the listing.
            Err(Error::NotFound { .. }) => Ok(Bytes::new()),
            Err(error) => Err(of_store(&error)),
        },
        SegmentPlace::Blob => {
            let blob = reader.get(Key::Blob(stored.segment).encode()).await.map_err(failed)?.unwrap_or_default();
            let (start, end) = (range.start as usize, range.end as usize);
            Ok(if end <= blob.len() { blob.slice(start..end) } else { Bytes::new() })
        }
    }
}

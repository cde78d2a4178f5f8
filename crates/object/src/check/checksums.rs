//! The bytes of extents against their checksums.

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use object_store::{ObjectStore, ObjectStoreExt};
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;
use slatedb::DbReader;

use crate::check::problem::Problem;
use crate::check::run::Findings;
use crate::check::snapshot::failed;
use crate::format::{CHECKSUM_BLOCK_BYTES, Key, SegmentPlace, Stored};
use crate::segments::path_of;

/// Extents that are read at once: at most 1 MiB each.
const PARALLEL: usize = 16;

/// An extent to read.
pub(super) struct Job {
    pub(super) ino: u64,
    pub(super) offset_bytes: u64,
    pub(super) len: u32,
    pub(super) stored: Stored,
    pub(super) place: SegmentPlace,
}

/// Reads extents and compares them, several at once.
pub(super) struct Verifier {
    store: Arc<dyn ObjectStore>,
    reader: Arc<DbReader>,
    running: FuturesUnordered<BoxFuture<'static, Result<(Job, bool), BackendError>>>,
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
            let is_good = verify(&*store, &reader, &job).await?;
            Ok((job, is_good))
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
        let (job, is_good) = done?;
        findings.step("reading data", 1);
        findings.report.verified_bytes += u64::from(job.stored.stored_len);
        if !is_good {
            let Job { ino, offset_bytes, len, stored, .. } = job;
            findings.add(Problem::CorruptExtent { ino, offset_bytes, len, segment: stored.segment });
        }
        Ok(())
    }
}

/// Whether the bytes of an extent are those that were stored.
async fn verify(store: &dyn ObjectStore, reader: &DbReader, job: &Job) -> Result<bool, BackendError> {
    let stored = &job.stored;
    let range = u64::from(stored.offset)..u64::from(stored.offset) + u64::from(stored.stored_len);
    let bytes = match job.place {
        SegmentPlace::Object => {
            let path = path_of(stored.segment);
            store
                .get_range(&path, range.clone())
                .await
                .map_err(|error| BackendError::new(ErrorKind::Io, format!("cannot read {path}: {error}")))?
        }
        SegmentPlace::Blob => {
            let blob = reader.get(Key::Blob(stored.segment).encode()).await.map_err(failed)?.unwrap_or_default();
            let (start, end) = (range.start as usize, range.end as usize);
            if end <= blob.len() { blob.slice(start..end) } else { Bytes::new() }
        }
    };
    let blocks = bytes.chunks(CHECKSUM_BLOCK_BYTES as usize).map(crc32c::crc32c);
    Ok(bytes.len() as u64 == range.end - range.start && blocks.eq(stored.crc32c.iter().copied()))
}

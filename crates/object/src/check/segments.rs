//! The segments of a volume: their records, what is stored of them, and what files use.

use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;
use slackwater::{BackendError, ErrorKind};

use crate::check::problem::Problem;
use crate::check::run::Findings;
use crate::check::snapshot::Snapshot;
use crate::format::{Decode, FOOTER_TAIL_BYTES, Key, SegmentId, SegmentPlace, SegmentRecord, Stored};
use crate::segments::{FOLDER, id_of};

/// A segment that has a record.
struct Segment {
    id: SegmentId,
    record: SegmentRecord,
    /// Bytes of it that are in the store; `None` if its object or blob is missing.
    present_bytes: Option<u64>,
    /// Bytes of it that files use.
    used_bytes: u64,
}

/// All segments with records, in the order of their ids.
pub(super) struct Segments(Vec<Segment>);

impl Segments {
    /// Reads the records and blobs of a snapshot, and lists the objects.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn read(
        snapshot: &mut Snapshot,
        store: &dyn ObjectStore,
        findings: &mut Findings<'_>,
    ) -> Result<Self, BackendError> {
        let mut segments = Self(Vec::new());
        while let Some((key, value)) = snapshot.segments.next(|problem| findings.add(problem)).await? {
            findings.step("reading segment records", 1);
            let Key::Segment(id) = key else { continue };
            match SegmentRecord::decode(&value) {
                Ok(record) => segments.0.push(Segment { id, record, present_bytes: None, used_bytes: 0 }),
                Err(bad) => findings.add(Problem::Undecodable(key, bad.0)),
            }
        }
        while let Some((key, value)) = snapshot.blobs.next(|problem| findings.add(problem)).await? {
            findings.step("reading small segments", 1);
            let Key::Blob(id) = key else { continue };
            match segments.find(id).filter(|segment| segment.record.place == SegmentPlace::Blob) {
                Some(segment) => segment.present_bytes = Some(data_bytes_max(value.len() as u64)),
                None => findings.add(Problem::StrayBlob(id)),
            }
        }
        segments.list(store, findings).await?;
        findings.report.segments = segments.0.len() as u64;
        Ok(segments)
    }

    async fn list(&mut self, store: &dyn ObjectStore, findings: &mut Findings<'_>) -> Result<(), BackendError> {
        let mut objects = store.list(Some(&Path::from(FOLDER)));
        let failed = |error| BackendError::new(ErrorKind::Io, format!("cannot list the segments: {error}"));
        while let Some(object) = objects.try_next().await.map_err(failed)? {
            findings.step("listing segments", 1);
            let known = id_of(&object.location).and_then(|id| self.find(id));
            match known.filter(|segment| segment.record.place == SegmentPlace::Object) {
                Some(segment) => segment.present_bytes = Some(data_bytes_max(object.size)),
                None => {
                    findings.report.garbage_objects += 1;
                    findings.report.garbage_bytes += object.size;
                }
            }
        }
        Ok(())
    }

    fn find(&mut self, id: SegmentId) -> Option<&mut Segment> {
        let index = self.0.binary_search_by_key(&id, |segment| segment.id).ok()?;
        Some(&mut self.0[index])
    }

    /// Counts `len` bytes that a file uses. Returns where they are, or why they are not there.
    pub(super) fn count(&mut self, stored: &Stored, len: u32) -> Result<SegmentPlace, &'static str> {
        let Some(segment) = self.find(stored.segment) else { return Err("has no record") };
        segment.used_bytes += u64::from(len);
        let end = u64::from(stored.offset) + u64::from(stored.stored_len);
        match segment.present_bytes {
            _ if end > segment.record.total_bytes => Err("is shorter by its record"),
            None => Err("is missing"),
            Some(present) if end > present => Err("is truncated"),
            Some(_) => Ok(segment.record.place),
        }
    }

    /// Compares the live bytes of all records with what was counted, if all extents were.
    pub(super) fn finish(&self, findings: &mut Findings<'_>) {
        for segment in &self.0 {
            findings.report.live_bytes += segment.used_bytes;
            let is_used_and_dead = segment.used_bytes != 0 && segment.record.dead_unix_ms != 0;
            let is_wrong = segment.record.live_bytes != segment.used_bytes || is_used_and_dead;
            if is_wrong && !findings.lacks_extents {
                findings.add(Problem::WrongLive {
                    segment: segment.id,
                    is: segment.record.live_bytes,
                    should: segment.used_bytes,
                });
            }
        }
    }
}

/// The most bytes of data in a segment of this size: behind them is the footer.
fn data_bytes_max(size_bytes: u64) -> u64 {
    size_bytes.saturating_sub(FOOTER_TAIL_BYTES as u64)
}

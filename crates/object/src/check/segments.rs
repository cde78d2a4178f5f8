//! The segments of a volume: their records, what is stored of them, and what files use.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use slackwater::BackendError;
use slatedb::DbReader;

use crate::check::problem::Problem;
use crate::check::run::Findings;
use crate::check::snapshot::{Snapshot, failed};
use crate::format::{Decode, FOOTER_TAIL_BYTES, Footer, Key, SegmentId, SegmentPlace, SegmentRecord, Stored};
use crate::segments::{FOLDER, id_of, path_of};
use crate::store::of_store;

/// Objects that are asked for at once.
const PARALLEL: usize = 16;
/// Why an extent counts as lost if its segment has no record.
const NO_RECORD: &str = "has no record";

/// A segment that has a record.
struct Segment {
    id: SegmentId,
    record: SegmentRecord,
    /// Bytes of it that are in the store; `None` if its object or blob is missing.
    present_bytes: Option<u64>,
    /// Bytes of it that files use.
    used_bytes: u64,
}

/// All segments.
#[derive(Default)]
pub(super) struct Segments {
    /// Segments with records, in the order of their ids.
    recorded: Vec<Segment>,
    /// Segments whose records cannot be read: nothing is known of them (K3).
    unreadable: BTreeSet<SegmentId>,
    /// Segments without records, with the bytes of them that files use.
    unrecorded: BTreeMap<SegmentId, u64>,
    /// Blobs without records.
    stray_blobs: Vec<SegmentId>,
}

/// The bytes of an extent.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Used {
    At(SegmentPlace),
    /// They may be there.
    Unknown,
    /// They are not there, for this reason.
    Lost(&'static str),
}

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
        let mut segments = Self::default();
        while let Some((key, value)) = snapshot.segments.next(|problem| findings.add(problem)).await? {
            findings.step("reading segment records", 1);
            let Key::Segment(id) = key else { continue };
            match SegmentRecord::decode(&value) {
                Ok(record) => segments.recorded.push(Segment { id, record, present_bytes: None, used_bytes: 0 }),
                Err(bad) => {
                    findings.add(Problem::Undecodable(key, bad.0));
                    segments.unreadable.insert(id);
                }
            }
        }
        while let Some((key, value)) = snapshot.blobs.next(|problem| findings.add(problem)).await? {
            findings.step("reading small segments", 1);
            let Key::Blob(id) = key else { continue };
            match segments.find(id).filter(|segment| segment.record.place == SegmentPlace::Blob) {
                Some(segment) => segment.present_bytes = Some(data_bytes_max(value.len() as u64)),
                None => segments.stray_blobs.push(id),
            }
        }
        segments.list(store, findings).await?;
        segments.look_for_missing(store).await?;
        findings.report.segments = segments.recorded.len() as u64;
        Ok(segments)
    }

    async fn list(&mut self, store: &dyn ObjectStore, findings: &mut Findings<'_>) -> Result<(), BackendError> {
        let mut objects = store.list(Some(&Path::from(FOLDER)));
        while let Some(object) = objects.try_next().await.map_err(|error| of_store(&error))? {
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

    /// Asks for the objects that the listing lacks by their names: a repair takes the data of missing ones for lost.
    async fn look_for_missing(&mut self, store: &dyn ObjectStore) -> Result<(), BackendError> {
        let is_missing =
            |segment: &&mut Segment| segment.record.place == SegmentPlace::Object && segment.present_bytes.is_none();
        let asked = self.recorded.iter_mut().filter(is_missing).map(|segment| async move {
            match store.head(&path_of(segment.id)).await {
                Ok(object) => segment.present_bytes = Some(data_bytes_max(object.size)),
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(of_store(&error)),
            }
            Ok(())
        });
        stream::iter(asked).buffer_unordered(PARALLEL).try_collect().await
    }

    fn find(&mut self, id: SegmentId) -> Option<&mut Segment> {
        let index = self.recorded.binary_search_by_key(&id, |segment| segment.id).ok()?;
        Some(&mut self.recorded[index])
    }

    /// Counts `len` bytes that a file uses.
    pub(super) fn count(&mut self, stored: &Stored, len: u32) -> Used {
        if self.unreadable.contains(&stored.segment) {
            return Used::Unknown;
        }
        let Some(segment) = self.find(stored.segment) else {
            *self.unrecorded.entry(stored.segment).or_default() += u64::from(len);
            return Used::Lost(NO_RECORD);
        };
        segment.used_bytes += u64::from(len);
        let end = u64::from(stored.offset) + u64::from(stored.stored_len);
        match segment.present_bytes {
            _ if end > segment.record.total_bytes => Used::Lost("is shorter by its record"),
            None => Used::Lost("is missing"),
            Some(present) if end > present => Used::Lost("is truncated"),
            Some(_) => Used::At(segment.record.place),
        }
    }

    /// Looks for the segments that files use and that have no record, and reports those that are stored: their extents
    /// are not lost.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn find_unrecorded(
        &mut self,
        store: &dyn ObjectStore,
        reader: &DbReader,
        findings: &mut Findings<'_>,
    ) -> Result<(), BackendError> {
        for (id, used_bytes) in &self.unrecorded {
            let Some((place, total_bytes)) = stored(store, reader, *id).await? else { continue };
            // Without a record, every extent of it is in the findings or beyond their number.
            findings.problems.retain(
                |problem| !matches!(problem, Problem::LostExtent { segment, why: NO_RECORD, .. } if segment == id),
            );
            // Bytes that cannot be counted may be used.
            let live_bytes = if findings.lacks_extents { total_bytes } else { *used_bytes };
            let record = SegmentRecord { live_bytes, ..SegmentRecord::new(place, total_bytes) };
            findings.add(Problem::NoRecord { segment: *id, record });
            self.stray_blobs.retain(|blob| blob != id);
        }
        let unreadable = &self.unreadable;
        for blob in self.stray_blobs.drain(..).filter(|blob| !unreadable.contains(blob)) {
            findings.add(Problem::StrayBlob(blob));
        }
        Ok(())
    }

    /// Compares the live bytes of all records with what was counted, if all extents were.
    pub(super) fn finish(&self, findings: &mut Findings<'_>) {
        for segment in &self.recorded {
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

/// Where a segment is stored, and how many bytes of data it has by its footer; `None` if it is not stored as a whole.
async fn stored(
    store: &dyn ObjectStore,
    reader: &DbReader,
    id: SegmentId,
) -> Result<Option<(SegmentPlace, u64)>, BackendError> {
    let (place, bytes) = match reader.get(Key::Blob(id).encode()).await.map_err(failed)? {
        Some(blob) => (SegmentPlace::Blob, blob),
        None => {
            let object = async { store.get(&path_of(id)).await?.bytes().await };
            match object.await {
                Ok(bytes) => (SegmentPlace::Object, bytes),
                Err(Error::NotFound { .. }) => return Ok(None),
                Err(error) => return Err(of_store(&error)),
            }
        }
    };
    let Some(tail) = bytes.last_chunk() else { return Ok(None) };
    let end = bytes.len().checked_sub(FOOTER_TAIL_BYTES + Footer::encoded_len(*tail) as usize);
    let data = end.filter(|end| Footer::from_bytes(&bytes[*end..]).is_ok());
    Ok(data.map(|end| (place, end as u64)))
}

/// The most bytes of data in a segment of this size: behind them is the footer.
fn data_bytes_max(size_bytes: u64) -> u64 {
    size_bytes.saturating_sub(FOOTER_TAIL_BYTES as u64)
}

//! Copying what is left of old segments into new ones.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use slackwater::{BackendError, ErrorKind};

use crate::clock;
use crate::contents::checksum;
use crate::contents::map::{Reference, chunks_of, references, relocate};
use crate::format::{CHUNK_BYTES, Encode, Footer, Key, SegmentId, SegmentPlace, SegmentRecord, Source, Stored};
use crate::segments::{Segments, damaged};
use crate::space::records::{self, Segment};
use crate::tree::Tree;

/// A new segment of this size gets no further sources.
const NEW_BYTES: u64 = 8 << 20;
/// The most segments that one step reads. Small segments are merged when there are so many, or when they fill a new one.
const SOURCES_MAX: usize = 16;
/// An object with less data than this is small.
const SMALL_BYTES: u64 = 1 << 20;
/// Segments younger than this are left alone: their files are often changed again.
const SETTLED_MS: u64 = 10 * 60_000;
/// Chunks that one call on the tree reads.
const CHUNKS_TOGETHER: usize = 256;
/// New segments that are planned with one pass over all records.
const PLANNED_MAX: usize = 64;

/// The result of one step.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Compacted {
    /// There was nothing to do.
    Nothing,
    /// The step moved so many bytes.
    Moved(u64),
}

/// Compacts the segments of a volume, step by step.
pub(super) struct Compactor {
    /// Segments of which nothing could be moved, although their records count live bytes.
    stuck: HashSet<SegmentId>,
    /// The sources of the next new segments.
    plan: VecDeque<Vec<Segment>>,
    /// Whether some segments were too young for the plan.
    has_unsettled: bool,
    settled_ms: u64,
}

/// A segment that is being made.
#[derive(Default)]
struct New {
    data: Vec<Bytes>,
    len_bytes: u32,
    footer: Footer,
    moves: Vec<(Reference, Stored)>,
}

impl Compactor {
    pub(super) fn new() -> Self {
        Self { stuck: HashSet::new(), plan: VecDeque::new(), has_unsettled: false, settled_ms: SETTLED_MS }
    }

    /// Whether there will be something to do without a further commit.
    pub(super) fn waits(&self) -> bool {
        self.has_unsettled
    }

    /// Tries segments again of which nothing could be moved: the store may have failed.
    pub(super) fn try_stuck_again(&mut self) {
        self.stuck.clear();
    }

    /// A compactor that compacts young segments as well.
    #[cfg(test)]
    pub(super) fn eager() -> Self {
        Self { settled_ms: 0, ..Self::new() }
    }

    /// Makes one new segment of old ones, the oldest first. The caller commits.
    ///
    /// # Errors
    /// The store's. Extents that were moved stay moved, and an object may be left that the collector removes.
    pub(super) async fn step(&mut self, tree: &Tree, segments: &Segments) -> Result<Compacted, BackendError> {
        if self.plan.is_empty() {
            self.plan = self.choose(tree).await?;
        }
        let Some(sources) = self.plan.pop_front() else { return Ok(Compacted::Nothing) };
        let (id, mut new) = (tree.new_segment_id(), New::default());
        for source in &sources {
            let before = new.moves.len();
            if let Err(error) = new.add(tree, segments, id, source).await {
                tracing::error!(target: "slackwater::object", segment = %source.id, %error, "cannot compact a segment");
            }
            if new.moves.len() == before {
                self.stuck.insert(source.id);
            }
        }
        if new.moves.is_empty() {
            return Ok(Compacted::Moved(0));
        }
        let len_bytes = u64::from(new.len_bytes);
        segments.put(id, new.data, &new.footer).await?;
        let record = SegmentRecord::new(SegmentPlace::Object, len_bytes);
        tree.run(|view| {
            view.put(Key::Segment(id), record.encode());
            Ok(())
        })
        .await?;
        let mut moved = 0;
        for (old, stored) in &new.moves {
            if tree.run(|view| relocate(view, old, stored)).await? {
                moved += u64::from(old.extent.len);
            }
        }
        tracing::debug!(target: "slackwater::object", sources = sources.len(), segment = %id, moved, "compacted segments");
        Ok(Compacted::Moved(moved))
    }

    /// The sources of the next new segments.
    async fn choose(&mut self, tree: &Tree) -> Result<VecDeque<Vec<Segment>>, BackendError> {
        let now_ms = clock::unix_ms();
        let (mut sparse, mut small, mut has_unsettled) = (Chosen::default(), Chosen::default(), false);
        let candidate = |segment: &Segment| segment.live_bytes != 0 && !self.stuck.contains(&segment.id);
        records::for_each(
            tree,
            |_, segment| Ok(candidate(segment).then_some(*segment)),
            |segment| {
                let is_object = segment.record.place == SegmentPlace::Object;
                let kind = if is_object && segment.live_bytes * 2 < segment.record.total_bytes {
                    &mut sparse
                } else if !is_object || segment.record.total_bytes < SMALL_BYTES {
                    &mut small
                } else {
                    return;
                };
                if now_ms.saturating_sub(segment.id.unix_ms()) < self.settled_ms {
                    has_unsettled = true;
                } else {
                    kind.add(segment);
                }
            },
        )
        .await?;
        self.has_unsettled = has_unsettled;
        let sparse: VecDeque<_> =
            sparse.full.into_iter().chain([sparse.sources]).filter(|sources| !sources.is_empty()).collect();
        Ok(if sparse.is_empty() { small.full } else { sparse })
    }
}

/// Candidates in their order, in groups that fill a new segment.
#[derive(Default)]
struct Chosen {
    full: VecDeque<Vec<Segment>>,
    /// A group that is not full.
    sources: Vec<Segment>,
    bytes: u64,
}

impl Chosen {
    fn add(&mut self, segment: Segment) {
        if self.full.len() == PLANNED_MAX {
            return;
        }
        self.bytes += segment.live_bytes;
        self.sources.push(segment);
        if self.bytes >= NEW_BYTES || self.sources.len() == SOURCES_MAX {
            self.full.push_back(std::mem::take(&mut self.sources));
            self.bytes = 0;
        }
    }
}

impl New {
    /// Adds the live bytes of a segment.
    async fn add(
        &mut self,
        tree: &Tree,
        segments: &Segments,
        id: SegmentId,
        source: &Segment,
    ) -> Result<(), BackendError> {
        let bytes = match source.record.place {
            SegmentPlace::Object => segments.whole(source.id).await?,
            SegmentPlace::Blob => {
                let blob = tree.run(|view| view.get(Key::Blob(source.id))).await?;
                blob.ok_or_else(|| BackendError::new(ErrorKind::Io, format!("segment {} is missing", source.id)))?
            }
        };
        let data_len = (source.record.total_bytes as usize).min(bytes.len());
        let footer = Footer::from_bytes(&bytes[data_len..]).map_err(|error| damaged(source.id, error))?;
        let data = bytes.slice(..data_len);
        for chunks in chunks_of(&footer.entries).chunks(CHUNKS_TOGETHER) {
            for found in tree.run(|view| references(view, source.id, chunks)).await? {
                self.move_here(id, found, &data);
            }
        }
        Ok(())
    }

    /// Adds the bytes of an extent that refers to `data`.
    fn move_here(&mut self, id: SegmentId, found: Reference, data: &Bytes) {
        let Source::Segment(stored) = &found.extent.source else { return };
        let Some(live) = verified(data, stored, found.extent.len) else {
            damaged(stored.segment, format_args!("wrong bytes from {} on; they are not moved", stored.offset));
            return;
        };
        let crc32c = checksum::of_pieces([live.as_ref()]);
        let new = Stored { segment: id, offset: self.len_bytes, stored_len: found.extent.len, skip: 0, crc32c };
        self.footer.add(found.ino, found.index * CHUNK_BYTES + u64::from(found.extent.at), &new);
        self.len_bytes += found.extent.len;
        // A copy: the rest of the source need not stay in memory.
        self.data.push(Bytes::copy_from_slice(&live));
        self.moves.push((found, new));
    }
}

/// The `len` bytes of an extent in the data of its segment, if all of its blocks are right.
fn verified(data: &Bytes, stored: &Stored, len: u32) -> Option<Bytes> {
    let range = |at: u32, len: u32| -> Option<Range<usize>> {
        let (at, end) = (at as usize, at as usize + len as usize);
        (end <= data.len()).then_some(at..end)
    };
    let blocks = data.slice(range(stored.offset, stored.stored_len)?);
    if checksum::first_wrong([blocks.as_ref()], &stored.crc32c).is_some() {
        return None;
    }
    Some(data.slice(range(stored.offset + stored.skip, len)?))
}

//! Moving the bytes of extents to another segment.

use std::collections::BTreeSet;

use crate::contents::map::chunks::FileRange;
use crate::format::{Chunk, Encode, Extent, FooterEntry, Key, SegmentId, Source, Stored};
use crate::tree::{Stop, View};

/// An extent that refers to a segment.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub(crate) ino: u64,
    /// The chunk of the file.
    pub(crate) index: u64,
    pub(crate) extent: Extent,
}

/// The chunks that entries of a footer name, with their inodes.
pub(crate) fn chunks_of(entries: &[FooterEntry]) -> Vec<(u64, u64)> {
    let mut chunks = BTreeSet::new();
    for entry in entries {
        let end = entry.file_offset_bytes.saturating_add(u64::from(entry.len_bytes));
        let range = FileRange { at: entry.file_offset_bytes, end };
        chunks.extend(range.chunks().map(|(index, _)| (entry.ino, index)));
    }
    chunks.into_iter().collect()
}

/// The extents in these chunks that refer to a segment.
///
/// # Errors
/// [`Stop::Missing`]; `Io` if a record is corrupt.
pub(crate) fn references(
    view: &mut View<'_>,
    segment: SegmentId,
    chunks: &[(u64, u64)],
) -> Result<Vec<Reference>, Stop> {
    let keys: Vec<Key> = chunks.iter().map(|(ino, index)| Key::Chunk { ino: *ino, index: *index }).collect();
    view.expect(&keys)?;
    let mut found = Vec::new();
    for (ino, index) in chunks.iter().copied() {
        let chunk: Chunk = view.record(Key::Chunk { ino, index })?.unwrap_or_default();
        let refers = |extent: &Extent| matches!(&extent.source, Source::Segment(stored) if stored.segment == segment);
        let extents = chunk.extents.into_iter().filter(refers);
        found.extend(extents.map(|extent| Reference { ino, index, extent }));
    }
    Ok(found)
}

/// Lets an extent refer to the same bytes in another segment, if it is unchanged. Returns whether it was.
///
/// # Errors
/// As [`references`].
pub(crate) fn relocate(view: &mut View<'_>, old: &Reference, new: &Stored) -> Result<bool, Stop> {
    let key = Key::Chunk { ino: old.ino, index: old.index };
    let mut chunk: Chunk = view.record(key)?.unwrap_or_default();
    let Some(extent) = chunk.extents.iter_mut().find(|extent| **extent == old.extent) else { return Ok(false) };
    if let Source::Segment(stored) = &extent.source {
        view.count_live(stored.segment, -i64::from(extent.len));
    }
    view.count_live(new.segment, i64::from(extent.len));
    extent.source = Source::Segment(new.clone());
    view.put(key, chunk.encode());
    Ok(true)
}

//! Where the bytes of a range of a file are.

use std::ops::Range;

use crate::contents::map;
use crate::format::{CHECKSUM_BLOCK_BYTES, Key, Source, Stored};
use crate::tree::{Stop, View};

/// A part of a range that has bytes.
pub(super) struct Part {
    /// Where it begins in the range.
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) bytes: Bytes,
}

/// The bytes of a part.
pub(super) enum Bytes {
    InMemory(bytes::Bytes),
    /// In an object.
    Stored(Stored),
}

impl Part {
    pub(super) fn is_in_memory(&self) -> bool {
        matches!(self.bytes, Bytes::InMemory(_))
    }

    /// The part's place and its bytes, if they are in memory.
    pub(super) fn in_memory(self) -> Option<(usize, bytes::Bytes)> {
        match self.bytes {
            Bytes::InMemory(bytes) => Some((self.at, bytes)),
            Bytes::Stored(_) => None,
        }
    }
}

/// The parts of a range of a file in order, and how many of its bytes lie before the end of the file. A byte in no part
/// is zero.
///
/// # Errors
/// As [`map::extents`].
pub(super) fn locate(view: &mut View<'_>, ino: u64, range: Range<u64>) -> Result<(usize, Vec<Part>), Stop> {
    let start = range.start;
    let (len, extents) = map::extents(view, ino, range)?;
    let mut parts = Vec::with_capacity(extents.len());
    let mut blobs = Vec::new();
    for (offset, extent) in extents {
        let Source::Segment(stored) = extent.source else { continue };
        let (at, len) = ((offset - start) as usize, extent.len as usize);
        let bytes = match view.small(stored.segment, stored.offset, stored.stored_len) {
            Some(bytes) => Bytes::InMemory(bytes.slice(stored.skip as usize..stored.skip as usize + len)),
            None => {
                if may_be_blob(&stored) && blobs.last() != Some(&Key::Blob(stored.segment)) {
                    blobs.push(Key::Blob(stored.segment));
                }
                Bytes::Stored(stored)
            }
        };
        parts.push(Part { at, len, bytes });
    }
    view.expect(&blobs)?;
    for part in &mut parts {
        if let Bytes::Stored(stored) = &part.bytes
            && may_be_blob(stored)
            && let Some(blob) = view.get(Key::Blob(stored.segment))?
        {
            let at = (stored.offset + stored.skip) as usize;
            if let Some(found) = blob.get(at..at + part.len) {
                part.bytes = Bytes::InMemory(blob.slice_ref(found));
            }
        }
    }
    Ok((len as usize, parts))
}

/// Only packs are kept in the tree, and their ranges are small.
fn may_be_blob(stored: &Stored) -> bool {
    stored.stored_len < CHECKSUM_BLOCK_BYTES
}

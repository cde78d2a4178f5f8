//! The chunks of a range of a file.

use std::ops::Range;

use crate::contents::map::STEP_CHUNKS;
use crate::contents::map::file::File;
use crate::format::{CHUNK_BYTES, Chunk, Extent, Key};
use crate::tree::{Stop, View, decode};

/// A range of a file: from `at` to before `end`.
#[derive(Copy, Clone, Debug)]
pub(super) struct FileRange {
    pub(super) at: u64,
    pub(super) end: u64,
}

impl FileRange {
    /// From an offset to behind the last possible byte of a file.
    pub(super) fn from(at: u64) -> Self {
        Self { at, end: crate::format::FILE_BYTES_MAX }
    }

    /// The indexes of its chunks, with the part of each that lies in the range.
    pub(super) fn chunks(self) -> impl Iterator<Item = (u64, Range<u32>)> {
        (self.at / CHUNK_BYTES..self.end.div_ceil(CHUNK_BYTES)).map(move |index| (index, self.part_of(index)))
    }

    /// The part of the chunk at `index` that lies in the range.
    pub(super) fn part_of(self, index: u64) -> Range<u32> {
        let start = index * CHUNK_BYTES;
        let at = self.at.saturating_sub(start).min(CHUNK_BYTES);
        let end = self.end.saturating_sub(start).min(CHUNK_BYTES);
        at as u32..end as u32
    }

    /// The first of its chunks that have a record, at most `limit`.
    ///
    /// # Errors
    /// [`Stop::Missing`]; `Io` if a record is corrupt.
    pub(super) fn scan(self, view: &mut View<'_>, ino: u64, limit: usize) -> Result<Vec<(u64, Chunk)>, Stop> {
        if self.at >= self.end {
            return Ok(Vec::new());
        }
        let first = Key::Chunk { ino, index: self.at / CHUNK_BYTES };
        let last = Key::Chunk { ino, index: (self.end - 1) / CHUNK_BYTES };
        let mut found = Vec::new();
        for (key, value) in view.scan(first, last, limit)? {
            if let Key::Chunk { index, .. } = key {
                found.push((index, decode(key, &value)?));
            }
        }
        Ok(found)
    }
}

/// The extents of a range of a file, with their offsets in the file, and how many of its bytes lie before the end of
/// the file. The range has at most [`STEP_CHUNKS`] chunks.
///
/// # Errors
/// [`Stop::Missing`]; `Stale` if there is no such inode; `Io` if a record is corrupt.
pub(crate) fn extents(view: &mut View<'_>, ino: u64, range: Range<u64>) -> Result<(u64, Vec<(u64, Extent)>), Stop> {
    let file = File::open(view, ino)?;
    let range = FileRange { at: range.start, end: range.end.min(file.inode.size_bytes) };
    let mut found = Vec::new();
    if range.at >= range.end {
        return Ok((0, found));
    }
    if file.has_chunks() {
        let keys: Vec<Key> = range.chunks().take(STEP_CHUNKS).map(|(index, _)| Key::Chunk { ino, index }).collect();
        view.expect(&keys)?;
        for (index, part) in range.chunks() {
            let start = index * CHUNK_BYTES;
            let parts = file.chunk(view, index)?.parts(part.start, part.end);
            found.extend(parts.into_iter().map(|extent| (start + u64::from(extent.at), extent)));
        }
    }
    Ok((range.end - range.at, found))
}

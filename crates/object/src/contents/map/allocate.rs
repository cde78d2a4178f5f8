//! Allocating ranges of a file, and zeroing them. An allocated range reads as zeroes and is stored nowhere: in an
//! object store there is no space to reserve.

use std::collections::BTreeMap;

use slackwater::BackendError;
use slackwater::ErrorKind;

use crate::contents::map::chunks::FileRange;
use crate::contents::map::file::File;
use crate::contents::map::{ALLOCATE_BYTES_MAX, STEP_CHUNKS, Step, end_of};
use crate::format::CHUNK_BYTES;
use crate::tree::{Stop, View};

/// Whether a call that allocates space extends the file to the end of its range.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Size {
    Extend,
    Keep,
}

/// Allocates the holes of a range.
///
/// # Errors
/// [`Stop::Missing`]; `Stale` if there is no such inode; `Invalid` if the range is empty; `TooLarge`; `NoSpace` if it is
/// longer than [`ALLOCATE_BYTES_MAX`]; `Io` if a record is corrupt.
pub(crate) fn allocate(
    view: &mut View<'_>,
    ino: u64,
    offset_bytes: u64,
    len_bytes: u64,
    size: Size,
) -> Result<Step, Stop> {
    fill(view, ino, offset_bytes, len_bytes, size, false)
}

/// Allocates as [`allocate`] does, and what the range held is gone.
///
/// # Errors
/// As [`allocate`].
pub(crate) fn zero(view: &mut View<'_>, ino: u64, offset_bytes: u64, len_bytes: u64, size: Size) -> Result<Step, Stop> {
    fill(view, ino, offset_bytes, len_bytes, size, true)
}

fn fill(
    view: &mut View<'_>,
    ino: u64,
    offset_bytes: u64,
    len_bytes: u64,
    size: Size,
    clears: bool,
) -> Result<Step, Stop> {
    let end = end_of(offset_bytes, len_bytes)?;
    if len_bytes > ALLOCATE_BYTES_MAX {
        let text = "an object volume allocates at most 1 TiB per call";
        return Err(BackendError::new(ErrorKind::NoSpace, text).into());
    }
    let mut file = File::open(view, ino)?;
    let step_end = (offset_bytes / CHUNK_BYTES + STEP_CHUNKS as u64) * CHUNK_BYTES;
    let range = FileRange { at: offset_bytes, end: end.min(step_end) };
    let mut chunks = BTreeMap::new();
    if file.has_chunks() {
        chunks.extend(range.scan(view, ino, STEP_CHUNKS)?);
    }
    for (index, part) in range.chunks() {
        let mut chunk = chunks.remove(&index).unwrap_or_default();
        let old = if clears { chunk.take(part.start, part.end) } else { Vec::new() };
        file.lost(view, &old);
        let filled = chunk.fill(part.start, part.end);
        file.gained_zeroes(filled);
        if filled != 0 {
            file.put(view, index, &chunk);
        }
    }
    let step = if range.end < end { Step::Rest(range.end) } else { Step::Done };
    if step == Step::Done && size == Size::Extend {
        file.inode.size_bytes = file.inode.size_bytes.max(end);
    }
    file.close(view);
    Ok(step)
}

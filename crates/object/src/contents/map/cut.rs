//! Taking ranges out of a file.

use slackwater::ErrorKind;

use crate::contents::map::chunks::FileRange;
use crate::contents::map::file::File;
use crate::contents::map::{STEP_CHUNKS, Step, end_of};
use crate::format::{CHUNK_BYTES, FILE_BYTES_MAX};
use crate::tree::{Stop, View};

/// Sets the size of a file. Data behind the new end is gone; an added range is a hole. A step that leaves a rest has
/// only shortened the file, or freed space behind its end.
///
/// # Errors
/// [`Stop::Missing`]; `Stale` if there is no such inode; `TooLarge`; `Io` if a record is corrupt.
pub(crate) fn truncate(view: &mut View<'_>, ino: u64, size_bytes: u64) -> Result<Step, Stop> {
    if size_bytes > FILE_BYTES_MAX {
        return Err(ErrorKind::TooLarge.into());
    }
    let mut file = File::open(view, ino)?;
    let cut = place_to_cut(view, &file, size_bytes)?;
    let mut step = Step::Done;
    if file.has_chunks() {
        step = remove(view, &mut file, FileRange::from(cut))?;
    }
    if cut == size_bytes && step == Step::Done {
        file.inode.size_bytes = size_bytes;
    } else {
        file.inode.size_bytes = file.inode.size_bytes.min(cut);
        step = Step::Rest(cut);
    }
    file.close(view);
    Ok(step)
}

/// `size_bytes`, or if there are too many chunks behind it, an offset with fewer.
fn place_to_cut(view: &mut View<'_>, file: &File, size_bytes: u64) -> Result<u64, Stop> {
    let count =
        |view: &mut View<'_>, range: FileRange| range.scan(view, file.ino, STEP_CHUNKS + 1).map(|found| found.len());
    if !file.has_chunks() || count(view, FileRange::from(size_bytes))? <= STEP_CHUNKS {
        return Ok(size_bytes);
    }
    let mut end = file.inode.size_bytes.max(size_bytes).next_multiple_of(CHUNK_BYTES);
    if count(view, FileRange::from(end))? != 0 {
        return Ok(end);
    }
    // Backwards from the end: a window of so many chunks if the file is dense, and wider ones across large holes.
    let narrow = STEP_CHUNKS as u64 * CHUNK_BYTES;
    let mut width = narrow;
    loop {
        let at = end.saturating_sub(width).max(size_bytes);
        match count(view, FileRange { at, end })? {
            0 if at == size_bytes => return Ok(size_bytes),
            0 => (end, width) = (at, width.saturating_mul(2)),
            found if found > STEP_CHUNKS => width = (width / 2).max(narrow),
            _ => return Ok(at),
        }
    }
}

/// Makes a range a hole, also behind the end of the file. The size stays.
///
/// # Errors
/// As [`truncate`]; `Invalid` if it is empty.
pub(crate) fn punch(view: &mut View<'_>, ino: u64, offset_bytes: u64, len_bytes: u64) -> Result<Step, Stop> {
    let end = end_of(offset_bytes, len_bytes)?;
    let mut file = File::open(view, ino)?;
    let mut step = Step::Done;
    if file.has_chunks() {
        step = remove(view, &mut file, FileRange { at: offset_bytes, end })?;
    }
    file.close(view);
    Ok(step)
}

/// Frees extents of a file without names, from its first chunks on. When nothing is left to do, its inode has no
/// chunks.
///
/// # Errors
/// As [`truncate`].
pub(crate) fn free(view: &mut View<'_>, ino: u64) -> Result<Step, Stop> {
    let mut file = File::open(view, ino)?;
    if !file.has_chunks() {
        return Ok(Step::Done);
    }
    let step = remove(view, &mut file, FileRange::from(0))?;
    file.close(view);
    Ok(step)
}

/// Removes the extents of a range in its first chunks, as many as a step may.
fn remove(view: &mut View<'_>, file: &mut File, range: FileRange) -> Result<Step, Stop> {
    let found = range.scan(view, file.ino, STEP_CHUNKS)?;
    let more = found.len() == STEP_CHUNKS;
    let next = found.last().map_or(range.end, |(index, _)| (index + 1) * CHUNK_BYTES);
    for (index, mut chunk) in found {
        let part = range.part_of(index);
        let old = chunk.take(part.start, part.end);
        if !old.is_empty() {
            file.lost(view, &old);
            file.put(view, index, &chunk);
        }
    }
    Ok(if more && next < range.end { Step::Rest(next) } else { Step::Done })
}

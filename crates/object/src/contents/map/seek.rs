//! Finding data and holes.

use slackwater::backend::SeekWhence;

use crate::contents::map::STEP_CHUNKS;
use crate::contents::map::chunks::FileRange;
use crate::contents::map::file::File;
use crate::format::{CHUNK_BYTES, Source};
use crate::tree::{Stop, View};

/// The answer of one step.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Sought {
    /// The answer of the call.
    Found(Option<u64>),
    /// Nothing before this offset: go on there.
    Rest(u64),
}

/// Finds the next byte of data or of a hole. Allocated space without data counts as a hole.
///
/// # Errors
/// [`Stop::Missing`]; `Stale` if there is no such inode; `Io` if a record is corrupt.
pub(crate) fn seek(view: &mut View<'_>, ino: u64, offset_bytes: u64, whence: SeekWhence) -> Result<Sought, Stop> {
    let file = File::open(view, ino)?;
    let size = file.inode.size_bytes;
    if offset_bytes >= size {
        return Ok(Sought::Found(None));
    }
    let range = FileRange { at: offset_bytes, end: size };
    let chunks = if file.has_chunks() { range.scan(view, ino, STEP_CHUNKS)? } else { Vec::new() };
    let more = chunks.len() == STEP_CHUNKS;
    // Where the data seen so far ends, if none was missing.
    let mut data_end = offset_bytes;
    for (index, chunk) in &chunks {
        let part = range.part_of(*index);
        for extent in chunk.parts(part.start, part.end) {
            let at = index * CHUNK_BYTES + u64::from(extent.at);
            match (&extent.source, whence) {
                (Source::Zero, _) => {}
                (Source::Segment(_), SeekWhence::Data) => return Ok(Sought::Found(Some(at))),
                (Source::Segment(_), SeekWhence::Hole) if at > data_end => return Ok(Sought::Found(Some(data_end))),
                (Source::Segment(_), SeekWhence::Hole) => data_end = at + u64::from(extent.len),
            }
        }
    }
    let next = chunks.last().map_or(size, |(index, _)| ((index + 1) * CHUNK_BYTES).min(size));
    Ok(match whence {
        SeekWhence::Data if more && next < size => Sought::Rest(next),
        SeekWhence::Hole if more && data_end == next && next < size => Sought::Rest(next),
        SeekWhence::Data => Sought::Found(None),
        SeekWhence::Hole => Sought::Found(Some(data_end)),
    })
}

//! Which parts of which segments are the bytes of a file: functions on a [`View`](crate::tree::View).
//!
//! # Invariants
//! M1. The extents of a chunk are in order and do not overlap; a chunk without extents has no record.
//! M2. `Inode::allocated_bytes` is the sum of the lengths of the file's extents, and so is its part of
//!     [`Counters::data_bytes`](crate::tree::Counters::data_bytes). A file with 0 has no chunk.
//! M3. The live bytes of a segment are the sum of the lengths of all extents that refer to it.
//! M4. A step changes at most [`STEP_CHUNKS`] records. [`Step::Rest`] names the remaining work, and every step leaves
//!     a file that the caller could have seen without a crash.

mod allocate;
mod chunks;
mod cut;
mod edit;
mod file;
mod relocate;
mod seek;
#[cfg(test)]
mod tests;

pub(crate) use allocate::{Size, allocate, zero};
pub(crate) use chunks::extents;
pub(crate) use cut::{free, punch, truncate};
pub(crate) use file::write;
pub(crate) use relocate::{Reference, chunks_of, references, relocate};
pub(crate) use seek::{Sought, seek};

use slackwater::{BackendError, ErrorKind};

/// The most chunk records that one step reads or changes: 4 GiB of a dense file.
const STEP_CHUNKS: usize = 4096;
/// The most bytes that one call allocates or zeroes: a record is needed for each MiB.
const ALLOCATE_BYTES_MAX: u64 = 1 << 40;

/// The work that a step of a call has left.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Step {
    /// Nothing.
    Done,
    /// Run it again, from this offset on (a truncation finds its place itself).
    Rest(u64),
}

/// The end of a range of a file.
fn end_of(offset_bytes: u64, len_bytes: u64) -> Result<u64, BackendError> {
    if len_bytes == 0 {
        return Err(ErrorKind::Invalid.into());
    }
    let end = offset_bytes.checked_add(len_bytes).filter(|end| *end <= crate::format::FILE_BYTES_MAX);
    end.ok_or_else(|| ErrorKind::TooLarge.into())
}

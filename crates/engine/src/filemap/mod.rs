//! Operations on an open file: read, write, truncate, fsync and others, one file each.

mod allocate;
mod busy_frames;
mod drop_read;
mod fsync;
mod landed;
mod peek;
mod read;
mod readahead;
mod request;
mod revalidate;
mod truncate;
mod write;
mod write_page;
mod write_terms;

pub(crate) use fsync::write_back;

pub use landed::LandingFrames;
pub(crate) use readahead::{Reach, Readahead};
pub use request::{ReadFlags, ReadRequest, WaitFor, WriteFlags, WriteRequest};
pub(crate) use truncate::{truncate, zero_tail};
pub use write::Written;

use crate::error::FileError;
use crate::inode::Inode;

/// The end of the range, if the backend can hold it.
fn check_range(inode: &Inode, offset_bytes: u64, len_bytes: u64) -> Result<u64, FileError> {
    let max_file_bytes = inode.super_block().bdi().limits().max_file_bytes;
    offset_bytes.checked_add(len_bytes).filter(|end| *end <= max_file_bytes).ok_or(FileError::TooLarge {
        offset_bytes,
        len_bytes,
        max_file_bytes,
    })
}

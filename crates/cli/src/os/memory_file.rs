//! Bytes in memory, in a file without a name whose descriptor can be passed to other processes.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

/// A new file with these bytes; `name` is for people who look at the descriptors of a process.
///
/// # Errors
/// There are no descriptors left, or no memory.
pub(crate) fn write(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// The bytes of a file, at most so many. The offset of the descriptor, which other processes share, plays no part.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn read(fd: OwnedFd, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = File::from(fd);
    let len = file.metadata()?.len().min(bytes_max);
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

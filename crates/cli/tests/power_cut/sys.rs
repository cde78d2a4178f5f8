//! Calls without a safe wrapper: shutting a file system down, and stores through a mapping.
#![allow(unsafe_code, reason = "an ioctl, mmap, and stores into what it maps")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, msync, munmap};

const PAGE_BYTES: usize = 4096;
/// `EXT4_IOC_SHUTDOWN`, `_IOR('X', 125, __u32)`.
const SHUTDOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;
/// `EXT4_GOING_FLAGS_NOLOGFLUSH`: nothing more is written to the disk, not even the journal.
const NO_LOG_FLUSH: u32 = 2;

/// Cuts the ext4 that contains `directory` off from its disk.
pub(crate) fn cut_off(directory: &File) -> io::Result<()> {
    let flags = NO_LOG_FLUSH;
    // SAFETY: the ioctl reads a `u32` through the pointer, which is valid for the call.
    let outcome = unsafe { libc::ioctl(directory.as_raw_fd(), SHUTDOWN, &raw const flags) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Stores `bytes` at `at` through a shared mapping, and makes them durable with `msync(MS_SYNC)`. The file must be
/// longer.
pub(crate) fn store(file: &File, at: usize, bytes: &[u8]) -> io::Result<()> {
    let len = file.metadata()?.len() as usize;
    assert!(at + bytes.len() <= len, "a store past the end is a signal");
    // SAFETY: the kernel chooses the place, so nothing is replaced.
    let address =
        unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0) }?;
    let stored = store_in(address.cast(), at, bytes);
    // SAFETY: the mapping is `len` bytes long.
    let synced = stored.and_then(|()| unsafe { msync(address, len, MsyncFlags::SYNC) });
    // SAFETY: it was mapped with this length, and nothing refers to it any more.
    let unmapped = unsafe { munmap(address, len) };
    Ok(synced.and(unmapped)?)
}

/// Stores `bytes` at `at` of the mapping at `address`, which must be longer.
fn store_in(address: *mut u8, at: usize, bytes: &[u8]) -> rustix::io::Result<()> {
    let first = at - at % PAGE_BYTES;
    // SAFETY: the caller guarantees that the mapping is longer.
    let pages = unsafe { address.add(first) };
    // SAFETY: as above.
    let place = unsafe { address.add(at) };
    // A fault on a dead mount is an error here, and would be a signal below.
    // SAFETY: these pages belong to the mapping, and populating keeps what they hold.
    unsafe { madvise(pages.cast(), at + bytes.len() - first, Advice::LinuxPopulateWrite) }?;
    // SAFETY: as above; `bytes` lies elsewhere.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    Ok(())
}

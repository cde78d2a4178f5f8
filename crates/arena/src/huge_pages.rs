//! A file mapped so that huge pages can hold it, and the making of them.
//!
//! # Kernel counterpart
//! `MADV_COLLAPSE` (Linux 6.1), which asks neither `shmem_enabled` nor the administrator.

#![allow(unsafe_code, reason = "address space is asked for by address")]

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io::{self, Errno};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::layout::FRAME_BYTES;

/// Size of a huge page, where there are any: x86-64 and 64-bit Arm with pages of 4 KiB. Elsewhere none is made.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// Maps the file at an address that is a multiple of [`HUGE_BYTES`], without which there are no huge pages. A file
/// system with larger pages of its own does not take that one, and chooses.
pub(crate) fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let reserved_len = len.checked_add(HUGE_BYTES).ok_or(Errno::NOMEM)?;
    let nothing = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
    let reserved = unsafe { mm::mmap_anonymous(ptr::null_mut(), reserved_len, ProtFlags::empty(), nothing) }?;
    let head = reserved.addr().wrapping_neg() % HUGE_BYTES;
    let start = reserved.wrapping_byte_add(head);
    // SAFETY: it takes the place of a part of the mapping above: `head` is less than HUGE_BYTES, so `len` bytes from
    // there are inside. Nobody else knows of that mapping.
    let mapped = unsafe { mm::mmap(start, len, access, MapFlags::SHARED | MapFlags::FIXED, fd, 0) };
    let around = match mapped {
        Ok(_) => [(reserved, head), (start.wrapping_byte_add(len), HUGE_BYTES - head)],
        Err(_) => [(reserved, reserved_len), (reserved, 0)],
    };
    for (rest, len) in around.into_iter().filter(|(_, len)| *len != 0) {
        // SAFETY: what is left of the reservation, which holds nothing. Should it fail, addresses are lost.
        let _ = unsafe { mm::munmap(rest, len) };
    }
    let mapped = match mapped {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        Err(Errno::INVAL) => unsafe { mm::mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0) },
        mapped => mapped,
    };
    NonNull::new(mapped?.cast()).ok_or(Errno::FAULT)
}

/// Makes huge pages of `len` bytes of a new file mapped at `base`, one by one: where one is refused for the moment it
/// stays pages, and where the kernel or the file system has none, or no memory for one, the next would fare no better.
/// The kernel takes no part of a file where nothing at all is, so the first page of each is there before. Whether the
/// next bytes are worth a try.
///
/// # Safety
/// The bytes are a mapping of the caller's.
pub(crate) unsafe fn collapse(base: NonNull<u8>, len: usize) -> bool {
    let mut at = 0;
    while at + HUGE_BYTES <= len {
        let start = base.as_ptr().wrapping_add(at).cast::<c_void>();
        // SAFETY: the caller's promise, and `at` is inside; the advice leaves the bytes as they are.
        let begun = unsafe { mm::madvise(start, FRAME_BYTES, Advice::LinuxPopulateWrite) };
        // SAFETY: as above.
        match begun.and_then(|()| unsafe { collapse_one(start) }) {
            Err(Errno::INTR) => {}
            Ok(()) | Err(Errno::AGAIN | Errno::BUSY) => at += HUGE_BYTES,
            Err(_) => return false,
        }
    }
    true
}

/// # Safety
/// From `start` on, [`HUGE_BYTES`] are a mapping of the caller's.
unsafe fn collapse_one(start: *mut c_void) -> io::Result<()> {
    // SAFETY: the caller's promise; the advice leaves the bytes as they are.
    match unsafe { libc::madvise(start, HUGE_BYTES, libc::MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

//! Mapping a file so that huge pages can hold it, and creating them.
//!
//! # Kernel counterpart
//! `MADV_COLLAPSE` (Linux 6.1), which does not depend on `shmem_enabled` or on other settings of the administrator.

#![allow(unsafe_code, reason = "address space is reserved by address")]

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io::{self, Errno};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::layout::FRAME_BYTES;

/// Size of a huge page on x86-64 and on 64-bit Arm with pages of 4 KiB. Elsewhere none is created.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// Maps the file at an address that is a multiple of [`HUGE_BYTES`], as huge pages require. A file system with larger
/// pages of its own refuses that address; then the kernel chooses one.
pub(crate) fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let reserved_len = len.checked_add(HUGE_BYTES).ok_or(Errno::NOMEM)?;
    let nothing = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
    let reserved = unsafe { mm::mmap_anonymous(ptr::null_mut(), reserved_len, ProtFlags::empty(), nothing) }?;
    let head = reserved.addr().wrapping_neg() % HUGE_BYTES;
    let start = reserved.wrapping_byte_add(head);
    // SAFETY: it replaces a part of the mapping above: `head` is less than HUGE_BYTES, so `len` bytes from there are
    // inside. No other code uses that mapping.
    let mapped = unsafe { mm::mmap(start, len, access, MapFlags::SHARED | MapFlags::FIXED, fd, 0) };
    let around = match mapped {
        Ok(_) => [(reserved, head), (start.wrapping_byte_add(len), HUGE_BYTES - head)],
        Err(_) => [(reserved, reserved_len), (reserved, 0)],
    };
    for (rest, len) in around.into_iter().filter(|(_, len)| *len != 0) {
        // SAFETY: the rest of the reservation, which holds nothing. If the call fails, only addresses are lost.
        let _ = unsafe { mm::munmap(rest, len) };
    }
    let mapped = match mapped {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        Err(Errno::INVAL) => unsafe { mm::mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0) },
        mapped => mapped,
    };
    NonNull::new(mapped?.cast()).ok_or(Errno::FAULT)
}

/// Turns `len` bytes of a new file mapped at `base` into huge pages, one by one. If one is refused for the moment, its
/// range keeps ordinary pages. If the kernel or the file system has no huge pages, or no memory for one, the next
/// attempt would fail too. The kernel does not collapse a range without any page, so the first page of each range is
/// allocated before. Returns whether another attempt for the next bytes makes sense.
///
/// # Safety
/// The bytes are mapped by the caller.
pub(crate) unsafe fn collapse(base: NonNull<u8>, len: usize) -> bool {
    let mut at = 0;
    while at + HUGE_BYTES <= len {
        let start = base.as_ptr().wrapping_add(at).cast::<c_void>();
        // SAFETY: the caller's guarantee, and `at` is inside; the advice does not change the bytes.
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
/// The [`HUGE_BYTES`] from `start` on are mapped by the caller.
unsafe fn collapse_one(start: *mut c_void) -> io::Result<()> {
    /// The kernel's number, the same on all architectures; the libc crate has it for glibc only.
    const MADV_COLLAPSE: libc::c_int = 25;
    // SAFETY: the caller's guarantee; the advice does not change the bytes.
    match unsafe { libc::madvise(start, HUGE_BYTES, MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

//! Memory of our own, and descriptors of a single thread; rustix has no safe wrapper for them.
#![allow(unsafe_code, reason = "a mapping is a raw pointer, and close_range(2) separates descriptors")]

use std::ops::{Deref, DerefMut};
use std::os::fd::IntoRawFd;
use std::ptr::{NonNull, null_mut};
use std::slice;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Mappings of at least this size use huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// Gives the calling thread a table of descriptors that it shares with no other thread. It is empty, apart from `/dev/null` as
/// the standard three. A copy of the standard output of the process would keep a pipe open that the process has left.
pub(crate) fn have_own_descriptors() -> Result<(), Errno> {
    // SAFETY: the table of all other threads stays as it is. In this thread, an owner of a descriptor from before would find
    // it closed; the caller has none.
    match unsafe { libc::syscall(libc::SYS_close_range, 0_u32, u32::MAX, libc::CLOSE_RANGE_UNSHARE) } {
        0 => {}
        _ => return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS)),
    }
    for _ in 0..=libc::STDERR_FILENO {
        // Nothing else opens descriptors in this table yet, so these are the lowest three.
        let _ = open("/dev/null", OFlags::RDWR, Mode::empty())?.into_raw_fd();
    }
    Ok(())
}

/// Page-aligned zeroed memory.
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
}

impl Memory {
    /// Maps `len` bytes, a nonzero multiple of the page size. Faulted in now with `is_populated`, otherwise on use.
    pub(crate) fn new(len: usize, is_populated: bool) -> Result<Self, Errno> {
        let memory = Self::map(len, MapFlags::PRIVATE)?;
        let start = memory.start.as_ptr().cast();
        if len >= HUGE_PAGE {
            // SAFETY: the range is the mapping; this advice changes no content. It may be refused.
            let _ = unsafe { madvise(start, len, Advice::LinuxHugepage) };
        }
        if is_populated {
            // SAFETY: the range is the mapping; populating changes no content.
            unsafe { madvise(start, len, Advice::LinuxPopulateWrite) }?;
        }
        Ok(memory)
    }

    /// Maps `len` bytes of which few are used: in pages of the usual size, and without a claim on memory.
    pub(crate) fn reserve(len: usize) -> Result<Self, Errno> {
        let memory = Self::map(len, MapFlags::PRIVATE | MapFlags::NORESERVE)?;
        // SAFETY: the range is the mapping; this advice changes no content. A kernel without huge pages refuses it.
        let _ = unsafe { madvise(memory.start.as_ptr().cast(), len, Advice::LinuxNoHugepage) };
        Ok(memory)
    }

    fn map(len: usize, flags: MapFlags) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address chosen by the kernel touches no existing memory.
        let start = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// The address of the first byte.
    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes from `start` are mapped and initialised while `self` lives; writing requires `&mut self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` excludes every other reference.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to `self`, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the memory has one owner and is tied to no thread.
unsafe impl Send for Memory {}

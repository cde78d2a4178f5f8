//! Shared memory, and directories of a single thread; rustix has no safe wrapper for them.
#![allow(unsafe_code, reason = "a mapping is a raw pointer, and unshare(2) separates directories")]

use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::slice;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::takeover::Word;

/// Gives the calling thread a root and a working directory that it shares with no other thread.
pub(crate) fn have_own_directories() -> Result<(), Errno> {
    // SAFETY: the thread still shares the table of descriptors with all others.
    unsafe { unshare_unsafe(UnshareFlags::FS) }
}

/// Integers in memory that other processes can map too, or that the next process finds after this one was killed.
pub(crate) struct SharedWords {
    start: NonNull<Word>,
    count: usize,
}

impl SharedWords {
    /// Maps the first `count` words of `file`, which is sealed so that it cannot become shorter.
    pub(crate) fn map(file: BorrowedFd<'_>, count: usize) -> Result<Self, Errno> {
        let (len, protection) = (count * size_of::<Word>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address chosen by the kernel touches no existing memory.
        let start = unsafe { mmap(null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, count })
    }

    /// The words.
    pub(crate) fn words(&self) -> &[Word] {
        // SAFETY: so many words are mapped while `self` lives, aligned to a page. They are reached as atomics only, here
        // and in other processes, and every value is valid.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to `self`, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.count * size_of::<Word>()) };
    }
}

// SAFETY: the memory has one owner and is tied to no thread.
unsafe impl Send for SharedWords {}

// SAFETY: shared access is atomic.
unsafe impl Sync for SharedWords {}

//! Shared mappings, for which there is no safe call.
#![allow(unsafe_code, reason = "mmap, and stores into what it maps")]

use std::fs::File;
use std::io;

use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, msync, munmap};

const PAGE_BYTES: usize = 4096;

/// A shared mapping of the whole of a file.
pub(crate) struct Mapped {
    address: *mut u8,
    len: usize,
}

// SAFETY: the pages belong to the mapping alone, and no thread but the owner's stores into them.
unsafe impl Send for Mapped {}

impl Mapped {
    pub(crate) fn new(file: &File) -> Self {
        Self::try_new(file).unwrap()
    }

    pub(crate) fn try_new(file: &File) -> io::Result<Self> {
        let len = file.metadata()?.len() as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so nothing is replaced.
        let address = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
        Ok(Self { address: address.cast(), len })
    }

    /// Stores `bytes` at the beginning.
    pub(crate) fn store(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        // SAFETY: the mapping has `len` bytes, nothing else maps them in this process, and the file keeps its size.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address, bytes.len()) }
    }

    /// Stores `bytes` at `at`. A dead mount is reported as an error, unless it dies during the store, which raises a
    /// signal.
    pub(crate) fn store_at(&mut self, at: usize, bytes: &[u8]) -> io::Result<()> {
        assert!(at + bytes.len() <= self.len);
        let first = at - at % PAGE_BYTES;
        // SAFETY: the mapping is longer.
        let pages = unsafe { self.address.add(first) };
        // SAFETY: these pages belong to the mapping, and populating keeps what they hold.
        unsafe { madvise(pages.cast(), at + bytes.len() - first, Advice::LinuxPopulateWrite) }?;
        // SAFETY: the mapping is longer.
        let place = unsafe { self.address.add(at) };
        // SAFETY: as above; `bytes` lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
        Ok(())
    }

    /// `msync(MS_SYNC)` of all of it.
    pub(crate) fn sync(&self) -> io::Result<()> {
        // SAFETY: it was mapped with this length.
        Ok(unsafe { msync(self.address.cast(), self.len, MsyncFlags::SYNC) }?)
    }

    /// Unmaps it, and returns the outcome.
    pub(crate) fn unmap(self) -> io::Result<()> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: it was mapped with this length, and nothing refers to it any more.
        Ok(unsafe { munmap(this.address.cast(), this.len) }?)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: as in `unmap`.
        let _ = unsafe { munmap(self.address.cast(), self.len) };
    }
}

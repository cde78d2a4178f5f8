//! Shared mappings, which no safe call makes.
#![allow(unsafe_code, reason = "mmap, and stores into what it maps")]

use std::fs::File;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A shared mapping of the whole of a file.
pub(crate) struct Mapped {
    address: *mut u8,
    len: usize,
}

impl Mapped {
    pub(crate) fn new(file: &File) -> Self {
        let len = file.metadata().unwrap().len() as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so nothing is replaced.
        let address = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) };
        Self { address: address.unwrap().cast(), len }
    }

    /// Stores `bytes` at the beginning.
    pub(crate) fn store(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        // SAFETY: the mapping has `len` bytes, nobody else maps them in this process, and the file keeps its size.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address, bytes.len()) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing refers to it any more.
        let _ = unsafe { munmap(self.address.cast(), self.len) };
    }
}

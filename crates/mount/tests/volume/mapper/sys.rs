//! A file mapped into this process.
#![allow(unsafe_code, reason = "mmap, and stores into what it maps")]

use std::fs::File;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// A shared mapping of a whole file, unmapped when dropped.
///
/// # Invariants
/// M1. `len` bytes from `base` are mapped for reading and writing until this is dropped. Other processes and threads
///     may store to them, so no reference to them is ever made.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; every access is volatile and in bounds (M1).
unsafe impl Send for Mapping {}
// SAFETY: as above; of two stores to the same address, the bytes of either remain.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(file: &File) -> Self {
        Self::of_len(file, file.metadata().unwrap().len() as usize)
    }

    /// Maps `len` bytes. Those behind the end of the file cannot be accessed before the file has them.
    pub(super) fn of_len(file: &File, len: usize) -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }.unwrap();
        Self { base: NonNull::new(base.cast()).unwrap(), len }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: in bounds of M1.
            let place = unsafe { self.base.add(at + i) };
            // SAFETY: mapped for writing (M1).
            unsafe { place.write_volatile(*byte) };
        }
    }

    pub(super) fn load(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let load = |at| {
            // SAFETY: in bounds of M1.
            let place = unsafe { self.base.add(at) };
            // SAFETY: mapped for reading (M1).
            unsafe { place.read_volatile() }
        };
        (at..at + len).map(load).collect()
    }

    pub(super) fn sync(&self) -> Result<(), Errno> {
        // SAFETY: all of what M1 maps.
        unsafe { msync(self.base.as_ptr().cast(), self.len, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping of M1, to which there is no reference.
        unsafe { munmap(self.base.as_ptr().cast(), self.len) }.unwrap();
    }
}

//! File handles, for which there is no safe wrapper.
#![allow(unsafe_code, reason = "name_to_handle_at and open_by_handle_at")]

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;

const HANDLE_BYTES_MAX: usize = 128;

/// `struct file_handle`, with space for the longest handle.
#[derive(Clone)]
#[repr(C)]
pub(crate) struct Handle {
    bytes: u32,
    kind: i32,
    body: [u8; HANDLE_BYTES_MAX],
}

impl Handle {
    /// The handle of the file at `path`; a symbolic link is not followed.
    pub(crate) fn of(path: &Path) -> Result<Self, Errno> {
        let mut handle = Self { bytes: HANDLE_BYTES_MAX as u32, kind: 0, body: [0; _] };
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let (raw, mut mount_id) = ((&raw mut handle).cast(), 0);
        // SAFETY: a C string, a `struct file_handle` with the space that it announces, and an int.
        let outcome = unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), raw, &raw mut mount_id, 0) };
        if outcome == 0 { Ok(handle) } else { Err(last_errno()) }
    }

    /// The words of the handle.
    pub(crate) fn words(&self) -> Vec<u32> {
        let words = self.body[..self.bytes as usize].as_chunks().0;
        words.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// The same handle with other words.
    pub(crate) fn with_words(mut self, words: &[u32]) -> Self {
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.bytes = body.len() as u32;
        self.body[..body.len()].copy_from_slice(&body);
        self
    }

    /// Opens the handle's file on the file system of `mount`.
    pub(crate) fn open(&self, mount: &File, flags: i32) -> Result<File, Errno> {
        let mut handle = self.clone();
        let raw = (&raw mut handle).cast();
        // SAFETY: as above.
        let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), raw, flags | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: the kernel has just returned it.
        Ok(unsafe { File::from_raw_fd(fd) })
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()
}

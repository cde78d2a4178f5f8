//! Replies to READDIR and READDIRPLUS.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::abi::{DirentHead, EntryOut};

/// Entries in one buffer, up to the size that the kernel requested.
#[derive(Debug)]
pub struct Dirents {
    bytes: Vec<u8>,
    size: usize,
}

/// The entry does not fit; the kernel will request it again.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Full;

impl Dirents {
    /// An empty buffer for a request of `size` bytes.
    #[must_use]
    pub fn new(size: u32) -> Self {
        Self { bytes: Vec::new(), size: size as usize }
    }

    /// Adds an entry of READDIR. `next` is the offset at which the kernel continues after it; `kind` is the file type
    /// of the mode, shifted right by 12.
    ///
    /// # Errors
    /// The entry does not fit.
    pub fn push(&mut self, ino: u64, next: u64, kind: u32, name: &OsStr) -> Result<(), Full> {
        self.append(&[], ino, next, kind, name)
    }

    /// Adds an entry of READDIRPLUS, which counts as a lookup unless `entry.nodeid` is 0.
    ///
    /// # Errors
    /// The entry does not fit.
    pub fn push_plus(&mut self, entry: &EntryOut, ino: u64, next: u64, kind: u32, name: &OsStr) -> Result<(), Full> {
        self.append(&entry.to_bytes(), ino, next, kind, name)
    }

    fn append(&mut self, entry: &[u8], ino: u64, next: u64, kind: u32, name: &OsStr) -> Result<(), Full> {
        let head = DirentHead { ino, off: next, namelen: name.len() as u32, kind }.to_bytes();
        let end = (self.bytes.len() + entry.len() + head.len() + name.len()).next_multiple_of(8);
        if end > self.size {
            return Err(Full);
        }
        self.bytes.extend_from_slice(entry);
        self.bytes.extend_from_slice(&head);
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.resize(end, 0);
        Ok(())
    }

    /// Whether no entry was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The data of the reply; empty at the end of the directory.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_end_at_the_size() {
        let mut dirents = Dirents::new(64);
        assert_eq!(dirents.push(5, 1, 8, OsStr::new("abc")), Ok(()));
        assert_eq!(dirents.bytes().len(), 32);
        assert_eq!(&dirents.bytes()[24..], b"abc\0\0\0\0\0");
        assert_eq!(dirents.push(6, 2, 8, OsStr::new("123456789")), Err(Full));
        assert_eq!(dirents.push(6, 2, 8, OsStr::new("12345678")), Ok(()));
        assert_eq!(dirents.bytes().len(), 64);
        assert_eq!(dirents.push_plus(&EntryOut::default(), 6, 2, 8, OsStr::new("a")), Err(Full));
    }
}

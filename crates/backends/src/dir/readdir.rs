//! Reading directories.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, OFlags, RawDir, RawDirEntry, SeekFrom, seek};
use rustix::io::Errno;
use slackwater::backend::{DirEntry, DirEntryPlus, Node};

use super::attributes::node_kind;
use super::descriptors::NodeFd;
use super::errno::failed;
use super::node::DirNode;
use super::volume::{Answer, Volume, check_name};

/// Bytes of directory entries read by one call: about 800 names of average length.
const ENTRIES_BYTES: usize = 32 << 10;
/// The same if each entry is also opened: about a hundred, since each needs a descriptor.
const PLUS_ENTRIES_BYTES: usize = 4 << 10;

impl Volume {
    pub(super) fn readdir(&self, node: &Node, cookie: u64) -> Answer<Vec<DirEntry>> {
        self.entries(node, cookie, &mut [MaybeUninit::uninit(); ENTRIES_BYTES])
    }

    /// Entries with their nodes. An entry whose node cannot be opened is left to a lookup, which reports the reason.
    pub(super) fn readdir_plus(&self, node: &Node, cookie: u64) -> Answer<Vec<DirEntryPlus>> {
        let entries = self.entries(node, cookie, &mut [MaybeUninit::uninit(); PLUS_ENTRIES_BYTES])?;
        let dir = &self.node(node)?.path;
        let plus = |entry: DirEntry| {
            let found = self.open_name(dir, &entry.name).ok().and_then(|path| self.found(path).ok());
            DirEntryPlus { entry, found }
        };
        Ok(entries.into_iter().map(plus).collect())
    }

    /// Continues behind `cookie`, the offset that the file system returned, on a new descriptor. File systems keep an
    /// offset valid while entries are added and removed, and readers do not disturb each other.
    fn entries(&self, node: &Node, cookie: u64, buffer: &mut [MaybeUninit<u8>]) -> Answer<Vec<DirEntry>> {
        let stream = self.open_directory(self.node(node)?)?;
        seek(&stream, SeekFrom::Start(cookie)).map_err(failed("lseek"))?;
        let mut stream = RawDir::new(stream, buffer);
        let mut entries = Vec::new();
        // One full buffer, unless it held only `.` and `..`, which are skipped.
        while entries.is_empty() || !stream.is_buffer_empty() {
            match stream.next() {
                Some(Ok(entry)) => entries.extend(dir_entry(&entry)),
                // ENOENT: the directory was removed, so it has no entries.
                None | Some(Err(Errno::NOENT)) => break,
                Some(Err(errno)) => return Err(failed("getdents")(errno)),
            }
        }
        Ok(entries)
    }

    /// A descriptor that reads or syncs a directory.
    pub(super) fn open_directory(&self, node: &DirNode) -> Answer<NodeFd> {
        self.fds.reopen(&node.path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed("openat"))
    }
}

fn dir_entry(entry: &RawDirEntry<'_>) -> Option<DirEntry> {
    let name = OsStr::from_bytes(entry.file_name().to_bytes());
    // An entry that is not a valid name is skipped: no caller could look it up.
    check_name(name).ok()?;
    let kind = Some(entry.file_type()).filter(|kind| *kind != FileType::Unknown).map(node_kind);
    Some(DirEntry { cookie: entry.next_entry_cookie(), name: name.into(), ino: entry.ino(), kind })
}

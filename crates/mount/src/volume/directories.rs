//! Open directories and their entries.
//!
//! # Invariants
//! D1. `.` and `..` come first, at offsets 1 and 2. Entries of the backend follow, at offsets derived from their
//!     cookies. So an entry keeps its offset when others come and go, as telldir(3) requires.
//! D2. Entries that did not fit into an answer are kept for the next one. A listing from the start asks the backend
//!     again.
//!
//! # Lock order
//! `DIRECTORY` is held while the backend is asked; only readers of the same handle wait for it.

use std::ffi::OsStr;

use rustix::io::Errno;
use slackwater::backend::NodeKind;
use slackwater::{ErrCursor, InodeRef, NamedInode};
use slackwater_fuse::abi::{EntryOut, ReadIn};
use slackwater_fuse::{Dirents, Full};
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::lock_order::DIRECTORY;
use crate::takeover::HandleRecord;
use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::errno::Failure;
use crate::volume::handles::Handle;
use crate::volume::nodes::Node;

/// Directory entry type in READDIR replies: the file type bits of the mode, shifted.
const DT_DIR: u32 = 4;
/// Cookies from here on are offsets unchanged; below, the first two offsets are added. Local file systems use the
/// largest offset for the end of a directory, and few others above 2^62.
const VERBATIM_MIN: u64 = i64::MAX as u64 - 2;

/// An open directory.
pub(super) struct OpenDirectory {
    pub(super) node: Arc<Node>,
    batch: Mutex<Batch>,
}

/// Entries that the backend has returned.
#[derive(Default)]
struct Batch {
    /// The cookie they were requested with.
    after: u64,
    entries: Vec<NamedInode>,
    /// Whether they were requested with their inodes.
    plus: bool,
    /// Index in `entries` at which the next request is expected to continue.
    next: usize,
}

impl Batch {
    /// Index of the first entry after `cookie`, if it is here.
    fn position(&self, cookie: u64, plus: bool) -> Option<usize> {
        if plus && !self.plus {
            return None;
        }
        let behind = |at: usize| match at {
            0 => self.after == cookie,
            at => self.entries[at - 1].entry.cookie == cookie,
        };
        let is_here = |at: &usize| *at < self.entries.len() && behind(*at);
        Some(self.next).filter(is_here).or_else(|| (0..self.entries.len()).find(is_here))
    }
}

impl OpenDirectory {
    pub(super) fn new(node: Arc<Node>) -> Self {
        Self { node, batch: Mutex::new(DIRECTORY, Batch::default()) }
    }
}

impl Volume {
    /// OPENDIR.
    pub(super) fn opendir(&self, node: &Arc<Node>, unique: u64) -> Result<Answer, Failure> {
        if node.inode.kind() != NodeKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let directory = OpenDirectory::new(Arc::clone(node));
        let cursor = ErrCursor::default();
        let record = HandleRecord { is_directory: true, node: node.id(), flags: 0, open_flags: 0, unique, cursor };
        Ok(Answer::Opened(self.handles.add(Handle::Directory(Arc::new(directory)), &record), 0))
    }

    /// READDIR, and READDIRPLUS with `plus`.
    pub(super) fn readdir(&self, directory: &OpenDirectory, args: &ReadIn, plus: bool) -> Result<Answer, Failure> {
        let dir = &directory.node;
        let mut listing = Listing { volume: self, dir, dirents: Dirents::new(args.size), plus, looked_up: Vec::new() };
        let listed = listing.list(&mut directory.batch.lock(), args.offset);
        let Listing { dirents, looked_up, .. } = listing;
        match listed {
            Err(failure) if dirents.is_empty() => Err(failure),
            // If entries precede a failure, they are returned; the next request gets the failure.
            Ok(()) | Err(_) => Ok(Answer::Entries(dirents.bytes().to_vec(), looked_up)),
        }
    }
}

/// An answer being built.
struct Listing<'a> {
    volume: &'a Volume,
    dir: &'a Node,
    dirents: Dirents,
    plus: bool,
    looked_up: Vec<u64>,
}

impl Listing<'_> {
    fn list(&mut self, batch: &mut Batch, offset: u64) -> Result<(), Failure> {
        if offset == 0 {
            *batch = Batch::default();
        }
        for (at, name) in [".", ".."].iter().enumerate().skip(offset as usize) {
            let own = self.dir.inode.id().ino;
            let ino = if at == 0 { own } else { self.dir.parent_ino.load(Ordering::Relaxed) };
            if self.push(&self.volume.no_entry(), ino, at as u64 + 1, DT_DIR, OsStr::new(name)).is_err() {
                return Ok(());
            }
        }
        let mut cookie = cookie_of(offset);
        let mut is_listed = false;
        loop {
            let at = match batch.position(cookie, self.plus) {
                Some(at) => at,
                None if is_listed => return Ok(()),
                None => {
                    batch.entries = self.fetch(cookie)?;
                    (batch.after, batch.plus, batch.next) = (cookie, self.plus, 0);
                    if batch.entries.is_empty() {
                        return Ok(());
                    }
                    0
                }
            };
            for (at, named) in batch.entries.iter().enumerate().skip(at) {
                batch.next = at;
                if self.push_named(named).is_err() {
                    return Ok(());
                }
                cookie = named.entry.cookie;
            }
            batch.next = batch.entries.len();
            is_listed = true;
        }
    }

    fn fetch(&self, cookie: u64) -> Result<Vec<NamedInode>, Failure> {
        let sb = &self.volume.sb;
        if self.plus {
            return Ok(sb.readdir_plus(&self.dir.inode, cookie)?);
        }
        let entries = sb.readdir(&self.dir.inode, cookie)?;
        Ok(entries.into_iter().map(|entry| NamedInode { entry, inode: None }).collect())
    }

    fn push_named(&mut self, named: &NamedInode) -> Result<(), Full> {
        let NamedInode { entry, inode } = named;
        let offset = offset_of(entry.cookie);
        let kind = match (&inode, entry.kind) {
            (Some(inode), _) => inode.attr().mode >> 12,
            (None, Some(NodeKind::File)) => 8,
            (None, Some(NodeKind::Directory)) => DT_DIR,
            (None, Some(NodeKind::Symlink)) => 10,
            (None, Some(NodeKind::Special) | None) => 0,
        };
        let found = inode
            .as_ref()
            .filter(|_| self.plus)
            .and_then(|inode: &InodeRef| self.volume.entry(self.dir, inode.clone()).ok());
        // Without a node the kernel looks the name up itself.
        let wire = found.unwrap_or_else(EntryOut::default);
        let pushed = self.push(&wire, entry.ino, offset, kind, &entry.name);
        if found.is_some() {
            match pushed {
                Ok(()) => self.looked_up.push(wire.nodeid),
                Err(Full) => self.volume.forget(wire.nodeid, 1),
            }
        }
        pushed
    }

    fn push(&mut self, entry: &EntryOut, ino: u64, offset: u64, kind: u32, name: &OsStr) -> Result<(), Full> {
        if self.plus {
            self.dirents.push_plus(entry, ino, offset, kind, name)
        } else {
            self.dirents.push(ino, offset, kind, name)
        }
    }
}

/// D1.
fn offset_of(cookie: u64) -> u64 {
    if cookie < VERBATIM_MIN { cookie + 2 } else { cookie }
}

fn cookie_of(offset: u64) -> u64 {
    if offset < VERBATIM_MIN { offset.saturating_sub(2) } else { offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_leads_back_to_its_cookie() {
        for cookie in [1, 2, 3, 1 << 40, VERBATIM_MIN - 3, i64::MAX as u64] {
            assert_eq!(cookie_of(offset_of(cookie)), cookie);
            assert!(offset_of(cookie) > 2 && offset_of(cookie) <= i64::MAX as u64);
        }
        assert_eq!([0, 1, 2].map(cookie_of), [0; 3]);
    }
}

//! Nodes and handles that the kernel got from an earlier process.
//!
//! # Invariants
//! T1. Every handle of the record is in the table before the first request is read. Its file is open; a handle whose
//!     file cannot be found any more can only be closed.
//! T2. Any other node is found when a request names it. How many lookups the kernel has of it is unknown. It counts as
//!     one, so a FORGET drops the node at once; if the kernel knows it still, it is found again.
//! T3. The kernel's pages of a file may be older than the file, since no process noticed changes from outside while none
//!     served the mount. So the kernel drops them. For an open file it gets a notification, and before that its pages
//!     count as read ([`kernel_pages`](crate::volume::kernel_pages)). For any other file it drops them at the open.

use std::collections::HashMap;

use rustix::fs::OFlags;
use rustix::io::Errno;
use slackwater::backend::{FileHandle, Found, NodeKind};
use slackwater::{ErrorKind, File};
use slackwater_fuse::{Context, Notification};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::takeover::{HandleRecord, Keeping};
use crate::volume::Volume;
use crate::volume::directories::OpenDirectory;
use crate::volume::errno::{self, Failure};
use crate::volume::handles::Handle;
use crate::volume::nodes::Node;
use crate::volume::open_files::OpenFile;

impl Volume {
    /// Opens the handles of an earlier process again (T1). `files` and `nodes` are the numbers under which the keeper has
    /// descriptors. No request has been read yet.
    pub(crate) fn inherit(&self, files: &[u64], mut nodes: Vec<(u64, Found)>) {
        let Some(keeping) = &self.keeping else { return };
        self.nodes.set_inherited();
        nodes.sort_by_key(|(number, _)| *number);
        let numbers: Vec<_> = nodes.iter().map(|(number, _)| *number).collect();
        // A removed directory may be the working directory of a program: it stays until the kernel forgets it.
        let is_file = |found: &Found| found.attr.kind != NodeKind::Directory;
        let nameless = nodes.iter().filter(|(_, found)| found.attr.nlink == 0 && is_file(found));
        let nameless = nameless.map(|(number, _)| *number);
        let nameless: Vec<_> = nameless.collect();
        let mut unneeded: Vec<_> =
            nodes.into_iter().filter_map(|(number, found)| self.nodes.inherit(number, found)).collect();
        self.inherit_remembered(keeping);
        let mut opened = HashMap::new();
        for (number, record) in keeping.record.handles() {
            opened.insert(record.unique, (number, record.open_flags));
            let handle = self.open_again(keeping, number, &record).unwrap_or_else(|Failure(errno)| {
                tracing::warn!(node = record.node, %errno, "a file that a program has open cannot be found any more");
                Handle::Lost
            });
            self.handles.add_again(number, handle);
        }
        for number in files {
            match self.find_nameless(*number) {
                Some(node) => node.is_kept.store(true, Ordering::Release),
                None => keeping.keeper.release(*number),
            }
        }
        // A file without a name exists from now on only while it is open.
        let is_gone = |number: &u64| self.nodes.get(*number).is_none() && self.nodes.forget(*number, 1).is_kept;
        unneeded.extend(nameless.into_iter().filter(is_gone));
        if !numbers.is_empty() {
            keeping.keeper.release_nodes(&unneeded);
            let mut kept = self.kept_nodes.lock();
            kept.extend(numbers);
            self.bound_kept_nodes(keeping, &mut kept);
        }
        self.sb.release_kept();
        let _ = keeping.inherited.set(opened);
    }

    /// The node without a name of which the keeper has a descriptor, if that is needed: an open file, or a directory, which
    /// may be the working directory of a program.
    fn find_nameless(&self, number: u64) -> Option<Arc<Node>> {
        if let Some(node) = self.nodes.get(number) {
            return Some(node).filter(|node| node.is_used());
        }
        let node = self.find_again(number).ok()?;
        if node.is_used() {
            return Some(node);
        }
        self.nodes.forget(number, 1);
        None
    }

    fn open_again(&self, keeping: &Arc<Keeping>, number: u64, record: &HandleRecord) -> Result<Handle, Failure> {
        let node = self.nodes.get(record.node).map_or_else(|| self.find_again(record.node), Ok)?;
        if record.is_directory {
            return Ok(Handle::Directory(Arc::new(OpenDirectory::new(node))));
        }
        let file = File::open_for(&node.inode, self.sb.root_memcg())?;
        file.restore_error_cursor(record.cursor);
        self.remember(keeping, &node);
        keeping.record.move_cursor(number, file.error_cursor());
        self.load_dontcache(&node);
        let flags = OFlags::from_bits_retain(record.flags);
        let open = OpenFile::new(&node, file, flags, Some(keeping));
        if node.kernel_pages.can_be_mapped() {
            node.kernel_pages.read_for_cache(0..node.inode.size_bytes());
        }
        Ok(Handle::File(Arc::new(open)))
    }

    /// The node with this number. If only an earlier process knew it, asks the source (T2).
    pub(super) fn node(&self, cx: &Context<'_>, number: u64) -> Result<Arc<Node>, Failure> {
        match self.nodes.get(number) {
            Some(node) => Ok(node),
            None if !self.keeping.as_ref().is_some_and(|keeping| keeping.is_inherited()) => Err(Errno::STALE.into()),
            None => {
                let _blocking = cx.try_block();
                self.find_again(number)
            }
        }
    }

    pub(super) fn find_again(&self, number: u64) -> Result<Arc<Node>, Failure> {
        let stale = |kind| if kind == ErrorKind::NotFound { Errno::STALE } else { errno::of(kind) };
        let handle = match self.keeping.as_ref().is_some_and(|keeping| keeping.keeps_nodes()) {
            true => match self.nodes.inherited(number) {
                Some(handle) => handle,
                // Another thread may just have found it.
                None => return self.nodes.get(number).ok_or(Failure(Errno::STALE)),
            },
            false => FileHandle::from_number(number),
        };
        let inode = self.sb.find_kept(&handle).map_err(|error| Failure(stale(error.kind())))?;
        let is_file = inode.kind() == NodeKind::File;
        let is_directory = inode.kind() == NodeKind::Directory;
        let node = self.nodes.find_again(number, inode).ok_or(Failure(Errno::STALE))?;
        // The root has no parent, and a removed directory lists no entries.
        if is_directory && let Ok(parent) = self.sb.parent(&node.inode) {
            node.parent_ino.store(parent.id().ino, Ordering::Relaxed);
        }
        if is_file {
            match self.notifier.get() {
                Some(notifier) => notifier.queue(Notification::InvalInode { node: number, offset: 0, len: 0 }),
                None => self.nodes_to_invalidate.lock().push(number),
            }
        }
        Ok(node)
    }
}

//! Directory entries: lookup, creation, rename and removal.

use std::ffi::OsStr;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use slackwater::backend::{Creator, NewNode, NodeKind, Removal, RenameMode};
use slackwater::{ErrorKind, InodeRef, Memcg};
use slackwater_fuse::RequestHeader;
use slackwater_fuse::abi::{CreateIn, EntryOut, MknodIn};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::attributes::rdev_from_wire;
use crate::volume::errno::Failure;
use crate::volume::nodes::Node;
use crate::volume::open_files::Opener;

/// Flags of renameat2(2).
pub(super) const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;

/// Owner and umask of what a request creates.
pub(super) fn creator(header: &RequestHeader, umask: u32) -> Creator {
    Creator { uid: header.uid, gid: header.gid, umask }
}

impl Volume {
    /// The node of an inode that was found or created in `dir`, with one lookup.
    fn node_in(&self, dir: &Node, inode: InodeRef) -> Result<Arc<Node>, Failure> {
        // A directory that contains the root is a loop in the backend.
        let node = self.know(inode).ok_or(Errno::LOOP)?;
        node.parent_ino.store(dir.inode.id().ino, Ordering::Relaxed);
        Ok(node)
    }

    /// The entry of an inode that was found in `dir`. Since the kernel will cache the attributes from now, a file is
    /// revalidated first, and changes from outside are detected here.
    pub(super) fn entry(&self, dir: &Node, inode: InodeRef) -> Result<EntryOut, Failure> {
        if inode.kind() == NodeKind::File {
            self.revalidate(&inode)?;
        }
        Ok(self.entry_out(&*self.node_in(dir, inode)?))
    }

    /// LOOKUP.
    pub(super) fn lookup(&self, dir: &Node, name: &OsStr) -> Result<Answer, Failure> {
        match self.sb.lookup_unchecked(&dir.inode, name) {
            Ok(inode) => Ok(Answer::Entry(self.entry(dir, inode)?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Answer::Entry(self.no_entry())),
            Err(error) => Err(error.into()),
        }
    }

    /// MKNOD, MKDIR and SYMLINK.
    pub(super) fn make(
        &self,
        dir: &Node,
        name: &OsStr,
        what: &NewNode,
        mode: u32,
        creator: Creator,
    ) -> Result<Answer, Failure> {
        let inode = self.unfrozen(|| self.sb.make_as(&dir.inode, name, what.clone(), mode & 0o7777, creator))?;
        Ok(Answer::Entry(self.entry_out(&*self.node_in(dir, inode)?)))
    }

    /// The kind of node that MKNOD creates.
    pub(super) fn new_node(args: &MknodIn) -> NewNode {
        if FileType::from_raw_mode(args.mode) == FileType::RegularFile {
            return NewNode::File;
        }
        NewNode::Special { type_bits: args.mode & 0o170_000, rdev: rdev_from_wire(args.rdev) }
    }

    /// CREATE: creates a file and opens it.
    pub(super) fn create(
        &self,
        dir: &Node,
        name: &OsStr,
        args: &CreateIn,
        creator: Creator,
        opener: &Opener,
    ) -> Result<Answer, Failure> {
        // If the open would be refused, do not leave a file behind.
        self.sb.check_may_open_new(&opener.memcg)?;
        let make = || self.sb.make_as(&dir.inode, name, NewNode::File, args.mode & 0o7777, creator);
        let inode = match self.unfrozen(make) {
            Ok(inode) => inode,
            // Another request was faster. For the kernel, CREATE always opens a new file and needs no permission check,
            // so the kernel must look the name up again.
            Err(error) if error.kind() == ErrorKind::Exists && !is_exclusive(args.flags) => {
                return Err(Errno::STALE.into());
            }
            Err(error) => return Err(error.into()),
        };
        self.open_new(dir, inode, args.flags, opener)
    }

    /// TMPFILE: creates a file without a name and opens it.
    pub(super) fn tmpfile(
        &self,
        dir: &Node,
        args: &CreateIn,
        creator: Creator,
        opener: &Opener,
    ) -> Result<Answer, Failure> {
        let inode = self.unfrozen(|| self.sb.make_tmpfile(&dir.inode, args.mode & 0o7777, creator))?;
        self.open_new(dir, inode, args.flags, opener)
    }

    pub(super) fn open_new(&self, dir: &Node, inode: InodeRef, flags: u32, opener: &Opener) -> Result<Answer, Failure> {
        let node = self.node_in(dir, inode)?;
        Self::mark_unset(&node);
        match self.open_handle(&node, flags, opener) {
            Ok((handle, open_flags)) => Ok(Answer::Created(self.entry_out(&node), handle, open_flags)),
            Err(failure) => {
                self.forget(node.id(), 1);
                Err(failure)
            }
        }
    }

    /// LINK.
    pub(super) fn link(&self, node: &Node, dir: &Node, name: &OsStr) -> Result<Answer, Failure> {
        self.unfrozen(|| self.sb.link(&node.inode, &dir.inode, name))?;
        Ok(Answer::Entry(self.entry_out(&*self.node_in(dir, node.inode.clone())?)))
    }

    /// UNLINK and RMDIR.
    pub(super) fn remove(
        &self,
        memcg: &Arc<Memcg>,
        dir: &Node,
        name: &OsStr,
        removal: Removal,
    ) -> Result<Answer, Failure> {
        let victim = self.keep_victim(dir, name);
        let removed = self.unfrozen(|| self.sb.remove_for(memcg, &dir.inode, name, removal));
        if let Some(victim) = victim.filter(|_| removed.is_err()) {
            victim.stays();
        }
        removed?;
        Ok(Answer::Done)
    }

    /// RENAME and RENAME2.
    pub(super) fn rename(
        &self,
        memcg: &Arc<Memcg>,
        (from_dir, from): (&Node, &OsStr),
        (to_dir, to): (&Node, &OsStr),
        flags: u32,
    ) -> Result<Answer, Failure> {
        let mode = match flags {
            0 => RenameMode::Replace,
            RENAME_NOREPLACE => RenameMode::NoReplace,
            RENAME_EXCHANGE => RenameMode::Exchange,
            RENAME_WHITEOUT => RenameMode::Whiteout,
            _ => return Err(Errno::INVAL.into()),
        };
        let replaces = matches!(mode, RenameMode::Replace | RenameMode::Whiteout);
        let victim = if replaces { self.keep_victim(to_dir, to) } else { None };
        let (from, to) = ((&from_dir.inode, from), (&to_dir.inode, to));
        let rename = || self.sb.rename_after(memcg, from, to, mode, |source| self.flush_mapped_pages(source));
        let renamed = self.unfrozen(rename);
        if let Some(victim) = victim.filter(|_| renamed.is_err()) {
            victim.stays();
        }
        renamed?;
        Ok(Answer::Done)
    }

    /// Flushes stores through mappings that only the kernel has.
    fn flush_mapped_pages(&self, inode: &InodeRef) {
        let node = self.nodes.number_of(inode.id()).and_then(|number| self.nodes.get(number));
        let Some(node) = node.filter(|node| node.kernel_pages.is_mapped()) else { return };
        if let Some(Err(errno)) = self.notifier.get().map(|notifier| notifier.flush_pages(node.id(), 0, 0)) {
            tracing::warn!(%errno, "cannot flush the mappings of a file that replaces another: its stores follow later");
        }
    }

    /// READLINK.
    pub(super) fn readlink(&self, node: &Node) -> Result<Answer, Failure> {
        Ok(Answer::Bytes(self.sb.readlink(&node.inode)?.into_encoded_bytes()))
    }
}

fn is_exclusive(flags: u32) -> bool {
    flags & OFlags::EXCL.bits() != 0
}

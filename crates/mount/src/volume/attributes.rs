//! Attributes: conversion to the kernel's form, queries and changes.

use std::time::Duration;

use slackwater::backend::{Attr, AttrChange, NodeKind, Statfs};
use slackwater::{FileError, InodeRef, Timestamp};
use slackwater_fuse::Notification;
use slackwater_fuse::abi::{self, AttrOut, EntryOut, Kstatfs, SetattrIn, fattr};
use slackwater_sync::shim::Arc;

use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::errno::Failure;
use crate::volume::nodes::Node;

/// Preferred I/O size, as in `st_blksize`.
const BLOCK_BYTES: u32 = 4096;

/// Attributes in the kernel's form. `unclean_bytes` is data that may not have space allocated on the backend yet.
pub(super) fn to_wire(attr: &Attr, unclean_bytes: u64) -> abi::Attr {
    let (atime, atimensec) = attr.atime.to_parts();
    let (mtime, mtimensec) = attr.mtime.to_parts();
    let (ctime, ctimensec) = attr.ctime.to_parts();
    // Otherwise a file just written would look like one hole to programs that compare blocks with the size.
    let promised = attr.size_bytes.next_multiple_of(512).min(attr.allocated_bytes + unclean_bytes);
    abi::Attr {
        ino: attr.id.ino,
        size: attr.size_bytes,
        blocks: attr.allocated_bytes.max(promised) / 512,
        atime: atime as u64,
        mtime: mtime as u64,
        ctime: ctime as u64,
        atimensec,
        mtimensec,
        ctimensec,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: rdev_to_wire(attr.rdev),
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// The kernel's `new_encode_dev`: 12 bits of major and 20 of minor in 32.
fn rdev_to_wire(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The inverse.
pub(super) fn rdev_from_wire(rdev: u32) -> u64 {
    rustix::fs::makedev((rdev & 0xf_ff00) >> 8, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

fn attr_of(inode: &InodeRef, attr: &Attr) -> abi::Attr {
    to_wire(attr, if attr.kind == NodeKind::File { inode.unclean_bytes() } else { 0 })
}

impl Volume {
    /// How long the kernel may cache attributes. A write by another user clears setuid and setgid, and the kernel does
    /// not re-check the mode after it, so such files are not cached.
    fn attr_timeout(&self, attr: &Attr) -> Duration {
        let may_lose_a_mode = attr.kind == NodeKind::File && attr.mode & 0o6000 != 0;
        if may_lose_a_mode { Duration::ZERO } else { self.cache_timeout }
    }

    fn attr_out(&self, inode: &InodeRef, attr: &Attr) -> AttrOut {
        let valid = self.attr_timeout(attr);
        let (attr_valid, attr_valid_nsec) = (valid.as_secs(), valid.subsec_nanos());
        AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: attr_of(inode, attr) }
    }

    /// The entry for a name that leads to `node`.
    pub(super) fn entry_out(&self, node: &Node) -> EntryOut {
        let (generation, attr) = (node.generation().into(), node.inode.attr());
        let valid = self.attr_timeout(&attr);
        EntryOut {
            nodeid: node.id(),
            generation,
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            attr: attr_of(&node.inode, &attr),
            ..self.no_entry()
        }
    }

    /// The entry for a name that does not exist, which the kernel may cache as well.
    pub(super) fn no_entry(&self) -> EntryOut {
        let (secs, nsec) = (self.cache_timeout.as_secs(), self.cache_timeout.subsec_nanos());
        EntryOut {
            entry_valid: secs,
            attr_valid: secs,
            entry_valid_nsec: nsec,
            attr_valid_nsec: nsec,
            ..EntryOut::default()
        }
    }

    /// The attributes of an inode, at most as old as the kernel may cache them, and whether it was changed from outside the mount. In
    /// that case the kernel is notified to drop its cached pages and attributes, since it does not detect the change
    /// itself.
    pub(super) fn revalidate(&self, inode: &InodeRef) -> Result<(Attr, bool), FileError> {
        let earlier = (inode.size_bytes(), inode.mtime());
        let attr = self.sb.revalidate(inode, self.cache_timeout)?;
        // A concurrent write through this mount looks the same; it costs the kernel a few cached pages.
        let is_changed = attr.kind == NodeKind::File && earlier != (attr.size_bytes, attr.mtime);
        if is_changed && let Some((notifier, node)) = self.notifier.get().zip(self.nodes.number_of(inode.id())) {
            notifier.queue(Notification::InvalInode { node, offset: 0, len: 0 });
        }
        Ok((attr, is_changed))
    }

    /// GETATTR, if the source need not be asked.
    pub(super) fn known_attr(&self, node: &Node) -> Option<Answer> {
        let attr = self.sb.known_attr(&node.inode, self.cache_timeout)?;
        Some(Answer::Attr(self.attr_out(&node.inode, &attr)))
    }

    /// GETATTR.
    pub(super) fn getattr(&self, node: &Node) -> Result<Answer, Failure> {
        let (attr, _) = self.revalidate(&node.inode)?;
        Ok(Answer::Attr(self.attr_out(&node.inode, &attr)))
    }

    /// SETATTR.
    pub(super) fn setattr(&self, node: &Arc<Node>, args: &SetattrIn) -> Result<Answer, Failure> {
        let inode = &node.inode;
        self.change(node, args)?;
        Ok(Answer::Attr(self.attr_out(inode, &inode.attr())))
    }

    fn change(&self, node: &Arc<Node>, args: &SetattrIn) -> Result<(), FileError> {
        let inode = &node.inode;
        let has = |bit: u32| args.valid & bit != 0;
        let mut change = AttrChange {
            mode: has(fattr::MODE).then_some(args.mode & 0o7777),
            uid: has(fattr::UID).then_some(args.uid),
            gid: has(fattr::GID).then_some(args.gid),
            size_bytes: has(fattr::SIZE).then_some(args.size),
            // With the NOW bits the kernel also sends the time of the call.
            atime: has(fattr::ATIME).then(|| Timestamp::from_parts(args.atime as i64, args.atimensec)),
            mtime: has(fattr::MTIME).then(|| Timestamp::from_parts(args.mtime as i64, args.mtimensec)),
        };
        if change == AttrChange::default() {
            // chown(2) with neither: updates the ctime and clears setuid and setgid.
            let attr = inode.attr();
            (change.uid, change.gid) = (Some(attr.uid), Some(attr.gid));
        }
        let is_emptied = change.size_bytes == Some(0);
        self.emptying(node, is_emptied, || self.unfrozen(|| self.sb.setattr(inode, change)))?;
        // With a change of owner the engine has cleared them, as far as that does.
        if has(fattr::KILL_SUIDGID) && has(fattr::SIZE) {
            self.unfrozen(|| self.sb.kill_suidgid(inode))?;
        }
        Ok(())
    }

    /// STATFS.
    pub(super) fn statfs(&self) -> Result<Answer, Failure> {
        let statfs: Statfs = self.sb.statfs()?;
        Ok(Answer::Statfs(Kstatfs {
            blocks: statfs.blocks,
            bfree: statfs.blocks_free,
            bavail: statfs.blocks_available,
            files: statfs.files,
            ffree: statfs.files_free,
            bsize: u32::try_from(statfs.block_bytes).unwrap_or(u32::MAX),
            namelen: statfs.name_max,
            frsize: u32::try_from(statfs.fragment_bytes).unwrap_or(u32::MAX),
            ..Kstatfs::default()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_conversion_to_the_kernel_and_back() {
        for (major, minor) in [(1, 3), (8, 0), (0xfff, 0xf_ffff), (253, 70_000)] {
            let rdev = rustix::fs::makedev(major, minor);
            assert_eq!(rdev_from_wire(rdev_to_wire(rdev)), rdev);
        }
    }
}

//! Attributes of nodes and of the volume.

use slackwater::ErrorKind;
use slackwater::backend::{Attr, AttrChange, NodeKind, Statfs};

use crate::contents::map::{self, Step};
use crate::format::Inode;
use crate::names::{NAME_BYTES_MAX, Numbered, flags, id_of, inode, put_inode, xattrs};
use crate::tree::{Counters, Stop, View};

/// The unit of [`Statfs`], and the size of a directory.
const BLOCK_BYTES: u64 = 4096;
/// The smallest size that a volume reports: 1 PiB.
const VOLUME_BLOCKS: u64 = 1 << 38;
const VOLUME_FILES: u64 = 1 << 32;

/// The attributes of a node of the volume `dev`.
pub(crate) fn attr_of(dev: u64, ino: u64, inode: &Inode) -> Attr {
    let kind = NodeKind::of_mode(inode.mode);
    Attr {
        id: id_of(dev, ino),
        kind,
        mode: inode.mode,
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        size_bytes: match kind {
            NodeKind::File => inode.size_bytes,
            NodeKind::Directory => BLOCK_BYTES,
            NodeKind::Symlink => inode.target.len() as u64,
            NodeKind::Special => 0,
        },
        allocated_bytes: inode.allocated_bytes,
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
        protection: flags::protection(inode),
    }
}

/// Changes attributes, all or none. `None` if a truncation has freed as much as one step may: the call is made again.
///
/// # Errors
/// `NotPermitted` for a protected node; `Unsupported` for the mode of a symbolic link; `Invalid` for an impossible
/// owner; those of a change of the size.
pub(crate) fn setattr(view: &mut View<'_>, ino: u64, change: AttrChange) -> Result<Option<Numbered>, Stop> {
    let mut inode = inode(view, ino)?;
    if change != AttrChange::default() {
        flags::check_unprotected(&inode)?;
    }
    let kind = NodeKind::of_mode(inode.mode);
    if change.mode.is_some() && kind == NodeKind::Symlink {
        return Err(ErrorKind::Unsupported.into());
    }
    if change.uid == Some(u32::MAX) || change.gid == Some(u32::MAX) {
        return Err(ErrorKind::Invalid.into());
    }
    if let Some(size_bytes) = change.size_bytes {
        check_file(&inode)?;
        if map::truncate(view, ino, size_bytes)? != Step::Done {
            return Ok(None);
        }
        inode = super::inode(view, ino)?;
    }
    if let Some(mode) = change.mode {
        inode.mode = inode.mode & !0o7777 | mode & 0o7777;
        xattrs::mode_changed(view, ino, &mut inode)?;
    }
    inode.uid = change.uid.unwrap_or(inode.uid);
    inode.gid = change.gid.unwrap_or(inode.gid);
    inode.atime = change.atime.unwrap_or(inode.atime);
    inode.mtime = change.mtime.unwrap_or(inode.mtime);
    inode.ctime = view.now();
    put_inode(view, ino, &inode);
    Ok(Some((ino, inode)))
}

/// Checks that a node has bytes.
///
/// # Errors
/// `IsDirectory`, and `Invalid` for other kinds of nodes.
pub(crate) fn check_file(inode: &Inode) -> Result<(), ErrorKind> {
    match NodeKind::of_mode(inode.mode) {
        NodeKind::File => Ok(()),
        NodeKind::Directory => Err(ErrorKind::IsDirectory),
        NodeKind::Symlink | NodeKind::Special => Err(ErrorKind::Invalid),
    }
}

/// The space of the volume. A store has no limit, so the size is a round number of at least twice what is used.
pub(crate) fn statfs(view: &View<'_>) -> Statfs {
    let Counters { inodes, data_bytes, .. } = view.counters();
    let used = data_bytes.div_ceil(BLOCK_BYTES);
    let twice = |used: u64| used.saturating_mul(2).checked_next_power_of_two().unwrap_or(u64::MAX);
    let (blocks, files) = (VOLUME_BLOCKS.max(twice(used)), VOLUME_FILES.max(twice(inodes)));
    Statfs {
        block_bytes: BLOCK_BYTES,
        fragment_bytes: BLOCK_BYTES,
        blocks,
        blocks_free: blocks - used,
        blocks_available: blocks - used,
        files,
        files_free: files - inodes,
        name_max: NAME_BYTES_MAX as u32,
    }
}

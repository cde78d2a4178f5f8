//! Calls on names, attributes and extended attributes, as functions on a [`View`].
//!
//! Each function is one call of the storage interface. It reads and changes keys, and returns the number of a node with
//! its inode; the caller makes an open node of it. Checks come before changes, in the order of Linux, so that a call
//! that breaks several rules fails with the error that programs expect.
//!
//! # Invariants
//! N1. The number of links of a file is the number of its names; that of a directory is 2 plus its subdirectories, or 0
//!     once it is removed.
//! N2. An inode without a name has the key [`Key::Orphan`], and no other inode has it.
//! N3. The index of a name among the names of one hash does not change while it exists: cookies stay valid.

mod acl;
mod attributes;
mod create;
mod entries;
mod flags;
mod orphans;
mod readdir;
mod remove;
mod rename;
#[cfg(test)]
mod tests;
mod xattrs;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use slackwater::backend::{FileHandle, NodeKind};
use slackwater::{ErrorKind, NodeId, Timestamp};

use crate::format::{Corrupt, Encode, Inode, Key, ROOT};
use crate::tree::{Stop, View};

pub(crate) use attributes::{attr_of, check_file, setattr, statfs};
pub(crate) use create::{link, make, make_root, tmpfile};
pub(crate) use flags::{check_unprotected, getflags, setflags};
pub(crate) use orphans::{free_step, orphans};
pub(crate) use readdir::{readdir, readdir_plus};
pub(crate) use remove::remove;
pub(crate) use rename::rename;
pub(crate) use xattrs::{getxattr, listxattr, removexattr, setxattr};

/// Longest name in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The most names of a file, and the most subdirectories of a directory.
const LINKS_MAX: u32 = i32::MAX as u32;

/// A node: its number and its inode.
pub(crate) type Numbered = (u64, Inode);

/// Reads an inode.
///
/// # Errors
/// `Stale` if there is none. Its record is corrupt.
pub(crate) fn inode(view: &mut View<'_>, ino: u64) -> Result<Inode, Stop> {
    view.record(Key::Inode(ino))?.ok_or_else(|| ErrorKind::Stale.into())
}

/// The inode to which a record of the volume refers.
///
/// # Errors
/// `Io` if there is none, or its record is corrupt.
fn referred_inode(view: &mut View<'_>, ino: u64) -> Result<Inode, Stop> {
    let key = Key::Inode(ino);
    view.record(key)?.ok_or_else(|| Stop::corrupt(key, &Corrupt("it is referred to and does not exist")))
}

/// Stores an inode.
pub(crate) fn put_inode(view: &mut View<'_>, ino: u64, inode: &Inode) {
    view.put(Key::Inode(ino), inode.encode());
}

/// Opens the root directory.
pub(crate) fn root(view: &mut View<'_>) -> Result<Numbered, Stop> {
    Ok((ROOT, inode(view, ROOT)?))
}

/// Finds a name.
///
/// # Errors
/// `NotFound`, `NotDirectory`; `Invalid` or `NameTooLong` for a name that cannot exist.
pub(crate) fn lookup(view: &mut View<'_>, dir: u64, name: &OsStr) -> Result<Numbered, Stop> {
    check_name(name)?;
    directory(view, dir)?;
    find(view, dir, name)?.ok_or_else(|| ErrorKind::NotFound.into())
}

/// The node of a name; `None` if there is no such name.
fn find(view: &mut View<'_>, dir: u64, name: &OsStr) -> Result<Option<Numbered>, Stop> {
    match entries::find(view, dir, name)? {
        Some(entry) => Ok(Some((entry.ino, referred_inode(view, entry.ino)?))),
        None => Ok(None),
    }
}

/// Finds a node by its handle. `id` is the identity that it must have.
///
/// # Errors
/// `Stale` if it does not exist, has another identity, or has no name left and is not to be found without (`nameless`).
pub(crate) fn reopen(
    view: &mut View<'_>,
    dev: u64,
    handle: &FileHandle,
    id: Option<NodeId>,
    nameless: bool,
) -> Result<Numbered, Stop> {
    let ino = handle.number().ok_or(ErrorKind::Stale)?;
    if id.is_some_and(|id| id != id_of(dev, ino)) {
        return Err(ErrorKind::Stale.into());
    }
    let inode = inode(view, ino)?;
    if inode.nlink == 0 && !nameless {
        return Err(ErrorKind::Stale.into());
    }
    Ok((ino, inode))
}

/// Finds the parent of a directory.
///
/// # Errors
/// `Stale` for the root and for a removed directory; `NotDirectory`.
pub(crate) fn parent(view: &mut View<'_>, dir: u64) -> Result<Numbered, Stop> {
    let child = directory(view, dir)?;
    if dir == ROOT || child.nlink == 0 {
        return Err(ErrorKind::Stale.into());
    }
    Ok((child.parent, referred_inode(view, child.parent)?))
}

/// The target of a symbolic link.
///
/// # Errors
/// `Invalid` for another kind of node.
pub(crate) fn readlink(view: &mut View<'_>, ino: u64) -> Result<std::ffi::OsString, Stop> {
    let inode = inode(view, ino)?;
    match NodeKind::of_mode(inode.mode) {
        NodeKind::Symlink => Ok(inode.target),
        NodeKind::File | NodeKind::Directory | NodeKind::Special => Err(ErrorKind::Invalid.into()),
    }
}

/// The identity of a node of the volume `dev`.
pub(crate) fn id_of(dev: u64, ino: u64) -> NodeId {
    NodeId { dev, ino, generation: 0 }
}

fn is_directory(inode: &Inode) -> bool {
    NodeKind::of_mode(inode.mode) == NodeKind::Directory
}

/// The inode of a directory.
fn directory(view: &mut View<'_>, ino: u64) -> Result<Inode, Stop> {
    let inode = inode(view, ino)?;
    if is_directory(&inode) { Ok(inode) } else { Err(ErrorKind::NotDirectory.into()) }
}

/// The inode of a directory that can get new names: not one that was removed while it is open.
fn directory_with_a_name(view: &mut View<'_>, ino: u64) -> Result<Inode, Stop> {
    let inode = directory(view, ino)?;
    if inode.nlink == 0 { Err(ErrorKind::NotFound.into()) } else { Ok(inode) }
}

/// Changes an inode.
fn change_inode(view: &mut View<'_>, ino: u64, change: impl FnOnce(&mut Inode)) -> Result<Inode, Stop> {
    let mut inode = inode(view, ino)?;
    change(&mut inode);
    put_inode(view, ino, &inode);
    Ok(inode)
}

/// Sets the times of a directory whose names changed.
fn touch_directory(dir: &mut Inode, now: Timestamp) {
    (dir.mtime, dir.ctime) = (now, now);
}

/// Checks that `name` is a single component.
fn check_name(name: &OsStr) -> Result<(), Stop> {
    match name.as_bytes() {
        b"" | b"." | b".." => Err(ErrorKind::Invalid.into()),
        bytes if bytes.len() > NAME_BYTES_MAX => Err(ErrorKind::NameTooLong.into()),
        bytes if bytes.iter().any(|byte| *byte == b'/' || *byte == 0) => Err(ErrorKind::Invalid.into()),
        _ => Ok(()),
    }
}

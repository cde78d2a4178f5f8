//! Inode flags, and what immutable and append-only nodes refuse, in the way of Linux.
//!
//! Write-back is not refused. A protected file cannot be opened for writing, so its dirty data is older than the flag,
//! and its writes have succeeded.

use slackwater::ErrorKind;
use slackwater::backend::file_flags::{APPEND, IMMUTABLE};
use slackwater::backend::{NodeKind, Protection};

use crate::format::Inode;
use crate::names::{Numbered, inode, put_inode};
use crate::tree::{Stop, View};

const SYNC: u32 = 0x8;
const NO_DUMP: u32 = 0x40;
const NO_ATIME: u32 = 0x80;
const DIR_SYNC: u32 = 0x1_0000;
/// The flags that a volume keeps.
const KEPT: u32 = IMMUTABLE | APPEND | SYNC | NO_DUMP | NO_ATIME | DIR_SYNC;
/// The flags that new files and directories have from their directory.
pub(super) const INHERITED: u32 = NO_DUMP | NO_ATIME;

/// The flags of a file or directory.
///
/// # Errors
/// `Unsupported` for other nodes.
pub(crate) fn getflags(view: &mut View<'_>, ino: u64) -> Result<u32, Stop> {
    with_flags(view, ino).map(|inode| inode.flags)
}

/// Sets all flags of a file or directory, also of a protected one.
///
/// # Errors
/// `Unsupported` for other nodes and for flags that have no meaning here.
pub(crate) fn setflags(view: &mut View<'_>, ino: u64, flags: u32) -> Result<Numbered, Stop> {
    let mut inode = with_flags(view, ino)?;
    if flags & !KEPT != 0 {
        return Err(ErrorKind::Unsupported.into());
    }
    inode.flags = flags;
    inode.ctime = view.now();
    put_inode(view, ino, &inode);
    Ok((ino, inode))
}

fn with_flags(view: &mut View<'_>, ino: u64) -> Result<Inode, Stop> {
    let inode = inode(view, ino)?;
    match NodeKind::of_mode(inode.mode) {
        NodeKind::File | NodeKind::Directory => Ok(inode),
        NodeKind::Symlink | NodeKind::Special => Err(ErrorKind::Unsupported.into()),
    }
}

pub(super) fn protection(inode: &Inode) -> Protection {
    if inode.flags & IMMUTABLE != 0 {
        Protection::Immutable
    } else if inode.flags & APPEND != 0 {
        Protection::AppendOnly
    } else {
        Protection::None
    }
}

/// Checks that attributes, extended attributes, the size, the allocated ranges and the number of names may change.
///
/// # Errors
/// `NotPermitted` for an immutable or append-only node.
pub(crate) fn check_unprotected(inode: &Inode) -> Result<(), Stop> {
    refuse(protection(inode) != Protection::None)
}

/// Checks that a directory accepts new names.
pub(super) fn check_new_name(dir: &Inode) -> Result<(), Stop> {
    refuse(protection(dir) == Protection::Immutable)
}

/// Checks that a name of `victim` may be removed from `dir`, or moved.
pub(super) fn check_removal(dir: &Inode, victim: &Inode) -> Result<(), Stop> {
    refuse(protection(dir) != Protection::None || protection(victim) != Protection::None)
}

fn refuse(is_protected: bool) -> Result<(), Stop> {
    if is_protected { Err(ErrorKind::NotPermitted.into()) } else { Ok(()) }
}

//! New nodes and new names.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use slackwater::ErrorKind;
use slackwater::backend::{Creator, NewNode};

use crate::format::{Encode, Entry, Inode, Key, Orphan, ROOT};
use crate::names::acl::{self, ACCESS, DEFAULT};
use crate::names::flags::{self, INHERITED};
use crate::names::{
    LINKS_MAX, Numbered, change_inode, check_name, directory_with_a_name, entries, inode, is_directory, put_inode,
    touch_directory, xattrs,
};
use crate::tree::{Stop, View};

pub(super) const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFBLK: u32 = 0o060_000;
const S_IFIFO: u32 = 0o010_000;
const S_IFSOCK: u32 = 0o140_000;
const SETGID: u32 = 0o2000;
/// `PATH_MAX`, with the terminating zero.
const TARGET_BYTES_MAX: usize = 4095;

/// Makes the root directory of an empty volume.
pub(crate) fn make_root(view: &mut View<'_>, mode: u32, (uid, gid): (u32, u32)) {
    let root = Inode { nlink: 2, uid, gid, parent: ROOT, ..Inode::new(S_IFDIR | mode & 0o7777, view.now()) };
    view.count(1, 0);
    put_inode(view, ROOT, &root);
}

/// Makes a node with a name.
///
/// # Errors
/// The name exists or is not valid, `dir` accepts no names, or there is no such kind of node or owner.
pub(crate) fn make(
    view: &mut View<'_>,
    dir: u64,
    name: &OsStr,
    what: &NewNode,
    mode: u32,
    creator: Option<Creator>,
) -> Result<Numbered, Stop> {
    let parent = free_name(view, dir, name)?;
    let (type_bits, rdev, target) = match what {
        NewNode::File => (S_IFREG, 0, OsString::new()),
        NewNode::Directory => (S_IFDIR, 0, OsString::new()),
        NewNode::Symlink(target) => (S_IFLNK, 0, checked_target(target)?),
        NewNode::Special { type_bits: type_bits @ (S_IFCHR | S_IFBLK), rdev } => (*type_bits, *rdev, OsString::new()),
        NewNode::Special { type_bits: type_bits @ (S_IFIFO | S_IFSOCK), .. } => (*type_bits, 0, OsString::new()),
        NewNode::Special { .. } | _ => return Err(ErrorKind::Invalid.into()),
    };
    let (ino, mut made) = new_inode(view, (dir, &parent), type_bits, mode, creator)?;
    (made.rdev, made.target) = (rdev, target);
    (made.nlink, made.parent) = if type_bits == S_IFDIR { (2, dir) } else { (1, 0) };
    put_inode(view, ino, &made);
    enter(view, dir, name, ino, type_bits)?;
    Ok((ino, made))
}

/// Makes a file without a name.
///
/// # Errors
/// `dir` accepts no names, or the owner is not valid.
pub(crate) fn tmpfile(view: &mut View<'_>, dir: u64, mode: u32, creator: Option<Creator>) -> Result<Numbered, Stop> {
    let parent = directory_with_a_name(view, dir)?;
    flags::check_new_name(&parent)?;
    let (ino, made) = new_inode(view, (dir, &parent), S_IFREG, mode, creator)?;
    put_inode(view, ino, &made);
    view.put(Key::Orphan(ino), Orphan { never_named: true }.encode());
    Ok((ino, made))
}

/// Gives a node another name.
///
/// # Errors
/// The name exists or is not valid, `dir` accepts no names, or the node is a directory, protected, was removed or has
/// too many names.
pub(crate) fn link(view: &mut View<'_>, ino: u64, dir: u64, name: &OsStr) -> Result<Numbered, Stop> {
    let linked = inode(view, ino)?;
    free_name(view, dir, name)?;
    if is_directory(&linked) {
        return Err(ErrorKind::NotPermitted.into());
    }
    flags::check_unprotected(&linked)?;
    if linked.nlink == 0 {
        if !super::orphans::may_get_a_name(view, ino)? {
            return Err(ErrorKind::NotFound.into());
        }
        view.delete(Key::Orphan(ino)); // N2
    }
    if linked.nlink >= LINKS_MAX {
        return Err(ErrorKind::TooManyLinks.into());
    }
    let now = view.now();
    let linked = change_inode(view, ino, |inode| {
        inode.nlink += 1;
        inode.ctime = now;
    })?;
    enter(view, dir, name, ino, linked.mode & S_IFMT)?;
    Ok((ino, linked))
}

/// The whiteout that a rename leaves at the old name.
pub(super) fn make_whiteout(view: &mut View<'_>, dir: u64, name: &OsStr) -> Result<(), Stop> {
    let whiteout = Inode { nlink: 1, ..Inode::new(S_IFCHR, view.now()) };
    let ino = view.new_ino();
    view.count(1, 0);
    put_inode(view, ino, &whiteout);
    enter(view, dir, name, ino, S_IFCHR)
}

/// Adds a name, and counts a subdirectory.
///
/// # Errors
/// `TooManyLinks` if the directory has too many subdirectories.
pub(super) fn enter(view: &mut View<'_>, dir: u64, name: &OsStr, ino: u64, type_bits: u32) -> Result<(), Stop> {
    entries::insert(view, dir, Entry { name: name.into(), ino, type_bits })?;
    let mut parent = inode(view, dir)?;
    if type_bits == S_IFDIR {
        if parent.nlink >= LINKS_MAX {
            return Err(ErrorKind::TooManyLinks.into());
        }
        parent.nlink += 1;
    }
    touch_directory(&mut parent, view.now());
    put_inode(view, dir, &parent);
    Ok(())
}

/// The directory `dir`, in which `name` is valid and does not exist.
fn free_name(view: &mut View<'_>, dir: u64, name: &OsStr) -> Result<Inode, Stop> {
    check_name(name)?;
    let parent = directory_with_a_name(view, dir)?;
    if entries::find(view, dir, name)?.is_some() {
        return Err(ErrorKind::Exists.into());
    }
    flags::check_new_name(&parent)?;
    Ok(parent)
}

fn checked_target(target: &OsStr) -> Result<OsString, Stop> {
    match target.as_bytes() {
        b"" => Err(ErrorKind::NotFound.into()),
        bytes if bytes.len() > TARGET_BYTES_MAX => Err(ErrorKind::NameTooLong.into()),
        bytes if bytes.contains(&0) => Err(ErrorKind::Invalid.into()),
        _ => Ok(target.into()),
    }
}

/// A node in `parent` without names: with its owner, permissions and ACLs.
fn new_inode(
    view: &mut View<'_>,
    (dir, parent): (u64, &Inode),
    type_bits: u32,
    mode: u32,
    creator: Option<Creator>,
) -> Result<Numbered, Stop> {
    let (uid, mut gid) = creator.map_or((0, 0), |creator| (creator.uid, creator.gid));
    if uid == u32::MAX || gid == u32::MAX {
        return Err(ErrorKind::Invalid.into());
    }
    let mut permissions = if type_bits == S_IFLNK { 0o777 } else { mode & 0o7777 };
    if parent.mode & SETGID != 0 {
        gid = parent.gid;
        permissions |= if type_bits == S_IFDIR { SETGID } else { 0 };
    }
    let mut made = Inode { uid, gid, ..Inode::new(type_bits, view.now()) };
    if matches!(type_bits, S_IFREG | S_IFDIR) {
        made.flags = parent.flags & INHERITED;
    }
    let ino = view.new_ino();
    view.count(1, 0);
    let default = match type_bits {
        S_IFLNK => None,
        _ => xattrs::value(view, dir, parent, DEFAULT.as_ref())?,
    };
    if let Some(value) = default {
        let mut acl = acl::stored(&value)?;
        if type_bits == S_IFDIR {
            xattrs::store(view, ino, &mut made, DEFAULT.as_ref(), acl.encode());
        }
        match creator {
            Some(_) => acl.restrict(&mut permissions),
            None => acl.set_mode(permissions),
        }
        if acl.is_extended() {
            xattrs::store(view, ino, &mut made, ACCESS.as_ref(), acl.encode());
        }
    } else if type_bits != S_IFLNK {
        permissions &= !creator.map_or(0, |creator| creator.umask & 0o777);
    }
    made.mode = type_bits | permissions;
    Ok((ino, made))
}

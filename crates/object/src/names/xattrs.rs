//! Extended attributes: small values in the inode, large ones at keys of their own.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use bytes::Bytes;
use slackwater::ErrorKind;
use slackwater::backend::{NodeKind, XattrMode};

use crate::format::{Inode, Key, Xattr};
use crate::names::acl::{self, ACCESS, Acl, DEFAULT};
use crate::names::{Numbered, flags, inode, put_inode};
use crate::tree::{Stop, View};

/// Longest name, `XATTR_NAME_MAX`.
const NAME_BYTES_MAX: usize = 255;
/// Longest value, `XATTR_SIZE_MAX`.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// All names of a node, each with a zero, `XATTR_LIST_MAX`.
const LIST_BYTES_MAX: usize = 64 << 10;
/// The longest value in an inode, and the most bytes of all values there: an inode is written whole.
const HERE_BYTES_MAX: usize = 256;
const HERE_BYTES_MAX_TOGETHER: usize = 2048;

/// Reads an attribute.
///
/// # Errors
/// `NoData` if there is none; those of an invalid name.
pub(crate) fn getxattr(view: &mut View<'_>, ino: u64, name: &OsStr) -> Result<Bytes, Stop> {
    check_name(name)?;
    let inode = inode(view, ino)?;
    if is_acl(name) && NodeKind::of_mode(inode.mode) == NodeKind::Symlink {
        return Err(ErrorKind::Unsupported.into());
    }
    value(view, ino, &inode, name)?.ok_or_else(|| ErrorKind::NoData.into())
}

/// The names of all attributes.
pub(crate) fn listxattr(view: &mut View<'_>, ino: u64) -> Result<Vec<OsString>, Stop> {
    Ok(inode(view, ino)?.xattrs.into_iter().map(|(name, _)| name).collect())
}

/// Sets an attribute. An access ACL changes the mode.
///
/// # Errors
/// Those of an invalid name or value; `Exists` or `NoData` as `mode` demands; `NoSpace` if there are too many names;
/// `NotPermitted` if the node is protected, or is of a kind that has no such attribute.
pub(crate) fn setxattr(
    view: &mut View<'_>,
    ino: u64,
    name: &OsStr,
    value: &[u8],
    mode: XattrMode,
) -> Result<Numbered, Stop> {
    let mut inode = inode_for_change(view, ino, name)?;
    if value.len() > VALUE_BYTES_MAX {
        return Err(ErrorKind::TooBig.into());
    }
    match (mode, find(&inode, name).is_some()) {
        (XattrMode::Create, true) => return Err(ErrorKind::Exists.into()),
        (XattrMode::Replace, false) => return Err(ErrorKind::NoData.into()),
        (XattrMode::Set | XattrMode::Create | XattrMode::Replace, _) => {}
    }
    if is_acl(name) {
        set_acl(view, ino, &mut inode, name, Acl::decode(value)?)?;
    } else {
        store(view, ino, &mut inode, name, Bytes::copy_from_slice(value));
    }
    if inode.xattrs.iter().map(|(name, _)| name.len() + 1).sum::<usize>() > LIST_BYTES_MAX {
        return Err(ErrorKind::NoSpace.into());
    }
    inode.ctime = view.now();
    put_inode(view, ino, &inode);
    Ok((ino, inode))
}

/// Removes an attribute.
///
/// # Errors
/// `NoData` if there is none, unless it is an ACL; those of an invalid name; `NotPermitted` as for [`setxattr`].
pub(crate) fn removexattr(view: &mut View<'_>, ino: u64, name: &OsStr) -> Result<Numbered, Stop> {
    let mut inode = inode_for_change(view, ino, name)?;
    if !discard(view, ino, &mut inode, name) && !is_acl(name) {
        return Err(ErrorKind::NoData.into());
    }
    inode.ctime = view.now();
    put_inode(view, ino, &inode);
    Ok((ino, inode))
}

/// Changes the access ACL after the mode.
pub(super) fn mode_changed(view: &mut View<'_>, ino: u64, inode: &mut Inode) -> Result<(), Stop> {
    if let Some(value) = value(view, ino, inode, ACCESS.as_ref())? {
        let mut acl = acl::stored(&value)?;
        acl.set_mode(inode.mode);
        store(view, ino, inode, ACCESS.as_ref(), acl.encode());
    }
    Ok(())
}

/// The value of an attribute.
pub(super) fn value(view: &mut View<'_>, ino: u64, inode: &Inode, name: &OsStr) -> Result<Option<Bytes>, Stop> {
    match find(inode, name).map(|at| &inode.xattrs[at].1) {
        None => Ok(None),
        Some(Xattr::Here(value)) => Ok(Some(value.clone())),
        Some(Xattr::Apart(number)) => {
            let value = view.get(Key::Xattr { ino, number: *number })?;
            Ok(Some(value.ok_or(ErrorKind::Io)?))
        }
    }
}

/// Sets an attribute in `inode`, which the caller stores.
pub(super) fn store(view: &mut View<'_>, ino: u64, inode: &mut Inode, name: &OsStr, value: Bytes) {
    discard(view, ino, inode, name);
    let here: usize = inode.xattrs.iter().map(|(_, value)| here_bytes(value)).sum();
    let stored = if value.len() <= HERE_BYTES_MAX && here + value.len() <= HERE_BYTES_MAX_TOGETHER {
        Xattr::Here(value)
    } else {
        let number = inode.next_xattr;
        inode.next_xattr += 1;
        view.put(Key::Xattr { ino, number }, value);
        Xattr::Apart(number)
    };
    inode.xattrs.push((name.into(), stored));
}

/// Removes an attribute from `inode`, which the caller stores. Returns whether there was one.
fn discard(view: &mut View<'_>, ino: u64, inode: &mut Inode, name: &OsStr) -> bool {
    let Some(at) = find(inode, name) else { return false };
    if let (_, Xattr::Apart(number)) = inode.xattrs.remove(at) {
        view.delete(Key::Xattr { ino, number });
    }
    true
}

fn set_acl(view: &mut View<'_>, ino: u64, inode: &mut Inode, name: &OsStr, acl: Option<Acl>) -> Result<(), Stop> {
    if name == DEFAULT && NodeKind::of_mode(inode.mode) != NodeKind::Directory {
        return if acl.is_some() { Err(ErrorKind::Permission.into()) } else { Ok(()) };
    }
    match acl {
        None => {
            discard(view, ino, inode, name);
        }
        Some(acl) if name == ACCESS => {
            inode.mode = inode.mode & !0o777 | acl.mode();
            if acl.is_extended() {
                store(view, ino, inode, name, acl.encode());
            } else {
                discard(view, ino, inode, name); // the mode says it all
            }
        }
        Some(acl) => store(view, ino, inode, name, acl.encode()),
    }
    Ok(())
}

/// The inode of a node that may have an attribute called `name`: only files and directories have attributes in the
/// `user` namespace, and all nodes but links have ACLs.
fn inode_for_change(view: &mut View<'_>, ino: u64, name: &OsStr) -> Result<Inode, Stop> {
    check_name(name)?;
    let inode = inode(view, ino)?;
    flags::check_unprotected(&inode)?;
    match NodeKind::of_mode(inode.mode) {
        NodeKind::Symlink if is_acl(name) => Err(ErrorKind::Unsupported.into()),
        NodeKind::Symlink | NodeKind::Special if name.as_bytes().starts_with(b"user.") => {
            Err(ErrorKind::NotPermitted.into())
        }
        NodeKind::File | NodeKind::Directory | NodeKind::Symlink | NodeKind::Special => Ok(inode),
    }
}

fn find(inode: &Inode, name: &OsStr) -> Option<usize> {
    inode.xattrs.iter().position(|(other, _)| other == name)
}

fn here_bytes(value: &Xattr) -> usize {
    match value {
        Xattr::Here(value) => value.len(),
        Xattr::Apart(_) => 0,
    }
}

fn is_acl(name: &OsStr) -> bool {
    name == ACCESS || name == DEFAULT
}

fn check_name(name: &OsStr) -> Result<(), Stop> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > NAME_BYTES_MAX {
        return Err(ErrorKind::OutOfRange.into());
    }
    let namespaces = [&b"user."[..], b"trusted.", b"security."];
    match namespaces.iter().find_map(|namespace| bytes.strip_prefix(*namespace)) {
        None if is_acl(name) => Ok(()),
        None => Err(ErrorKind::Unsupported.into()),
        Some(rest) if rest.is_empty() || rest.contains(&0) => Err(ErrorKind::Invalid.into()),
        Some(_) => Ok(()),
    }
}

//! Extended attributes, stored unchanged and checked as Linux checks them. There are no ACLs here.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::backend::mem::volume::{Answer, Volume};
use crate::backend::{Attr, Node, NodeKind, XattrMode};
use crate::error::ErrorKind;

/// Longest name, `XATTR_NAME_MAX`.
const NAME_BYTES_MAX: usize = 255;
/// Longest value, `XATTR_SIZE_MAX`.
const VALUE_BYTES_MAX: usize = 65_536;

impl Volume {
    pub(super) fn getxattr(&self, node: &Node, name: &OsStr) -> Answer<Vec<u8>> {
        check_name(name)?;
        let value = self.live[&self.ino(node)?].node.xattrs.get(name);
        Ok(value.ok_or(ErrorKind::NoData)?.clone())
    }

    pub(super) fn setxattr(&mut self, node: &Node, name: OsString, value: Vec<u8>, mode: XattrMode) -> Answer<Attr> {
        let ino = self.ino_for_change(node, &name)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(ErrorKind::TooBig.into());
        }
        let now = self.tick();
        let node = self.node_mut(ino);
        match (mode, node.xattrs.contains_key(&name)) {
            (XattrMode::Create, true) => return Err(ErrorKind::Exists.into()),
            (XattrMode::Replace, false) => return Err(ErrorKind::NoData.into()),
            (XattrMode::Set | XattrMode::Create | XattrMode::Replace, _) => {}
        }
        node.xattrs.insert(name, value);
        node.attrs.ctime = now;
        Ok(self.attr(ino))
    }

    pub(super) fn listxattr(&self, node: &Node) -> Answer<Vec<OsString>> {
        Ok(self.live[&self.ino(node)?].node.xattrs.keys().cloned().collect())
    }

    pub(super) fn removexattr(&mut self, node: &Node, name: &OsStr) -> Answer<Attr> {
        let (ino, now) = (self.ino_for_change(node, name)?, self.tick());
        let node = self.node_mut(ino);
        node.xattrs.remove(name).ok_or(ErrorKind::NoData)?;
        node.attrs.ctime = now;
        Ok(self.attr(ino))
    }

    /// The number of `node`, if it may have an attribute called `name`: only files and directories have attributes in
    /// the `user` namespace.
    fn ino_for_change(&self, node: &Node, name: &OsStr) -> Answer<u64> {
        check_name(name)?;
        let ino = self.ino(node)?;
        match self.live[&ino].node.body.kind() {
            NodeKind::Symlink | NodeKind::Special if name.as_bytes().starts_with(b"user.") => {
                Err(ErrorKind::NotPermitted.into())
            }
            NodeKind::File | NodeKind::Directory | NodeKind::Symlink | NodeKind::Special => Ok(ino),
        }
    }
}

fn check_name(name: &OsStr) -> Answer<()> {
    let name = name.as_bytes();
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(ErrorKind::OutOfRange.into());
    }
    let namespaces = [&b"user."[..], b"trusted.", b"security."];
    match namespaces.iter().find_map(|namespace| name.strip_prefix(*namespace)) {
        None => Err(ErrorKind::Unsupported.into()),
        Some(rest) if rest.is_empty() || rest.contains(&0) => Err(ErrorKind::Invalid.into()),
        Some(_) => Ok(()),
    }
}

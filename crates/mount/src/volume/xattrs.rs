//! Extended attributes: passed to the backend unchanged. One of them also controls caching ([`dontcache`]).
//!
//! # ACLs
//! The kernel reads ACLs through GETXATTR, caches them as long as attributes, and checks permissions with them. The
//! backend keeps mode and ACL consistent: a new ACL changes the mode, a new mode the ACL's mask. It also applies the
//! umask and default ACLs. The kernel leaves one thing to the server: clearing setgid when the caller is not in the
//! file's group.
//!
//! # Other attributes of `system.`
//! The kernel does not check permissions for these; it leaves that to the file system. The source sees the server's
//! rights and not the caller's, so any user could change the ACLs of NFSv4, CIFS or NTFS. Only the two names above are
//! passed on; every other name is unsupported and not listed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use slackwater::backend::{AttrChange, XattrMode};
use slackwater::{ErrorKind, FileError};
use slackwater_fuse::abi::{SetxattrIn, setxattr};

use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::dontcache;
use crate::volume::errno::Failure;
use crate::volume::nodes::Node;

/// Flags of setxattr(2).
pub(super) const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

const ACL_ACCESS: &str = "system.posix_acl_access";
const ACL_DEFAULT: &str = "system.posix_acl_default";
const SYSTEM: &[u8] = b"system.";
const ISGID: u32 = 0o2000;

impl Volume {
    /// GETXATTR: `size` 0 asks for the length of the value.
    pub(super) fn getxattr(&self, node: &Node, name: &OsStr, size: u32) -> Result<Answer, Failure> {
        check_passes(name)?;
        let value = self.sb.getxattr(&node.inode, name);
        // The source has no ACLs. For any other error than this one the kernel would refuse access.
        if is_acl(name) && value.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unsupported) {
            return Err(Errno::NODATA.into());
        }
        sized(value, size)
    }

    /// LISTXATTR: the names, each with a NUL.
    pub(super) fn listxattr(&self, node: &Node, size: u32) -> Result<Answer, Failure> {
        let listed = |names: Vec<OsString>| {
            let passing = names.iter().filter(|name| passes(name));
            passing.flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect()
        };
        sized(self.sb.listxattr(&node.inode).map(listed), size)
    }

    /// SETXATTR.
    pub(super) fn setxattr(
        &self,
        node: &Node,
        name: &OsStr,
        value: &[u8],
        args: &SetxattrIn,
    ) -> Result<Answer, Failure> {
        let mode = match args.flags {
            0 => XattrMode::Set,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::INVAL.into()),
        };
        let inode = &node.inode;
        check_passes(name)?;
        dontcache::check(name, value)?;
        self.unfrozen(|| self.sb.setxattr(inode, name, value, mode))?;
        self.xattr_changed(node, name);
        let mode = inode.attr().mode & 0o7777;
        // The kernel sets the flag for default ACLs as well, which do not affect access to the directory itself.
        let kills = args.setxattr_flags & setxattr::ACL_KILL_SGID != 0 && name == ACL_ACCESS;
        if kills && mode & ISGID != 0 {
            let change = AttrChange { mode: Some(mode & !ISGID), ..AttrChange::default() };
            self.unfrozen(|| self.sb.setattr(inode, change))?;
        }
        Ok(Answer::Done)
    }

    /// REMOVEXATTR.
    pub(super) fn removexattr(&self, node: &Node, name: &OsStr) -> Result<Answer, Failure> {
        check_passes(name)?;
        self.unfrozen(|| self.sb.removexattr(&node.inode, name))?;
        self.xattr_changed(node, name);
        Ok(Answer::Done)
    }
}

fn is_acl(name: &OsStr) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

/// Whether attributes of this name are passed to the source.
fn passes(name: &OsStr) -> bool {
    is_acl(name) || !name.as_bytes().starts_with(SYSTEM)
}

fn check_passes(name: &OsStr) -> Result<(), Errno> {
    if passes(name) { Ok(()) } else { Err(Errno::OPNOTSUPP) }
}

fn sized(value: Result<Vec<u8>, FileError>, size: u32) -> Result<Answer, Failure> {
    let value = value?;
    match size {
        0 => u32::try_from(value.len()).map(Answer::Size).map_err(|_| Errno::TOOBIG.into()),
        size if value.len() > size as usize => Err(Errno::RANGE.into()),
        _ => Ok(Answer::Bytes(value)),
    }
}

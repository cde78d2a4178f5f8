//! Extended attributes: passed to the backend as they are.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use slackwater::FileError;
use slackwater::backend::XattrMode;

use crate::abi::SetxattrIn;
use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::errno::Failure;
use crate::volume::nodes::Node;

/// Flags of setxattr(2).
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

impl Volume {
    /// GETXATTR: `size` 0 asks how long the value is.
    pub(super) fn getxattr(&self, node: &Node, name: &OsStr, size: u32) -> Result<Answer, Failure> {
        sized(self.sb.getxattr(&node.inode, name), size)
    }

    /// LISTXATTR: the names, each with a NUL.
    pub(super) fn listxattr(&self, node: &Node, size: u32) -> Result<Answer, Failure> {
        let names = self.sb.listxattr(&node.inode);
        sized(
            names.map(|names| names.iter().flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect()),
            size,
        )
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
        self.unfrozen(|| self.sb.setxattr(&node.inode, name, value, mode))?;
        Ok(Answer::Done)
    }

    /// REMOVEXATTR.
    pub(super) fn removexattr(&self, node: &Node, name: &OsStr) -> Result<Answer, Failure> {
        self.unfrozen(|| self.sb.removexattr(&node.inode, name))?;
        Ok(Answer::Done)
    }
}

fn sized(value: Result<Vec<u8>, FileError>, size: u32) -> Result<Answer, Failure> {
    let value = value?;
    match size {
        0 => u32::try_from(value.len()).map(Answer::Size).map_err(|_| Errno::TOOBIG.into()),
        size if value.len() > size as usize => Err(Errno::RANGE.into()),
        _ => Ok(Answer::Bytes(value)),
    }
}

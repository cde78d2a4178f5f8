//! The cached names and nodes that an operation changes.

use std::ffi::{OsStr, OsString};

use rustix::fs::OFlags;

use crate::parse::Operation;

/// Names and nodes that the kernel must look up again after a change.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Change {
    /// Names, each with its directory.
    pub(crate) names: [Option<(u64, OsString)>; 2],
    /// Nodes whose attributes or data change, including the directories of names.
    pub(crate) nodes: [Option<u64>; 2],
}

impl Change {
    fn of_name(dir: u64, name: &OsStr) -> Self {
        Self { names: [Some((dir, name.to_owned())), None], nodes: [Some(dir), None] }
    }

    fn of_node(node: u64) -> Self {
        Self { names: [None, None], nodes: [Some(node), None] }
    }
}

impl Operation<'_> {
    /// The change that the operation makes, if any; `node` is the one in its header. A write reports its changes by the
    /// count that it returns.
    pub(crate) fn change(&self, node: u64) -> Option<Change> {
        match *self {
            Self::Symlink { name, .. }
            | Self::Mknod { name, .. }
            | Self::Mkdir { name, .. }
            | Self::Create { name, .. }
            | Self::Unlink { name }
            | Self::Rmdir { name } => Some(Change::of_name(node, name)),
            Self::Rename { name, new_parent, new_name, .. } => Some(Change {
                names: [Some((node, name.to_owned())), Some((new_parent, new_name.to_owned()))],
                nodes: [Some(node), Some(new_parent)],
            }),
            Self::Link { node: linked, name } => {
                Some(Change { nodes: [Some(node), Some(linked)], ..Change::of_name(node, name) })
            }
            Self::Open(args) if args.flags & OFlags::TRUNC.bits() != 0 => Some(Change::of_node(node)),
            Self::Setattr(_) | Self::Setxattr { .. } | Self::Removexattr { .. } | Self::Fallocate(_) => {
                Some(Change::of_node(node))
            }
            Self::CopyFileRange(args) => Some(Change::of_node(args.nodeid_out)),
            // A file without a name is known only to its creator.
            Self::Tmpfile(_)
            | Self::Open(_)
            | Self::Write(_)
            | Self::Lookup { .. }
            | Self::Forget(_)
            | Self::Getattr(_)
            | Self::Statx(_)
            | Self::Readlink
            | Self::Read(_)
            | Self::Statfs
            | Self::Release(_)
            | Self::Fsync(_)
            | Self::Getxattr { .. }
            | Self::Listxattr { .. }
            | Self::Flush(_)
            | Self::Init(_)
            | Self::Opendir(_)
            | Self::Readdir(_)
            | Self::Readdirplus(_)
            | Self::Releasedir(_)
            | Self::Fsyncdir(_)
            | Self::Getlk(_)
            | Self::Setlk(_)
            | Self::Setlkw(_)
            | Self::Access(_)
            | Self::Interrupt { .. }
            | Self::Bmap(_)
            | Self::Destroy
            | Self::Ioctl { .. }
            | Self::Poll(_)
            | Self::Lseek(_)
            | Self::Syncfs
            | Self::Unknown(_) => None,
        }
    }
}

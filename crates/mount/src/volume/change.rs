//! The cached names and nodes that an operation changes.

use std::ffi::{OsStr, OsString};

use rustix::fs::OFlags;
use slackwater_fuse::Operation;

/// Names and nodes that the kernel must look up again after a change.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Change {
    /// Names, each with its directory.
    pub(super) names: [Option<(u64, OsString)>; 2],
    /// Nodes whose attributes or data change, including the directories of names.
    pub(super) nodes: [Option<u64>; 2],
}

impl Change {
    fn of_name(dir: u64, name: &OsStr) -> Self {
        Self { names: [Some((dir, name.to_owned())), None], nodes: [Some(dir), None] }
    }

    fn of_node(node: u64) -> Self {
        Self { names: [None, None], nodes: [Some(node), None] }
    }

    /// The change that an operation makes, if any; `node` is the one in its header. A write reports its changes by the
    /// count that it returns.
    pub(super) fn of(op: &Operation<'_>, node: u64) -> Option<Self> {
        match *op {
            Operation::Symlink { name, .. }
            | Operation::Mknod { name, .. }
            | Operation::Mkdir { name, .. }
            | Operation::Create { name, .. }
            | Operation::Unlink { name }
            | Operation::Rmdir { name } => Some(Self::of_name(node, name)),
            Operation::Rename { name, new_parent, new_name, .. } => Some(Self {
                names: [Some((node, name.to_owned())), Some((new_parent, new_name.to_owned()))],
                nodes: [Some(node), Some(new_parent)],
            }),
            Operation::Link { node: linked, name } => {
                Some(Self { nodes: [Some(node), Some(linked)], ..Self::of_name(node, name) })
            }
            Operation::Open(args) if args.flags & OFlags::TRUNC.bits() != 0 => Some(Self::of_node(node)),
            Operation::Setattr(_)
            | Operation::Setxattr { .. }
            | Operation::Removexattr { .. }
            | Operation::Fallocate(_) => Some(Self::of_node(node)),
            Operation::CopyFileRange(args) => Some(Self::of_node(args.nodeid_out)),
            // A file without a name is known only to its creator.
            Operation::Tmpfile(_)
            | Operation::Open(_)
            | Operation::Write(_)
            | Operation::Lookup { .. }
            | Operation::Forget(_)
            | Operation::Getattr(_)
            | Operation::Statx(_)
            | Operation::Readlink
            | Operation::Read(_)
            | Operation::Statfs
            | Operation::Release(_)
            | Operation::Fsync(_)
            | Operation::Getxattr { .. }
            | Operation::Listxattr { .. }
            | Operation::Flush(_)
            | Operation::Init(_)
            | Operation::Opendir(_)
            | Operation::Readdir(_)
            | Operation::Readdirplus(_)
            | Operation::Releasedir(_)
            | Operation::Fsyncdir(_)
            | Operation::Getlk(_)
            | Operation::Setlk(_)
            | Operation::Setlkw(_)
            | Operation::Access(_)
            | Operation::Interrupt { .. }
            | Operation::Bmap(_)
            | Operation::Destroy
            | Operation::Ioctl { .. }
            | Operation::Poll(_)
            | Operation::Lseek(_)
            | Operation::Syncfs
            | Operation::Unknown(_) => None,
        }
    }
}

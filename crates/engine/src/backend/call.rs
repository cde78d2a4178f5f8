//! The calls of the storage interface.

use std::ffi::OsString;

use crate::backend::{
    Attr, AttrChange, Creator, DirEntry, DirEntryPlus, Done, FallocateMode, FileHandle, Found, NewNode, Node, ReadUnit,
    Removal, RenameMode, SeekWhence, Statfs, SyncScope, WriteUnit, XattrMode,
};
use crate::error::BackendError;
use crate::units::NodeId;

/// A request to a backend. Names are single components: never empty, `.`, `..` or with a slash or NUL.
#[derive(Debug)]
#[non_exhaustive]
pub enum Call {
    /// Opens the root directory.
    Root {
        /// The root.
        done: Done<Found>,
    },
    /// Finds `name` in `dir`; does not follow a symbolic link.
    Lookup {
        /// Directory to look in.
        dir: Node,
        /// Name to look for.
        name: OsString,
        /// The node, or `NotFound`.
        done: Done<Found>,
    },
    /// Opens a node again by its handle.
    Reopen {
        /// Handle from an earlier [`Found`].
        handle: FileHandle,
        /// The identity that it must still have. `None` if the handle comes from outside and may be forged. In that
        /// case, a directory that is not in the volume is `Stale` too.
        id: Option<NodeId>,
        /// Whether a node without a name counts too, because another process keeps it open.
        nameless: bool,
        /// The node; `Stale` if it no longer exists, or has no name left and would need one.
        done: Done<Found>,
    },
    /// Finds the parent of a directory.
    Parent {
        /// A directory of the volume.
        dir: Node,
        /// The parent with its name; `Stale` for the root and for a directory that is no longer in the volume.
        done: Done<Found>,
    },
    /// Reads attributes.
    Getattr {
        /// Node to ask.
        node: Node,
        /// The node's attributes.
        done: Done<Attr>,
    },
    /// Changes attributes, all or none. `size_bytes` truncates, or extends with zeroes.
    Setattr {
        /// Node to change.
        node: Node,
        /// The new values.
        change: AttrChange,
        /// The node's attributes afterwards.
        done: Done<Attr>,
    },
    /// Makes a node. The name must be free.
    Make {
        /// Directory of the new name.
        dir: Node,
        /// The new name.
        name: OsString,
        /// The kind of node to make.
        what: NewNode,
        /// The requested permission bits.
        mode: u32,
        /// The caller: see [`Creator`]. `None` uses `mode` unchanged and leaves the owner to the backend.
        creator: Option<Creator>,
        /// The new node.
        done: Done<Found>,
    },
    /// Makes a regular file without a name. [`Call::Link`] may name it later.
    Tmpfile {
        /// The directory that determines its file system, group and default ACL.
        dir: Node,
        /// The requested permission bits.
        mode: u32,
        /// The creator, as for [`Call::Make`].
        creator: Option<Creator>,
        /// The new node, with no names.
        done: Done<Found>,
    },
    /// Gives a node another name, or its first one if [`Call::Tmpfile`] made it.
    Link {
        /// Node to link.
        node: Node,
        /// Directory of the new name.
        dir: Node,
        /// The new name; must not exist.
        name: OsString,
        /// The node's attributes afterwards.
        done: Done<Attr>,
    },
    /// Removes a name.
    Remove {
        /// Directory of the name.
        dir: Node,
        /// The name.
        name: OsString,
        /// Whether the name must be that of a file or of a directory.
        removal: Removal,
        /// The node that had the name, with its new attributes.
        done: Done<Found>,
    },
    /// Moves a name.
    Rename {
        /// Directory of the old name.
        from_dir: Node,
        /// The old name.
        from: OsString,
        /// Directory of the new name.
        to_dir: Node,
        /// The new name.
        to: OsString,
        /// How to treat a node that has the new name.
        mode: RenameMode,
        /// Success, or the error.
        done: Done<()>,
    },
    /// Reads the target of a symbolic link.
    Readlink {
        /// The link.
        node: Node,
        /// The link's target.
        done: Done<OsString>,
    },
    /// Reads some entries of a directory, without `.` and `..`.
    Readdir {
        /// The directory.
        node: Node,
        /// 0, or [`DirEntry::cookie`] of the last entry seen.
        cookie: u64,
        /// The next entries; empty at the end.
        done: Done<Vec<DirEntry>>,
    },
    /// Reads a directory as [`Call::Readdir`] does, and looks each entry up.
    ReaddirPlus {
        /// The directory.
        node: Node,
        /// Where to continue, as for [`Call::Readdir`].
        cookie: u64,
        /// The next entries; empty at the end.
        done: Done<Vec<DirEntryPlus>>,
    },
    /// Reads an extended attribute.
    Getxattr {
        /// Node to ask.
        node: Node,
        /// Name with its namespace, as `user.mime_type`.
        name: OsString,
        /// The value, or `NoData`.
        done: Done<Vec<u8>>,
    },
    /// Sets an extended attribute.
    Setxattr {
        /// Node to change.
        node: Node,
        /// Name with its namespace.
        name: OsString,
        /// The new value.
        value: Vec<u8>,
        /// Whether the attribute may or must exist already.
        mode: XattrMode,
        /// The node's attributes afterwards: an ACL changes the mode.
        done: Done<Attr>,
    },
    /// Reads the names of the extended attributes.
    Listxattr {
        /// Node to ask.
        node: Node,
        /// The names.
        done: Done<Vec<OsString>>,
    },
    /// Removes an extended attribute.
    Removexattr {
        /// Node to change.
        node: Node,
        /// Name with its namespace; `NoData` when there is none.
        name: OsString,
        /// The node's attributes afterwards.
        done: Done<Attr>,
    },
    /// Reads the flags of a file or directory: the bits of `FS_IOC_GETFLAGS`.
    Getflags {
        /// Node to ask.
        node: Node,
        /// The node's flags; `Unsupported` if the backend has none.
        done: Done<u32>,
    },
    /// Sets all flags of a file or directory.
    Setflags {
        /// Node to change.
        node: Node,
        /// The new flags.
        flags: u32,
        /// The node's attributes afterwards.
        done: Done<Attr>,
    },
    /// Allocates, zeroes or frees a range of a regular file.
    Fallocate {
        /// The file.
        node: Node,
        /// The operation on the range.
        mode: FallocateMode,
        /// Start of the range.
        offset_bytes: u64,
        /// Length of the range; 0 is `Invalid`.
        len_bytes: u64,
        /// The file's attributes afterwards.
        done: Done<Attr>,
    },
    /// Finds the next data or hole of a regular file.
    Seek {
        /// The file.
        node: Node,
        /// Where to start.
        offset_bytes: u64,
        /// Data or a hole.
        whence: SeekWhence,
        /// The first byte of data, or of a hole. `None` if there is no data up to the end, or the offset is at or
        /// beyond the end.
        done: Done<Option<u64>>,
    },
    /// Reads file data into frames.
    Read(ReadUnit),
    /// Writes frames to a file.
    Write(WriteUnit),
    /// Makes a file durable (B4).
    Sync {
        /// File or directory.
        node: Node,
        /// How much of it.
        scope: SyncScope,
        /// Success, or the error.
        done: Done<()>,
    },
    /// Makes the whole volume durable (B4).
    SyncVolume {
        /// Success, or the error.
        done: Done<()>,
    },
    /// Reads space and limits.
    Statfs {
        /// The figures.
        done: Done<Statfs>,
    },
}

impl Call {
    /// The kind of call, for logs and for layers that select calls by it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Root { .. } => "root",
            Self::Lookup { .. } => "lookup",
            Self::Reopen { .. } => "reopen",
            Self::Parent { .. } => "parent",
            Self::Getattr { .. } => "getattr",
            Self::Setattr { .. } => "setattr",
            Self::Make { .. } => "make",
            Self::Tmpfile { .. } => "tmpfile",
            Self::Link { .. } => "link",
            Self::Remove { .. } => "remove",
            Self::Rename { .. } => "rename",
            Self::Readlink { .. } => "readlink",
            Self::Readdir { .. } => "readdir",
            Self::ReaddirPlus { .. } => "readdir_plus",
            Self::Getxattr { .. } => "getxattr",
            Self::Setxattr { .. } => "setxattr",
            Self::Listxattr { .. } => "listxattr",
            Self::Removexattr { .. } => "removexattr",
            Self::Getflags { .. } => "getflags",
            Self::Setflags { .. } => "setflags",
            Self::Fallocate { .. } => "fallocate",
            Self::Seek { .. } => "seek",
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::Sync { .. } => "sync",
            Self::SyncVolume { .. } => "sync_volume",
            Self::Statfs { .. } => "statfs",
        }
    }

    /// The node that the call is about. For calls with names it is the directory, for a rename the old one.
    pub fn node_id(&self) -> Option<NodeId> {
        match self {
            Self::Lookup { dir, .. }
            | Self::Parent { dir, .. }
            | Self::Make { dir, .. }
            | Self::Tmpfile { dir, .. }
            | Self::Remove { dir, .. } => Some(dir.id()),
            Self::Rename { from_dir, .. } => Some(from_dir.id()),
            Self::Getattr { node, .. } | Self::Setattr { node, .. } | Self::Link { node, .. } => Some(node.id()),
            Self::Readlink { node, .. } | Self::Readdir { node, .. } | Self::Sync { node, .. } => Some(node.id()),
            Self::ReaddirPlus { node, .. } | Self::Getxattr { node, .. } | Self::Setxattr { node, .. } => {
                Some(node.id())
            }
            Self::Listxattr { node, .. } | Self::Removexattr { node, .. } => Some(node.id()),
            Self::Getflags { node, .. } | Self::Setflags { node, .. } => Some(node.id()),
            Self::Fallocate { node, .. } | Self::Seek { node, .. } => Some(node.id()),
            Self::Reopen { id, .. } => *id,
            Self::Read(unit) => Some(unit.node().id()),
            Self::Write(unit) => Some(unit.node().id()),
            Self::Root { .. } | Self::SyncVolume { .. } | Self::Statfs { .. } => None,
        }
    }

    /// Whether the call changes names, attributes or space, which a `SyncVolume` makes durable. A `Write` is not
    /// counted: its pages are unstable until they are durable.
    pub(crate) fn is_change(&self) -> bool {
        match self {
            Self::Setattr { .. } | Self::Make { .. } | Self::Tmpfile { .. } | Self::Link { .. } => true,
            Self::Remove { .. } | Self::Rename { .. } | Self::Fallocate { .. } => true,
            Self::Setxattr { .. } | Self::Removexattr { .. } | Self::Setflags { .. } => true,
            Self::Root { .. } | Self::Lookup { .. } | Self::Reopen { .. } | Self::Parent { .. } => false,
            Self::Getattr { .. } | Self::Readlink { .. } | Self::Readdir { .. } | Self::ReaddirPlus { .. } => false,
            Self::Getxattr { .. } | Self::Listxattr { .. } | Self::Getflags { .. } | Self::Seek { .. } => false,
            Self::Read(_) | Self::Write(_) => false,
            Self::Sync { .. } | Self::SyncVolume { .. } | Self::Statfs { .. } => false,
        }
    }

    /// Offset and length in bytes, if the call moves data.
    pub fn range_bytes(&self) -> Option<(u64, usize)> {
        match self {
            Self::Read(unit) => Some((unit.offset_bytes(), unit.len_bytes())),
            Self::Write(unit) => Some((unit.offset_bytes(), unit.len_bytes())),
            Self::Root { .. } | Self::Lookup { .. } | Self::Reopen { .. } | Self::Getattr { .. } => None,
            Self::Parent { .. } => None,
            Self::Setattr { .. } | Self::Make { .. } | Self::Tmpfile { .. } | Self::Link { .. } => None,
            Self::Remove { .. } | Self::Rename { .. } | Self::Readlink { .. } => None,
            Self::Readdir { .. } | Self::ReaddirPlus { .. } => None,
            Self::Getxattr { .. } | Self::Setxattr { .. } | Self::Listxattr { .. } => None,
            Self::Removexattr { .. } | Self::Fallocate { .. } | Self::Seek { .. } => None,
            Self::Getflags { .. } | Self::Setflags { .. } => None,
            Self::Sync { .. } | Self::SyncVolume { .. } | Self::Statfs { .. } => None,
        }
    }

    /// Answers the call with `error`.
    pub fn fail(self, error: BackendError) {
        match self {
            Self::Root { done }
            | Self::Lookup { done, .. }
            | Self::Reopen { done, .. }
            | Self::Parent { done, .. }
            | Self::Make { done, .. }
            | Self::Tmpfile { done, .. }
            | Self::Remove { done, .. } => done.complete(Err(error)),
            Self::Getattr { done, .. }
            | Self::Setattr { done, .. }
            | Self::Link { done, .. }
            | Self::Setxattr { done, .. }
            | Self::Removexattr { done, .. }
            | Self::Setflags { done, .. }
            | Self::Fallocate { done, .. } => done.complete(Err(error)),
            Self::Rename { done, .. } | Self::Sync { done, .. } | Self::SyncVolume { done } => {
                done.complete(Err(error));
            }
            Self::Readlink { done, .. } => done.complete(Err(error)),
            Self::Readdir { done, .. } => done.complete(Err(error)),
            Self::ReaddirPlus { done, .. } => done.complete(Err(error)),
            Self::Getxattr { done, .. } => done.complete(Err(error)),
            Self::Listxattr { done, .. } => done.complete(Err(error)),
            Self::Getflags { done, .. } => done.complete(Err(error)),
            Self::Seek { done, .. } => done.complete(Err(error)),
            Self::Read(unit) => unit.complete(Err(error)),
            Self::Write(unit) => unit.complete(Err(error)),
            Self::Statfs { done } => done.complete(Err(error)),
        }
    }
}

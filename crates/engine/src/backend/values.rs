//! Arguments and results of calls.

use std::ffi::OsString;

use crate::backend::{Attr, FileHandle, Node, NodeKind};
use crate::units::Timestamp;

/// A node that was found, opened or made.
#[derive(Clone, Debug)]
pub struct Found {
    /// The open node.
    pub node: Node,
    /// A handle to reopen it, also in another process.
    pub handle: FileHandle,
    /// The node's attributes.
    pub attr: Attr,
}

/// The kind of node to make.
#[derive(Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub enum NewNode {
    /// An empty regular file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(OsString),
    /// A device, FIFO or socket.
    Special {
        /// `S_IFCHR`, `S_IFBLK`, `S_IFIFO` or `S_IFSOCK`; anything else is `Invalid`.
        type_bits: u32,
        /// Device number; 0 for FIFOs and sockets.
        rdev: u64,
    },
}

/// The caller for whom a node is made. The node belongs to `uid` and `gid`. In a setgid directory, it gets the
/// directory's group instead, and a new directory becomes setgid as well. `umask` clears bits of the mode, unless the
/// directory has a default ACL, which then applies instead.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Creator {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits to clear.
    pub umask: u32,
}

/// The attributes to change; `None` leaves one unchanged.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct AttrChange {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a regular file.
    pub size_bytes: Option<u64>,
    /// Time of last access.
    pub atime: Option<Timestamp>,
    /// Time of last change of the data.
    pub mtime: Option<Timestamp>,
}

/// The kind of node that [`Call::Remove`](super::Call::Remove) may remove.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Removal {
    /// Anything but a directory.
    File,
    /// An empty directory.
    Directory,
}

/// How a rename treats a node that has the new name.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail with `Exists`.
    NoReplace,
    /// Exchange the two names.
    Exchange,
    /// Replace it, and leave a whiteout at the old name: a character device 0/0, which tells union file systems that
    /// the name is deleted.
    Whiteout,
}

/// How much [`Call::Sync`](super::Call::Sync) makes durable.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum SyncScope {
    /// Data, and the metadata needed to read it (fdatasync).
    Data,
    /// Data and all metadata (fsync).
    All,
}

/// An entry of a directory.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct DirEntry {
    /// Pass this to the next [`Call::Readdir`](super::Call::Readdir) to continue after this entry. Never 0.
    pub cookie: u64,
    /// The name.
    pub name: OsString,
    /// Number of the node on its device.
    pub ino: u64,
    /// Kind of the node, if the backend knows it without opening the node.
    pub kind: Option<NodeKind>,
}

/// A directory entry with its node.
#[derive(Clone, Debug)]
pub struct DirEntryPlus {
    /// The entry.
    pub entry: DirEntry,
    /// The node. `None` if its name was removed meanwhile, or it is a mount point.
    pub found: Option<Found>,
}

/// Whether [`Call::Setxattr`](super::Call::Setxattr) may create an attribute or replace one.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Create only; `Exists` if there is one.
    Create,
    /// Replace only; `NoData` if there is none.
    Replace,
}

/// How [`Call::Fallocate`](super::Call::Fallocate) changes a range.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum FallocateMode {
    /// Allocates space and extends the file to the end of the range.
    Allocate,
    /// Allocates space; the size stays.
    AllocateKeepSize,
    /// Makes it a hole; the size stays.
    PunchHole,
    /// Zeroes it, allocates space, and extends the file to the end of the range.
    Zero,
    /// Zeroes it and allocates space; the size stays.
    ZeroKeepSize,
}

/// The target of [`Call::Seek`](super::Call::Seek).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum SeekWhence {
    /// A byte that is not in a hole.
    Data,
    /// A hole; the end of the file counts as one.
    Hole,
}

/// Space and limits of a backend.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Statfs {
    /// Preferred transfer size (`f_bsize`).
    pub block_bytes: u64,
    /// Bytes per fragment, the unit of the counts below (`f_frsize`).
    pub fragment_bytes: u64,
    /// Size in fragments.
    pub blocks: u64,
    /// Free fragments.
    pub blocks_free: u64,
    /// Free fragments available to unprivileged users.
    pub blocks_available: u64,
    /// File slots.
    pub files: u64,
    /// Free file slots.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

//! What calls take and answer.

use std::ffi::OsString;

use crate::backend::{Attr, FileHandle, Node, NodeKind};
use crate::units::Timestamp;

/// A node that was found, opened or made.
#[derive(Clone, Debug)]
pub struct Found {
    /// The open node.
    pub node: Node,
    /// Handle to open it again, also in another process.
    pub handle: FileHandle,
    /// Its attributes.
    pub attr: Attr,
}

/// What to make.
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
        /// Number of a device; 0 for the others.
        rdev: u64,
    },
}

/// On whose behalf a node is made. It belongs to `uid` and `gid`, but in a setgid directory to the
/// directory's group, and a directory made there is setgid as well. `umask` takes bits off the mode, unless
/// the directory has a default ACL: then that decides.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Creator {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits that are not given.
    pub umask: u32,
}

/// Which attributes to change; `None` leaves one alone.
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

/// What [`Call::Remove`](super::Call::Remove) is meant for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Removal {
    /// Anything but a directory.
    File,
    /// An empty directory.
    Directory,
}

/// What may happen to a node at the new name of a rename.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum RenameMode {
    /// It is replaced.
    Replace,
    /// It is an error (`Exists`).
    NoReplace,
    /// The two names change places.
    Exchange,
    /// It is replaced, and the old name leads to a whiteout: a character device 0/0, by which union file systems know that
    /// a name is gone.
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
    /// Pass this to the next [`Call::Readdir`](super::Call::Readdir) to go on behind this entry. Never 0.
    pub cookie: u64,
    /// The name.
    pub name: OsString,
    /// Number of the node on its device.
    pub ino: u64,
    /// Kind, if the backend knows it without opening the node.
    pub kind: Option<NodeKind>,
}

/// An entry of a directory, and what it leads to.
#[derive(Clone, Debug)]
pub struct DirEntryPlus {
    /// The entry.
    pub entry: DirEntry,
    /// The node. `None`: its name is gone meanwhile, or it is a mount point.
    pub found: Option<Found>,
}

/// Whether [`Call::Setxattr`](super::Call::Setxattr) may make an attribute and may replace one.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum XattrMode {
    /// Both.
    Set,
    /// There must be none (`Exists`).
    Create,
    /// There must be one (`NoData`).
    Replace,
}

/// What [`Call::Fallocate`](super::Call::Fallocate) makes of a range.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum FallocateMode {
    /// It has space, and the file reaches to its end.
    Allocate,
    /// It has space; the size stays.
    AllocateKeepSize,
    /// It is a hole; the size stays.
    PunchHole,
    /// It reads as zeroes and has space, and the file reaches to its end.
    Zero,
    /// It reads as zeroes and has space; the size stays.
    ZeroKeepSize,
}

/// What [`Call::Seek`](super::Call::Seek) looks for.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum SeekWhence {
    /// A byte that is not in a hole.
    Data,
    /// A hole; the end of the file is one.
    Hole,
}

/// Space and limits of a backend.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Statfs {
    /// Best size of one transfer (`f_bsize`).
    pub block_bytes: u64,
    /// Bytes per fragment, the unit of the counts below (`f_frsize`).
    pub fragment_bytes: u64,
    /// Size in fragments.
    pub blocks: u64,
    /// Free fragments.
    pub blocks_free: u64,
    /// Free fragments that an unprivileged user may take.
    pub blocks_available: u64,
    /// File slots.
    pub files: u64,
    /// Free file slots.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

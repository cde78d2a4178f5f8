//! The calls of the storage port and their answers.

use std::ffi::OsString;
use std::fmt;

use crate::backend::{Attr, FileHandle, Node, NodeKind, ReadUnit, WriteUnit};
use crate::error::{BackendError, ErrorKind};
use crate::units::{NodeId, Timestamp};

/// Where the answer to a call goes. Dropping it answers [`ErrorKind::Abandoned`].
pub struct Done<T>(Option<Then<T>>);

type Then<T> = Box<dyn FnOnce(Result<T, BackendError>) + Send>;

impl<T> Done<T> {
    /// Calls `then` with the answer, on whatever thread completes the call.
    pub fn new(then: impl FnOnce(Result<T, BackendError>) + Send + 'static) -> Self {
        Self(Some(Box::new(then)))
    }

    /// Answers the call.
    pub fn complete(mut self, answer: Result<T, BackendError>) {
        if let Some(then) = self.0.take() {
            then(answer);
        }
    }
}

impl<T> Drop for Done<T> {
    fn drop(&mut self) {
        if let Some(then) = self.0.take() {
            then(Err(ErrorKind::Abandoned.into()));
        }
    }
}

impl<T> fmt::Debug for Done<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}

/// One request to a backend. Names are single components: never empty, `.`, `..` or with a slash or NUL.
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
        /// Identity it must still have.
        id: NodeId,
        /// The node, or `Stale` when it is gone or has no name left.
        done: Done<Found>,
    },
    /// Reads attributes.
    Getattr {
        /// Node to ask.
        node: Node,
        /// Its attributes.
        done: Done<Attr>,
    },
    /// Changes attributes, all or none; `size_bytes` cuts or extends with zeroes.
    Setattr {
        /// Node to change.
        node: Node,
        /// What to change.
        change: AttrChange,
        /// Its attributes afterwards.
        done: Done<Attr>,
    },
    /// Makes a node that must not exist.
    Make {
        /// Directory of the new name.
        dir: Node,
        /// The new name.
        name: OsString,
        /// What to make.
        what: NewNode,
        /// Permission bits; no umask is applied.
        mode: u32,
        /// Owner and group; `None` leaves them to the backend.
        owner: Option<(u32, u32)>,
        /// The new node.
        done: Done<Found>,
    },
    /// Gives a node another name.
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
        /// Whether a file or a directory is meant.
        removal: Removal,
        /// Done, or why not.
        done: Done<()>,
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
        /// What may happen to the node at the new name.
        mode: RenameMode,
        /// Done, or why not.
        done: Done<()>,
    },
    /// Reads the target of a symbolic link.
    Readlink {
        /// The link.
        node: Node,
        /// Its target.
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
        /// Durable, or not.
        done: Done<()>,
    },
    /// Makes the whole volume durable (B4).
    SyncVolume {
        /// Durable, or not.
        done: Done<()>,
    },
    /// Reads space and limits.
    Statfs {
        /// The figures.
        done: Done<Statfs>,
    },
}

impl Call {
    /// The kind of call, for logs and for layers that pick by it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Root { .. } => "root",
            Self::Lookup { .. } => "lookup",
            Self::Reopen { .. } => "reopen",
            Self::Getattr { .. } => "getattr",
            Self::Setattr { .. } => "setattr",
            Self::Make { .. } => "make",
            Self::Link { .. } => "link",
            Self::Remove { .. } => "remove",
            Self::Rename { .. } => "rename",
            Self::Readlink { .. } => "readlink",
            Self::Readdir { .. } => "readdir",
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::Sync { .. } => "sync",
            Self::SyncVolume { .. } => "sync_volume",
            Self::Statfs { .. } => "statfs",
        }
    }

    /// The node that the call is about; for calls with names the directory, for a rename the old one.
    pub fn node_id(&self) -> Option<NodeId> {
        match self {
            Self::Lookup { dir, .. } | Self::Make { dir, .. } | Self::Remove { dir, .. } => Some(dir.id()),
            Self::Rename { from_dir, .. } => Some(from_dir.id()),
            Self::Getattr { node, .. } | Self::Setattr { node, .. } | Self::Link { node, .. } => Some(node.id()),
            Self::Readlink { node, .. } | Self::Readdir { node, .. } | Self::Sync { node, .. } => Some(node.id()),
            Self::Reopen { id, .. } => Some(*id),
            Self::Read(unit) => Some(unit.node().id()),
            Self::Write(unit) => Some(unit.node().id()),
            Self::Root { .. } | Self::SyncVolume { .. } | Self::Statfs { .. } => None,
        }
    }

    /// Offset and length in bytes, if the call moves data.
    pub fn range_bytes(&self) -> Option<(u64, usize)> {
        match self {
            Self::Read(unit) => Some((unit.offset_bytes(), unit.len_bytes())),
            Self::Write(unit) => Some((unit.offset_bytes(), unit.len_bytes())),
            Self::Root { .. } | Self::Lookup { .. } | Self::Reopen { .. } | Self::Getattr { .. } => None,
            Self::Setattr { .. } | Self::Make { .. } | Self::Link { .. } | Self::Remove { .. } => None,
            Self::Rename { .. } | Self::Readlink { .. } | Self::Readdir { .. } => None,
            Self::Sync { .. } | Self::SyncVolume { .. } | Self::Statfs { .. } => None,
        }
    }

    /// Answers the call with `error`.
    pub fn fail(self, error: BackendError) {
        match self {
            Self::Root { done } | Self::Lookup { done, .. } | Self::Reopen { done, .. } | Self::Make { done, .. } => {
                done.complete(Err(error));
            }
            Self::Getattr { done, .. } | Self::Setattr { done, .. } | Self::Link { done, .. } => {
                done.complete(Err(error));
            }
            Self::Remove { done, .. }
            | Self::Rename { done, .. }
            | Self::Sync { done, .. }
            | Self::SyncVolume { done } => done.complete(Err(error)),
            Self::Readlink { done, .. } => done.complete(Err(error)),
            Self::Readdir { done, .. } => done.complete(Err(error)),
            Self::Read(unit) => unit.complete(Err(error)),
            Self::Write(unit) => unit.complete(Err(error)),
            Self::Statfs { done } => done.complete(Err(error)),
        }
    }
}

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

/// What [`Call::Remove`] is meant for.
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
}

/// How much [`Call::Sync`] makes durable.
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
    /// Pass this to the next [`Call::Readdir`] to go on behind this entry. Never 0.
    pub cookie: u64,
    /// The name.
    pub name: OsString,
    /// Number of the node on its device.
    pub ino: u64,
    /// Kind, if the backend knows it without opening the node.
    pub kind: Option<NodeKind>,
}

/// Space and limits of a backend.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Statfs {
    /// Bytes per block of the counts below.
    pub block_bytes: u64,
    /// Size in blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks that an unprivileged user may take.
    pub blocks_available: u64,
    /// File slots.
    pub files: u64,
    /// Free file slots.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_dropped_call_is_answered_as_abandoned() {
        let (send, answers) = mpsc::channel();
        drop(Call::SyncVolume { done: Done::new(move |answer| send.send(answer).expect("receiver lives")) });
        let answer = answers.recv().expect("answered");
        assert_eq!(answer.expect_err("abandoned").kind(), ErrorKind::Abandoned);
    }
}

//! Errors, one type per set of operations.
//!
//! Every error has an [`ErrorKind`], from which a front end chooses its errno. A backend's failure is passed on as a
//! [`BackendError`], with the message of its source.

use std::fmt;
use std::path::PathBuf;

use slackwater_sync::shim::Arc;
use thiserror::Error;

use crate::units::NodeId;

/// The kind of an error, regardless of its place. The numbers are stored in [`crate::ErrSeq`] words.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[repr(u16)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device or the store failed.
    Io = 1,
    /// No space left.
    NoSpace = 2,
    /// A quota is used up.
    Quota = 3,
    /// The backend is read-only.
    ReadOnly = 4,
    /// No such file or directory entry.
    NotFound = 5,
    /// The name is taken.
    Exists = 6,
    /// Not a directory.
    NotDirectory = 7,
    /// Is a directory.
    IsDirectory = 8,
    /// The directory is not empty.
    NotEmpty = 9,
    /// Size or offset beyond what the backend or the engine can hold.
    TooLarge = 10,
    /// The name is too long.
    NameTooLong = 11,
    /// The backend refused access (EACCES).
    Permission = 12,
    /// The file that this handle referred to no longer exists, or is another file now.
    Stale = 13,
    /// The backend does not support this.
    Unsupported = 14,
    /// The two names are on different devices.
    CrossDevice = 15,
    /// The node is in use.
    Busy = 16,
    /// Invalid argument.
    Invalid = 17,
    /// Data written earlier did not become durable; the engine will write it again.
    Lost = 18,
    /// The backend dropped the call without an answer.
    Abandoned = 19,
    /// A deadline passed.
    TimedOut = 20,
    /// The volume is not mounted, or no longer.
    NotMounted = 21,
    /// The node cannot have more names.
    TooManyLinks = 22,
    /// The caller lacks a privilege (EPERM).
    NotPermitted = 23,
    /// There is no such extended attribute.
    NoData = 24,
    /// A result does not fit into its destination.
    OutOfRange = 25,
    /// An argument is longer than the backend takes.
    TooBig = 26,
    /// The file is being executed.
    TextBusy = 27,
    /// No descriptors left.
    TooManyFiles = 28,
    /// No memory left.
    NoMemory = 29,
    /// The call would have to wait, which the caller does not allow.
    WouldBlock = 30,
    /// Too many levels of symbolic links.
    Loop = 31,
    /// No such device or address.
    NoDevice = 32,
    /// The caller was interrupted.
    Interrupted = 33,
    /// The tenant has too many open files whose nodes must stay open, because nothing else leads to them.
    TooManyOpen = 34,
}

impl ErrorKind {
    const ALL: [ErrorKind; 34] = [
        Self::Io,
        Self::NoSpace,
        Self::Quota,
        Self::ReadOnly,
        Self::NotFound,
        Self::Exists,
        Self::NotDirectory,
        Self::IsDirectory,
        Self::NotEmpty,
        Self::TooLarge,
        Self::NameTooLong,
        Self::Permission,
        Self::Stale,
        Self::Unsupported,
        Self::CrossDevice,
        Self::Busy,
        Self::Invalid,
        Self::Lost,
        Self::Abandoned,
        Self::TimedOut,
        Self::NotMounted,
        Self::TooManyLinks,
        Self::NotPermitted,
        Self::NoData,
        Self::OutOfRange,
        Self::TooBig,
        Self::TextBusy,
        Self::TooManyFiles,
        Self::NoMemory,
        Self::WouldBlock,
        Self::Loop,
        Self::NoDevice,
        Self::Interrupted,
        Self::TooManyOpen,
    ];

    /// The number under which an error word stores this kind: 1 to 4095.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The kind stored under `code`; an unknown code reads as [`ErrorKind::Io`].
    pub fn from_code(code: u16) -> Self {
        Self::ALL.into_iter().find(|kind| kind.code() == code).unwrap_or(Self::Io)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Io => "input/output error",
            Self::NoSpace => "no space left on the backend",
            Self::Quota => "quota exceeded",
            Self::ReadOnly => "the backend is read-only",
            Self::NotFound => "no such file or directory",
            Self::Exists => "the name already exists",
            Self::NotDirectory => "not a directory",
            Self::IsDirectory => "is a directory",
            Self::NotEmpty => "directory not empty",
            Self::TooLarge => "size or offset too large",
            Self::NameTooLong => "name too long",
            Self::Permission => "permission denied",
            Self::Stale => "stale file handle",
            Self::Unsupported => "not supported by the backend",
            Self::CrossDevice => "crosses a device boundary",
            Self::Busy => "busy",
            Self::Invalid => "invalid argument",
            Self::Lost => "written data did not become durable",
            Self::Abandoned => "the backend abandoned the call",
            Self::TimedOut => "timed out",
            Self::NotMounted => "not mounted",
            Self::TooManyLinks => "too many links",
            Self::NotPermitted => "operation not permitted",
            Self::NoData => "no such attribute",
            Self::OutOfRange => "result out of range",
            Self::TooBig => "argument too long",
            Self::TextBusy => "text file busy",
            Self::TooManyFiles => "too many open files",
            Self::NoMemory => "out of memory",
            Self::WouldBlock => "would block",
            Self::Loop => "too many levels of symbolic links",
            Self::NoDevice => "no such device or address",
            Self::Interrupted => "interrupted",
            Self::TooManyOpen => "too many open files that must stay open",
        })
    }
}

/// Failure of a backend call. Cheap to clone: one failed unit may have several waiters.
#[derive(Clone, Debug)]
pub struct BackendError {
    kind: ErrorKind,
    detail: Option<Arc<str>>,
}

impl BackendError {
    /// An error of `kind` with the message of its source, for example `pwritev2: EIO`.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: Some(detail.into().into()) }
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl From<ErrorKind> for BackendError {
    fn from(kind: ErrorKind) -> Self {
        Self { kind, detail: None }
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Some(detail) => write!(f, "{} ({detail})", self.kind),
            None => write!(f, "{}", self.kind),
        }
    }
}

impl std::error::Error for BackendError {}

/// Failure of an operation on a mounted volume or one of its files.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Offset or size beyond [`crate::backend::Limits::max_file_bytes`].
    #[error("offset {offset_bytes} + {len_bytes} bytes is beyond the largest file of {max_file_bytes} bytes")]
    TooLarge {
        /// First byte asked for.
        offset_bytes: u64,
        /// Bytes asked for.
        len_bytes: u64,
        /// The backend's limit.
        max_file_bytes: u64,
    },
    /// The volume is unmounted, or is being unmounted and accepts no more writes.
    #[error("the volume is not mounted")]
    NotMounted,
    /// A data operation on something that is not a regular file.
    #[error("{0} is not a regular file")]
    NotAFile(NodeId),
    /// An earlier write-back failed, which is reported once per open file. The data is kept and retried.
    #[error("an earlier write-back failed: {0}; the data is kept and will be retried")]
    Writeback(ErrorKind),
    /// The operation would have to wait for the backend, which the caller does not allow.
    #[error("the operation would have to wait for the backend")]
    WouldBlock,
}

impl FileError {
    /// The kind of the error, from which an errno is chosen.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Backend(error) => error.kind(),
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::NotMounted => ErrorKind::NotMounted,
            Self::NotAFile(_) => ErrorKind::Invalid,
            Self::Writeback(kind) => *kind,
            Self::WouldBlock => ErrorKind::WouldBlock,
        }
    }
}

/// The scan of a shrinker called something that waits for scans, perhaps for itself.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Error)]
#[error("cannot be called from inside the scan of a shrinker")]
pub struct InsideScan;

/// Failure of [`crate::Engine::mount`].
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum MountError {
    /// The backend's root could not be opened.
    #[error("cannot open the root of the backend: {0}")]
    Root(#[source] BackendError),
    /// A volume of this name is mounted in this engine.
    #[error("a volume named {0:?} is already mounted")]
    NameTaken(String),
    /// The name is empty or too long for the arena's volume table.
    #[error("volume name {0:?} must have 1 to 128 bytes")]
    BadName(String),
    /// The arena's volume table is full.
    #[error("the arena's volume table is full")]
    TooManyVolumes,
    /// The call comes from the scan of a shrinker.
    #[error(transparent)]
    InsideScan(#[from] InsideScan),
    /// A surviving inode could not be reopened. Its data stays in the arena.
    #[error(
        "cannot reopen {id}, which has {dirty_bytes} bytes of recovered data: {source}; they are kept in the arena"
    )]
    Survivor {
        /// The file.
        id: NodeId,
        /// Acknowledged bytes that are not yet written back.
        dirty_bytes: u64,
        /// Why it could not be opened.
        source: BackendError,
    },
}

/// Failure of [`crate::SuperBlock::umount`]. The volume stays mounted and writable.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum UmountError {
    /// Files are open.
    #[error("busy: {open_files} open files on {open_inodes} inodes")]
    Busy {
        /// Open file descriptions.
        open_files: u64,
        /// Inodes they are open on.
        open_inodes: u64,
    },
    /// The data could not be written back in time. Nothing is lost.
    #[error("the deadline passed with {dirty_bytes} bytes not written back; the volume stays mounted")]
    Deadline {
        /// Bytes still dirty, under write-back or not durable.
        dirty_bytes: u64,
        /// The last write-back error, if that is the cause.
        cause: Option<ErrorKind>,
    },
    /// The volume is unmounted already.
    #[error("not mounted")]
    NotMounted,
    /// The call comes from the scan of a shrinker.
    #[error(transparent)]
    InsideScan(#[from] InsideScan),
    /// Another unmount of this volume is running.
    #[error("another unmount of this volume is running")]
    InProgress,
    /// Inodes were still referenced after eviction: a bug in the engine or its user.
    #[error("{0} busy inodes after unmount")]
    BusyInodes(u64),
}

/// Failure of an operation on an engine's [`Namespace`](crate::Namespace).
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// The path is not absolute, or contains `..`.
    #[error("{0:?} is not an absolute path without `..`")]
    BadPath(PathBuf),
    /// No volume is mounted on the path.
    #[error("no volume is mounted on the path to {0:?}")]
    NotFound(PathBuf),
    /// Nothing is mounted exactly at this path.
    #[error("nothing is mounted at {0:?}")]
    NotAMount(PathBuf),
    /// Something is mounted at this path already.
    #[error("something is already mounted at {0:?}")]
    AlreadyMounted(PathBuf),
    /// The place is not a directory, so no volume can be mounted on it.
    #[error("{0:?} is not a directory")]
    NotADirectory(PathBuf),
    /// The volume that contains the path was unmounted meanwhile.
    #[error("the volume that contains {0:?} was unmounted meanwhile")]
    Unmounted(PathBuf),
    /// Other volumes are mounted on it, or it is in use.
    #[error("{path:?} is busy: {mounts} volumes are mounted on it, and there are {references} references")]
    Busy {
        /// Where it is mounted.
        path: PathBuf,
        /// Volumes that are mounted on it.
        mounts: u32,
        /// References to the mount: two permanent ones, one for each file opened by path, and those of lookups.
        references: u64,
    },
    /// The volume could not be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The volume could not be unmounted.
    #[error(transparent)]
    Umount(#[from] UmountError),
    /// The file at the path could not be looked up or opened.
    #[error(transparent)]
    File(#[from] FileError),
}

//! What can go wrong, by set of operations.
//!
//! Every error answers [`ErrorKind`], the one vocabulary in which a front door chooses its errno. A
//! backend's failure travels as [`BackendError`] and keeps the words of its source.

use std::fmt;
use std::path::PathBuf;

use slackwater_sync::shim::Arc;
use thiserror::Error;

use crate::units::NodeId;

/// What happened, independent of where. The numbers are stored in [`crate::ErrSeq`] words.
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
    /// The backend may not be written.
    ReadOnly = 4,
    /// No such file or directory entry.
    NotFound = 5,
    /// The name is taken.
    Exists = 6,
    /// A directory was needed.
    NotDirectory = 7,
    /// A directory was not expected.
    IsDirectory = 8,
    /// The directory is not empty.
    NotEmpty = 9,
    /// Size or offset beyond what the backend or the engine can hold.
    TooLarge = 10,
    /// The name is too long.
    NameTooLong = 11,
    /// The backend refused access (EACCES).
    Permission = 12,
    /// The file this handle named is gone, or is another file by now.
    Stale = 13,
    /// The backend does not do this.
    Unsupported = 14,
    /// The two names are on different devices.
    CrossDevice = 15,
    /// Something still uses it.
    Busy = 16,
    /// An argument makes no sense.
    Invalid = 17,
    /// Data written earlier did not become durable; the engine will write it again.
    Lost = 18,
    /// The backend dropped the call without an answer.
    Abandoned = 19,
    /// A deadline passed.
    TimedOut = 20,
    /// The volume is not mounted (any more).
    NotMounted = 21,
    /// The node has as many names as it can.
    TooManyLinks = 22,
    /// Only a more privileged caller may (EPERM).
    NotPermitted = 23,
    /// There is no such extended attribute.
    NoData = 24,
    /// A result does not fit where it has to go.
    OutOfRange = 25,
    /// An argument is longer than the backend takes.
    TooBig = 26,
    /// A program runs from the file.
    TextBusy = 27,
    /// No descriptors left.
    TooManyFiles = 28,
    /// No memory left.
    NoMemory = 29,
    /// It would have to wait, and was told not to.
    WouldBlock = 30,
    /// Too many symbolic links on the way.
    Loop = 31,
    /// There is no such device or address.
    NoDevice = 32,
    /// Somebody asked to stop waiting.
    Interrupted = 33,
    /// The tenant has too many files open that must stay open, since nothing else leads to them.
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
    /// An error of `kind` with the words of its source, for example `pwritev2: EIO`.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: Some(detail.into().into()) }
    }

    /// What happened.
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
        /// What the backend can hold.
        max_file_bytes: u64,
    },
    /// The volume was unmounted, or is being unmounted and takes no more writes.
    #[error("the volume is not mounted")]
    NotMounted,
    /// Data operation on something that is not a regular file.
    #[error("{0} is not a regular file")]
    NotAFile(NodeId),
    /// An earlier write-back failed (reported once per open file); the data is kept and retried.
    #[error("an earlier write-back failed: {0}; the data is kept and will be retried")]
    Writeback(ErrorKind),
    /// It would have to wait for the backend, and was told not to.
    #[error("the operation would have to wait for the backend")]
    WouldBlock,
}

impl FileError {
    /// What happened, for the choice of an errno.
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

/// A scan of a shrinker asked for what would wait for scans, perhaps for itself.
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
    /// The name is empty or longer than the arena's volume table takes.
    #[error("volume name {0:?} must have 1 to 128 bytes")]
    BadName(String),
    /// The arena's volume table is full.
    #[error("the arena's volume table is full")]
    TooManyVolumes,
    /// A shrinker's scan asked for it.
    #[error(transparent)]
    InsideScan(#[from] InsideScan),
    /// A surviving inode could not be opened again; its data stays in the arena.
    #[error(
        "cannot reopen {id}, which has {dirty_bytes} bytes of recovered data: {source}; they are kept in the arena"
    )]
    Survivor {
        /// The file.
        id: NodeId,
        /// Acknowledged bytes that are not in the backend yet.
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
    /// Data could not be written back in time. Nothing is lost.
    #[error("the deadline passed with {dirty_bytes} bytes not written back; the volume stays mounted")]
    Deadline {
        /// Bytes still dirty, under write-back or not durable.
        dirty_bytes: u64,
        /// The last write-back error, if that is the cause.
        cause: Option<ErrorKind>,
    },
    /// Unmounted already.
    #[error("not mounted")]
    NotMounted,
    /// A shrinker's scan asked for it.
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
    /// Not an absolute path, or one that goes up.
    #[error("{0:?} is not an absolute path without `..`")]
    BadPath(PathBuf),
    /// No volume is on the way of the path.
    #[error("no volume is mounted on the path to {0:?}")]
    NotFound(PathBuf),
    /// Nothing is mounted exactly there.
    #[error("nothing is mounted at {0:?}")]
    NotAMount(PathBuf),
    /// Something is mounted there.
    #[error("something is already mounted at {0:?}")]
    Taken(PathBuf),
    /// A volume can be mounted on a directory of another, and this is something else.
    #[error("{0:?} is not a directory")]
    NotADirectory(PathBuf),
    /// The volume around the path was unmounted meanwhile.
    #[error("the volume that contains {0:?} was unmounted meanwhile")]
    Gone(PathBuf),
    /// Something is mounted on it, or somebody uses it.
    #[error("{path:?} is busy: {mounts} volumes are mounted on it, and there are {references} references")]
    Busy {
        /// Where it is mounted.
        path: PathBuf,
        /// Volumes that are mounted on it.
        mounts: u32,
        /// References to the mount: two that are always there, one for each file opened by path, and those of lookups.
        references: u64,
    },
    /// The volume could not be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The volume could not be unmounted.
    #[error(transparent)]
    Umount(#[from] UmountError),
    /// What the path leads to could not be looked up or opened.
    #[error(transparent)]
    File(#[from] FileError),
}

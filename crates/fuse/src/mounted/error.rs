//! Why a volume is not mounted, or still is.

use std::path::PathBuf;

use rustix::io::Errno;
use slackwater::{ErrorKind, FileError, UmountError};

use crate::mount::{self, UnmountError};
use crate::mounted::holders::{Holder, list};
use crate::printable::Printable as _;
use crate::session::SessionError;

/// Why a volume is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountVolumeError {
    /// The volume is gone.
    #[error(transparent)]
    Volume(#[from] FileError),
    /// The mount.
    #[error(transparent)]
    Mount(#[from] mount::MountError),
    /// The device.
    #[error("error of the FUSE device: {0}")]
    Device(Errno),
    /// The kernel.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Why a volume is still mounted, or gone otherwise than it should be.
#[derive(Debug, thiserror::Error)]
pub enum MountedError {
    /// It is in use.
    #[error("{} is in use{}", .mountpoint.printable(), list(.holders))]
    Busy {
        /// Where it is mounted.
        mountpoint: PathBuf,
        /// By whom, as far as this user may know.
        holders: Vec<Holder>,
    },
    /// Gone from its mountpoint, but mounted somewhere else as well, as a bind mount or in another namespace; or a lazy
    /// unmount has left it to who had it open.
    #[error("{} is unmounted, but the volume is in use elsewhere{}", .mountpoint.printable(), list(.holders))]
    Elsewhere {
        /// Where it was mounted.
        mountpoint: PathBuf,
        /// Who uses it there.
        holders: Vec<Holder>,
    },
    /// Data could not be written back in time. Nothing is lost.
    #[error("the deadline passed with {dirty_bytes} bytes not written back; the volume stays mounted")]
    Deadline {
        /// Bytes that are not in the backend.
        dirty_bytes: u64,
        /// The last write-back error, if that is the cause.
        cause: Option<ErrorKind>,
    },
    /// Gone by force, and not all data could be written back before. Nothing is lost: the engine has the rest.
    #[error("unmounted by force with {dirty_bytes} bytes not written back")]
    Left {
        /// Bytes that are not in the backend.
        dirty_bytes: u64,
        /// The last write-back error, if that is the cause.
        cause: Option<ErrorKind>,
    },
    /// Another unmount of this volume is running.
    #[error("another unmount of this volume is running")]
    InProgress,
    /// The kernel, or `fusermount3`.
    #[error(transparent)]
    Unmount(UnmountError),
    /// The engine.
    #[error(transparent)]
    Volume(UmountError),
    /// A sync.
    #[error(transparent)]
    File(#[from] FileError),
    /// Pages of shared mappings.
    #[error("cannot write back pages of shared mappings: {0}")]
    Mapped(Errno),
}

impl From<UmountError> for MountedError {
    fn from(error: UmountError) -> Self {
        if let UmountError::Deadline { dirty_bytes, cause } = error {
            return Self::Deadline { dirty_bytes, cause };
        }
        if matches!(error, UmountError::InProgress) { Self::InProgress } else { Self::Volume(error) }
    }
}

//! Errors of mounting and unmounting a volume.

use std::path::PathBuf;

use rustix::io::Errno;
use slackwater::{ErrorKind, FileError, UmountError};

use crate::mounted::holders::{Holder, list};
use crate::takeover::RecordError;
use slackwater_fuse::mount::{self, UnmountError};
use slackwater_fuse::{RingError, SessionError};
use slackwater_host::Printable as _;

/// Why a volume is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountVolumeError {
    /// The engine's volume is unmounted.
    #[error(transparent)]
    Volume(#[from] FileError),
    /// mount(2) or `fusermount3` failed.
    #[error(transparent)]
    Mount(#[from] mount::MountError),
    /// The FUSE device cannot be used.
    #[error("error of the FUSE device: {0}")]
    Device(Errno),
    /// The session did not start.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The mount is to outlive this process, and the next one could not find its files.
    #[error(
        "the source has no file handles by which another process finds files again, and descriptors cannot replace them"
    )]
    NoNumbers,
    /// A volume that was mounted read-only cannot be made writable on this kernel.
    #[error("this kernel's cache does not follow writes around it, and files of the read-only mount are in it")]
    Incoherent,
    /// The record of an earlier process cannot be used.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl From<RingError> for MountVolumeError {
    fn from(error: RingError) -> Self {
        Self::Session(error.into())
    }
}

/// Why a volume is still mounted, or was not unmounted cleanly.
#[derive(Debug, thiserror::Error)]
pub enum MountedError {
    /// The mount is in use.
    #[error("{} is in use{}", .mountpoint.printable(), list(.holders))]
    Busy {
        /// The mount point.
        mountpoint: PathBuf,
        /// Processes that use the mount, as far as this user may see them.
        holders: Vec<Holder>,
    },
    /// The volume was removed from its mount point, but is mounted somewhere else as well, as a bind mount or in
    /// another namespace; or a lazy unmount left files open.
    #[error("{} is unmounted, but the volume is in use elsewhere{}", .mountpoint.printable(), list(.holders))]
    Elsewhere {
        /// The mount point it had.
        mountpoint: PathBuf,
        /// Processes that use the volume elsewhere.
        holders: Vec<Holder>,
    },
    /// Data could not be written back in time. Nothing is lost.
    #[error("the deadline passed with {dirty_bytes} bytes not written back; the volume stays mounted")]
    Deadline {
        /// Bytes not yet written back.
        dirty_bytes: u64,
        /// The last write-back error, if that is the cause.
        cause: Option<ErrorKind>,
    },
    /// The volume was unmounted by force before all data could be written back. Nothing is lost: the engine keeps the
    /// rest.
    #[error("unmounted by force with {dirty_bytes} bytes not written back")]
    Left {
        /// Bytes not yet written back.
        dirty_bytes: u64,
        /// The last write-back error, if that is the cause.
        cause: Option<ErrorKind>,
    },
    /// Another unmount of this volume is running.
    #[error("another unmount of this volume is running")]
    InProgress,
    /// The kernel or `fusermount3` failed to unmount.
    #[error(transparent)]
    Unmount(UnmountError),
    /// The engine failed to unmount the volume.
    #[error(transparent)]
    Volume(UmountError),
    /// A sync failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Flushing shared mappings failed.
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

//! The error of calls on a volume as a whole.

use slackwater::BackendError;
use thiserror::Error;

use crate::holder::Holder;

/// Why a volume could not be made, opened or checked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The URL or the settings of the store are wrong; the text says how to put it right.
    #[error("{0}")]
    Location(String),
    /// The store failed; the text says what to do.
    #[error("{0}")]
    Store(BackendError),
    /// The store failed; the text says what could not be done, why, and what to do.
    #[error("{0}")]
    Failed(String),
    /// There is no volume at this place.
    #[error("no Slackwater volume at {0}. Make one with `slackwater mkfs {0}`")]
    NoVolume(String),
    /// There is a volume already.
    #[error("there is a volume at {0} already. Use another prefix, or delete its objects first")]
    Exists(String),
    /// The volume has a newer format, or is damaged.
    #[error("cannot use the volume at {location}: {text}")]
    Unreadable {
        /// Where it is.
        location: String,
        /// Why not, and what to do.
        text: String,
    },
    /// Another process has the volume.
    #[error("{0}")]
    InUse(Holder),
    /// Another writer has had the volume since the process died whose local log is in
    /// [`OpenOptions::log_dir`](crate::OpenOptions::log_dir), and this one
    /// [must continue](crate::OpenOptions::must_continue) it. No data has changed.
    #[error("another writer has written to the volume since, and what that process left would overwrite newer data")]
    Overtaken,
    /// There is another volume at this place than the one that is [expected](crate::OpenOptions::id).
    #[error("the volume at {0} is another one than before: it was deleted and made anew")]
    Replaced(String),
}

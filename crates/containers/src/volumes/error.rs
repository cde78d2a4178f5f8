//! Why a call on a volume fails.

use std::fmt;
use std::io;
use std::path::Path;

use slackwater_control::exit::{Failure, Reason};
use slackwater_host::Printable as _;

use crate::limits::shown;

/// Why a call for a volume failed. Each kind is an answer of its own in the protocols of platforms. Nothing was
/// changed, unless the kind says otherwise.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum VolumeError {
    /// A volume of this name exists already, with other parameters.
    Different(Failure),
    /// The volume does not exist.
    Missing(Failure),
    /// A name, a pool or a limit that no volume can have.
    Invalid(Failure),
    /// A size that no volume can have.
    OutOfRange(Failure),
    /// A process uses the volume.
    Busy(Failure),
    /// The machine or the store failed. The call can be repeated.
    Failed(Failure),
}

impl VolumeError {
    pub(super) fn missing(id: &str) -> Self {
        Self::Missing(Failure::new(Reason::NotMounted, format!("there is no volume \"{}\"", shown(id))))
    }

    /// The message.
    pub(crate) fn failure(&self) -> &Failure {
        match self {
            Self::Different(failure)
            | Self::Missing(failure)
            | Self::Invalid(failure)
            | Self::OutOfRange(failure)
            | Self::Busy(failure)
            | Self::Failed(failure) => failure,
        }
    }
}

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.failure().fmt(f)
    }
}

impl From<Failure> for VolumeError {
    fn from(failure: Failure) -> Self {
        match failure.reason {
            Reason::Usage => Self::Invalid(failure),
            Reason::Busy => Self::Busy(failure),
            Reason::Failed
            | Reason::Deadline
            | Reason::NotMounted
            | Reason::NoDaemon
            | Reason::Rescued
            | Reason::Left => Self::Failed(failure),
        }
    }
}

/// The error of a call of the system on `path`.
pub(super) fn of_system(action: &str, path: &Path, error: &io::Error) -> VolumeError {
    VolumeError::Failed(Failure::failed(format!("cannot {action} {}: {error}", path.printable())))
}

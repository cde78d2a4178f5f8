//! The specification of a process that another process of this program starts: as JSON in memory, in an inherited
//! descriptor. The command line only names the descriptor and, for people, the command.
//!
//! A keeper of an earlier version starts `mount` or `daemon` with `--kept` and words. That is accepted as well. A program of
//! that version cannot be the next process of a mount of this one ([`FORMAT`]).

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use slackwater_control::exit::Failure;

use crate::arguments::{DaemonArguments, MountArguments};
use crate::os::{memory_file, sys};

/// The version of the specification, and of the settings of a volume that its next process has to know.
pub(crate) const FORMAT: u32 = 1;
/// The hidden command.
const COMMAND: &str = "serve";
/// A specification is no longer than this.
const BYTES_MAX: u64 = 64 << 20;

/// A process that serves.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Start {
    Mount(Box<MountArguments>),
    Daemon(Box<DaemonArguments>),
}

/// A specification that child processes of this one inherit.
pub(crate) struct Inheritable {
    file: OwnedFd,
    /// The command, for people.
    shown: Vec<OsString>,
}

impl Start {
    /// Writes the specification for child processes.
    ///
    /// # Errors
    /// A path is not UTF-8; there are no descriptors left, or no memory.
    pub(crate) fn inheritable(&self) -> io::Result<Inheritable> {
        let file = memory_file::write("slackwater-specification", &serde_json::to_vec(self)?)?;
        fcntl_setfd(&file, FdFlags::empty())?;
        let place = |path: &Path| path.as_os_str().to_owned();
        let shown = match self {
            Self::Mount(arguments) => vec!["mount".into(), place(&arguments.source), place(&arguments.mountpoint)],
            Self::Daemon(_) => vec!["daemon".into()],
        };
        Ok(Inheritable { file, shown })
    }

    /// The specification in a descriptor that this process has inherited.
    ///
    /// # Errors
    /// There is no specification.
    pub(crate) fn inherited(number: RawFd) -> Result<Self, Failure> {
        let read = || -> io::Result<Self> {
            let bytes = memory_file::read(sys::inherited(number)?, BYTES_MAX)?;
            Ok(serde_json::from_slice(&bytes)?)
        };
        read().map_err(|error| Failure::usage(format!("descriptor {number} has no specification: {error}")))
    }
}

impl Inheritable {
    /// The words for the child process.
    pub(crate) fn words(&self) -> impl Iterator<Item = OsString> {
        let words = [COMMAND.into(), self.file.as_raw_fd().to_string().into(), "--".into()];
        words.into_iter().chain(self.shown.iter().cloned())
    }
}

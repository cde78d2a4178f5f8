//! How the command ends: exit statuses and error messages.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The exit statuses, as `--help` and the man page list them.
pub const EXIT_STATUSES: &str = "\
Exit status:
  0  success
  1  failure; the message gives the cause and what to do
  2  wrong arguments
  3  busy: something is in use; nothing was changed
  4  the deadline passed; the volume stays mounted, nothing is lost
  5  not mounted, or no daemon listens
  6  unmounted or synced; data of files that were removed from the
     source directory is in slackwater-conflict-* files there
  7  unmounted by force at the deadline; unwritten data is kept for
     the next mount";

/// Why the command ends with a status other than 0.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    Failed,
    Usage,
    Busy,
    Deadline,
    NotMounted,
    /// No daemon listens at the socket; a daemon never sends this.
    NoDaemon,
    Rescued,
    Left,
}

impl Reason {
    /// The exit status, as in [`EXIT_STATUSES`].
    pub fn status(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Busy => 3,
            Self::Deadline => 4,
            Self::NotMounted | Self::NoDaemon => 5,
            Self::Rescued => 6,
            Self::Left => 7,
        }
    }
}

/// An error message: what failed and why, and what to do next.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    pub reason: Reason,
    pub what: String,
    /// The next steps for the user, a line each.
    pub advice: Vec<String>,
}

impl Failure {
    pub fn new(reason: Reason, what: impl Into<String>) -> Self {
        Self { reason, what: what.into(), advice: Vec::new() }
    }

    pub fn failed(what: impl Into<String>) -> Self {
        Self::new(Reason::Failed, what)
    }

    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Reason::Usage, what)
    }

    pub fn busy(what: impl Into<String>) -> Self {
        Self::new(Reason::Busy, what)
    }

    /// The failure of a build without the cargo feature `object`.
    pub fn no_object_stores() -> Self {
        Self::usage("this build of slackwater has no object stores")
            .advise("use a released binary, or build it: cargo build --release -p slackwater-cli --features object")
    }

    /// Adds a line that says what to do.
    pub fn advise(mut self, line: impl Into<String>) -> Self {
        self.advice.push(line.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        self.advice.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl std::error::Error for Failure {}

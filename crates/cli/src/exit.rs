//! How the command ends: exit statuses and error messages.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The exit statuses, as `--help` and the man page list them.
pub(crate) const EXIT_STATUSES: &str = "\
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
pub(crate) enum Reason {
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
    pub(crate) fn status(self) -> u8 {
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
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    pub(crate) what: String,
    /// The next steps for the user, a line each.
    pub(crate) advice: Vec<String>,
}

impl Failure {
    pub(crate) fn new(reason: Reason, what: impl Into<String>) -> Self {
        Self { reason, what: what.into(), advice: Vec::new() }
    }

    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self::new(Reason::Failed, what)
    }

    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(Reason::Usage, what)
    }

    pub(crate) fn busy(what: impl Into<String>) -> Self {
        Self::new(Reason::Busy, what)
    }

    /// Adds a line that says what to do.
    pub(crate) fn advise(mut self, line: impl Into<String>) -> Self {
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

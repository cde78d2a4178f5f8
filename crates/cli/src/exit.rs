//! How the command ends: with what status, and with which words.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What `--help` and the man page say of exit statuses.
pub(crate) const EXIT_STATUSES: &str = "\
Exit status:
  0  done
  1  failed; the message says what and what to do
  2  wrong arguments
  3  busy: something is in use; nothing was changed
  4  the deadline passed; the volume is still mounted and nothing is lost
  5  not mounted
  6  unmounted, but files with unwritten data had been removed from the source: that data is in files of its own
  7  unmounted by force at the deadline; data that the source does not have is kept for the next mount";

/// Why the command ends with another status than 0.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reason {
    Failed,
    Usage,
    Busy,
    Deadline,
    NotMounted,
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
            Self::NotMounted => 5,
            Self::Rescued => 6,
            Self::Left => 7,
        }
    }
}

/// A failure as the user meets it: what happened, and what to do about it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    pub(crate) what: String,
    /// One line each.
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

    /// With one more line of what to do.
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

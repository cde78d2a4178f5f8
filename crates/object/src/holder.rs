//! The holder of a volume, for people.

use std::fmt;

use chrono::DateTime;

/// The process that has a volume for writing.
///
/// Ages compare the clock of that machine with the clock of this one: they inform, and decide nothing.
#[derive(Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// Name of its machine; `None` if its claim cannot be read.
    pub host: Option<String>,
    /// The holder's process.
    pub pid: u32,
    /// When it opened the volume, in ms since the Unix epoch.
    pub since_unix_ms: u64,
    /// How long ago it last showed that it lives.
    pub alive_age_ms: u64,
    /// How long before that it last made changes durable; `None` if it has not yet.
    pub last_commit_age_ms: Option<u64>,
}

impl Holder {
    /// The holder of a claim that cannot be read.
    pub(crate) const UNKNOWN: Self =
        Self { host: None, pid: 0, since_unix_ms: 0, alive_age_ms: 0, last_commit_age_ms: None };
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(host) = &self.host else {
            return f.write_str("in use by a process whose claim this version cannot read");
        };
        write!(f, "in use by pid {} on {host}", self.pid)?;
        if let Some(since) = i64::try_from(self.since_unix_ms / 1000).ok().and_then(|s| DateTime::from_timestamp(s, 0))
        {
            write!(f, " since {since}")?;
        }
        write!(f, " (last sign of life {} ago", Age(self.alive_age_ms))?;
        match self.last_commit_age_ms {
            Some(age) => write!(f, ", last commit {} ago)", Age(age)),
            None => f.write_str(", no commit yet)"),
        }
    }
}

/// A duration in its largest unit.
struct Age(u64);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 / 1000 {
            s @ ..120 => write!(f, "{s} s"),
            s @ ..7200 => write!(f, "{} min", s / 60),
            s @ ..172_800 => write!(f, "{} h", s / 3600),
            s => write!(f, "{} days", s / 86_400),
        }
    }
}

//! The holder of a volume, for people.

use std::fmt;

use chrono::DateTime;

use crate::writer::record::Record;

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
    pub(super) fn of(record: Option<&Record>, now_unix_ms: u64) -> Self {
        let Some(record) = record else {
            return Self { host: None, pid: 0, since_unix_ms: 0, alive_age_ms: 0, last_commit_age_ms: None };
        };
        let age = |unix_ms: u64| now_unix_ms.saturating_sub(unix_ms);
        Self {
            // It comes from the store, and is shown on terminals.
            host: Some(record.process.host.escape_debug().to_string()),
            pid: record.process.pid,
            since_unix_ms: record.since_unix_ms,
            alive_age_ms: age(record.alive_unix_ms),
            last_commit_age_ms: record.last_commit_unix_ms.map(age),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::process::{Process, Token};

    fn record() -> Record {
        let process = Process { host: "db1".into(), pid: 4711, ..Process::current() };
        Record::new(&Token::new(), process, 1_795_532_400_000)
    }

    #[test]
    fn the_text_names_the_process_and_its_last_acts() {
        let record = Record { last_commit_unix_ms: Some(1_795_532_400_000), ..record() };
        let holder = Holder::of(Some(&record), 1_795_532_400_000 + 200_000);
        assert_eq!(
            holder.to_string(),
            "in use by pid 4711 on db1 since 2026-11-24 15:00:00 UTC (last sign of life 3 min ago, last commit 3 min \
             ago)"
        );
    }

    #[test]
    fn a_host_cannot_command_a_terminal() {
        let process = Process { host: "a\x1b[2Jb".into(), ..Process::current() };
        let record = Record::new(&Token::new(), process, 0);
        assert_eq!(Holder::of(Some(&record), 0).host.as_deref(), Some("a\\u{1b}[2Jb"));
    }

    #[test]
    fn a_clock_ahead_of_ours_gives_an_age_of_zero() {
        let holder = Holder::of(Some(&record()), 0);
        assert!(holder.to_string().ends_with("(last sign of life 0 s ago, no commit yet)"), "{holder}");
    }

    #[test]
    fn an_unreadable_claim_has_a_text_too() {
        assert_eq!(Holder::of(None, 0).to_string(), "in use by a process whose claim this version cannot read");
    }
}

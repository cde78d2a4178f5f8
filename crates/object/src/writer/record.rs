//! The content of a claim.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::holder::Holder;
use crate::writer::process::{Life, Process, Token};

/// The newest version of claims that this program reads. Programs that do not know keepers must not judge their claims, so
/// these are of version 2. Others are of version 1.
const VERSION: u32 = 2;

/// A claim, as JSON in `writer/NUMBER.json`. Fields that are unknown here are skipped.
#[derive(Clone, Eq, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) version: u32,
    /// Tells apart claims that would be equal otherwise: a claimant finds out whether the object is its own.
    pub(crate) token: String,
    #[serde(flatten)]
    pub(crate) process: Process,
    /// When the claim was made, by the clock of its machine, as all times here: for people, never for decisions.
    pub(crate) since_unix_ms: u64,
    /// When it was written last.
    pub(crate) alive_unix_ms: u64,
    /// When the last commit was done that the claim knows of.
    pub(crate) last_commit_unix_ms: Option<u64>,
    /// The holder has given the volume back.
    pub(crate) released: bool,
}

/// The meaning of the newest claim for a process that wants the volume.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Standing {
    /// No process has the volume.
    Free,
    /// The holder ended without giving it back.
    LeftBehind,
    /// The holder may be at work.
    Held,
}

impl Record {
    pub(crate) fn new(token: &Token, process: Process, now_unix_ms: u64) -> Self {
        Self {
            version: if process.keeper.is_some() { VERSION } else { 1 },
            token: token.as_str().to_owned(),
            process,
            since_unix_ms: now_unix_ms,
            alive_unix_ms: now_unix_ms,
            last_commit_unix_ms: None,
            released: false,
        }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut text = serde_json::to_vec_pretty(self).expect("a record has only text and numbers");
        text.push(b'\n');
        text.into()
    }

    /// `None` if the bytes are no claim, or one of a newer version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(|record: &Self| record.version <= VERSION)
    }

    /// The holder, as people see it at this time.
    pub(crate) fn holder(&self, now_unix_ms: u64) -> Holder {
        let age = |unix_ms: u64| now_unix_ms.saturating_sub(unix_ms);
        Holder {
            // It comes from the store, and is shown on terminals.
            host: Some(self.process.host.escape_debug().to_string()),
            pid: self.process.pid,
            since_unix_ms: self.since_unix_ms,
            alive_age_ms: age(self.alive_unix_ms),
            last_commit_age_ms: self.last_commit_unix_ms.map(age),
        }
    }

    /// Whether the volume can be had, as `observer` sees it.
    pub(crate) fn standing(
        &self,
        observer: &Process,
        is_held_here: impl FnOnce(&str) -> bool,
        start_of: impl Fn(u32) -> Option<u64>,
    ) -> Standing {
        let left_by_observer = self.process.shares_claims_with(observer) && !is_held_here(&self.token);
        if self.released {
            Standing::Free
        } else if left_by_observer || self.process.life(observer, start_of) == Life::Dead {
            Standing::LeftBehind
        } else {
            Standing::Held
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record::new(&Token::new(), Process::current(), 1_000)
    }

    #[test]
    fn a_record_survives_its_encoding() {
        let record = Record { last_commit_unix_ms: Some(7), released: true, ..record() };
        assert_eq!(Record::decode(&record.encode()), Some(record));
    }

    #[test]
    fn unknown_fields_are_skipped_and_newer_versions_are_not_read() {
        let mut value: serde_json::Value = serde_json::from_slice(&record().encode()).expect("it was encoded");
        value["novel"] = 1.into();
        assert!(Record::decode(value.to_string().as_bytes()).is_some());
        value["version"] = 3.into();
        assert_eq!(Record::decode(value.to_string().as_bytes()), None);
    }

    #[test]
    fn garbage_is_no_record() {
        let good = record().encode();
        assert_eq!(Record::decode(b""), None);
        assert_eq!(Record::decode(&good[..good.len() / 2]), None);
        assert_eq!(Record::decode(b"{\"version\": 1}"), None);
    }

    #[test]
    fn a_claim_of_a_living_process_is_held_until_it_is_released() {
        let me = Process::current();
        let alive = |_| Some(me.start_ticks);
        assert_eq!(record().standing(&me, |_| true, alive), Standing::Held);
        let released = Record { released: true, ..record() };
        assert_eq!(released.standing(&me, |_| true, alive), Standing::Free);
    }

    #[test]
    fn a_claim_that_nobody_holds_was_left_behind() {
        let me = Process::current();
        let alive = |_| Some(me.start_ticks);
        assert_eq!(record().standing(&me, |_| true, |_| None), Standing::LeftBehind, "the process ended");
        assert_eq!(record().standing(&me, |_| false, alive), Standing::LeftBehind, "the volume of this process did");
        let mut other = record();
        other.process.pid += 1;
        assert_eq!(other.standing(&me, |_| false, alive), Standing::Held, "another process may hold it");
    }

    #[test]
    fn the_text_names_the_process_and_its_last_acts() {
        let process = Process { host: "db1".into(), pid: 4711, ..Process::current() };
        let record = Record::new(&Token::new(), process, 1_795_532_400_000);
        let record = Record { last_commit_unix_ms: Some(1_795_532_400_000), ..record };
        let holder = record.holder(1_795_532_400_000 + 200_000);
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
        assert_eq!(record.holder(0).host.as_deref(), Some("a\\u{1b}[2Jb"));
    }

    #[test]
    fn a_clock_ahead_of_ours_gives_an_age_of_zero() {
        let holder = record().holder(0);
        assert!(holder.to_string().ends_with("(last sign of life 0 s ago, no commit yet)"), "{holder}");
    }

    #[test]
    fn an_unreadable_claim_has_a_text_too() {
        assert_eq!(Holder::UNKNOWN.to_string(), "in use by a process whose claim this version cannot read");
    }
}

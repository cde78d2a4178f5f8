//! When write-back has failed for so long that data which cannot be kept need not wait for it any more.
//!
//! A `write` can wait for frames as long as it takes: its program can be interrupted and has the bytes. A page that a
//! kernel held for a mapping belongs to no program that could take it back, and programs block in the kernel until it is answered.
//! So such a page waits for a backend that does not answer, and while write-back goes on. It is refused once the backend
//! has answered with errors for a while.
//!
//! # Invariants
//! F1. A refusal needs [`ATTEMPTS`] failed writes or commits without a success in between. The first of them is at least
//!     as old as the patience with the error of the last ([`patience`]).
//! F2. Metadata that cannot be written refuses nothing: it uses up no frames.
//! F3. The arena has the time of the first of them, stored under the lock. So a process that takes the data over goes on
//!     from there, and programs that wait are not held up by each kill anew. One attempt of its own must fail before it
//!     refuses anything.
//!
//! # Kernel counterpart
//! `mapping_set_error` and `folio_end_writeback`: a kernel gives a page up after its first failed attempt.

use std::time::Duration;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;

use crate::cgroup::Memcg;
use crate::error::ErrorKind;
use crate::inode::InodeRef;
use crate::lock_order::LEAVES;
use crate::super_block::SuperBlock;
use crate::tunables::Tunables;
use crate::units::Tick;
use crate::writeback::Attempt;

/// Failed attempts in a row.
const ATTEMPTS: u32 = 3;
/// An error that the backend will repeat until its state is changed is final after this many first pauses
/// between attempts.
const PAUSES: u32 = 10;

/// Attempts that have failed since the last success.
#[derive(Copy, Clone)]
struct Failures {
    since: Tick,
    count: u32,
    kind: ErrorKind,
}

/// See the [module documentation](self).
pub(super) struct Refusal(Mutex<Option<Failures>>);

impl Refusal {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LEAVES, None))
    }

    /// An attempt failed with `kind`. Calls `begin` if it is the first one.
    pub(super) fn failed(&self, kind: ErrorKind, now: Tick, begin: impl FnOnce(Option<Tick>)) {
        let mut failures = self.0.lock();
        let (since, count) = failures.map_or((now, 1), |earlier| (earlier.since, earlier.count.saturating_add(1)));
        if failures.replace(Failures { since, count, kind }).is_none() {
            begin(Some(now)); // F3
        }
    }

    /// An attempt succeeded after others had failed.
    pub(super) fn ended(&self, end: impl FnOnce(Option<Tick>)) {
        let mut failures = self.0.lock();
        *failures = None;
        end(None); // F3
    }

    /// The attempts of an earlier process fail since then. One that fails here is needed too.
    pub(super) fn inherit(&self, since: Tick) {
        *self.0.lock() = Some(Failures { since, count: ATTEMPTS - 1, kind: ErrorKind::Io });
    }

    /// F1.
    pub(super) fn kind(&self, now: Tick, tunables: &Tunables) -> Option<ErrorKind> {
        let failures = (*self.0.lock())?;
        let is_final = failures.count >= ATTEMPTS && now.since(failures.since) >= patience(failures.kind, tunables);
        is_final.then_some(failures.kind)
    }
}

/// How long attempts fail with `kind` before that counts as the backend's last word.
#[allow(clippy::wildcard_enum_match_arm, reason = "an error that is not known to last may pass")]
fn patience(kind: ErrorKind, tunables: &Tunables) -> Duration {
    match kind {
        ErrorKind::NoSpace
        | ErrorKind::Quota
        | ErrorKind::ReadOnly
        | ErrorKind::TooLarge
        | ErrorKind::Permission
        | ErrorKind::NotPermitted
        | ErrorKind::Unsupported
        | ErrorKind::Invalid
        | ErrorKind::Stale => tunables.retry_min * PAUSES,
        _ => tunables.retry_max,
    }
}

/// Whether two tenants have a limit in common.
fn share_a_limit(one: &Memcg, other: &Memcg) -> bool {
    one.lineage().last().map(Memcg::id) == other.lineage().last().map(Memcg::id)
}

impl SuperBlock {
    /// Records the outcome of an attempt that ended just now.
    pub(crate) fn note_attempt(&self, attempt: Attempt, error: Option<ErrorKind>) {
        let arena = &self.engine().arena;
        let store =
            |since: Option<Tick>| arena.set_failing_since_ns(self.volume_slot(), since.map_or(0, |since| since.0));
        self.bdi().note_attempt(attempt, error, self.now(), store);
    }

    /// Goes on from the failed attempts of an earlier process, once its data is adopted (F3). A time in the future is that
    /// of another clock.
    pub(crate) fn inherit_failing(&self) {
        let since = Tick(self.engine().arena.failing_since_ns(self.volume_slot()));
        if since != Tick(0) && since <= self.now() && self.bdi().pinned_frames() != 0 {
            self.bdi().inherit_failing(since);
        }
    }

    /// How long a call for a page that cannot be kept is repeated while it fails with `kind`.
    pub fn patience(&self, kind: ErrorKind) -> Duration {
        patience(kind, &self.engine().tunables)
    }

    /// The error with which to refuse a page from a mapping of `inode` that finds no frame. `None` if frames can be
    /// expected. The frames may be used up by data of another volume: if nothing here can free any, its error counts.
    pub fn refusal(&self, inode: &InodeRef) -> Option<ErrorKind> {
        let engine = self.engine();
        let (now, tunables) = (engine.clock.now(), &engine.tunables);
        if let Some(kind) = self.bdi().refusal.kind(now, tunables) {
            return Some(kind);
        }
        let wb = inode.wb();
        let at_limit = !wb.memcg.may_dirty();
        let waits_here = if at_limit { !wb.stat.sum().is_zero() } else { self.bdi().pinned_frames() != 0 };
        if waits_here {
            return None;
        }
        let is_concerned = |sb: &Arc<SuperBlock>| {
            let mut has_its_data = false;
            sb.for_each_wb(|of| has_its_data |= share_a_limit(&of.memcg, &wb.memcg) && !of.stat.sum().is_zero());
            has_its_data || !at_limit
        };
        let failing = |sb: &Arc<SuperBlock>| sb.bdi().refusal.kind(now, tunables).filter(|_| is_concerned(sb));
        engine.super_blocks().iter().find_map(failing)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn at(tunables: &Tunables, times: f64) -> Tick {
        Tick(0) + tunables.retry_min.mul_f64(times)
    }

    #[test]
    fn an_error_is_final_after_some_attempts_and_some_time() {
        let tunables = Tunables::default();
        let refusal = Refusal::new();
        let kind = |times| refusal.kind(at(&tunables, times), &tunables);
        let noted = Cell::new(None);
        let note = |since| noted.set(since);
        for time in [0.0, 1.0] {
            refusal.failed(ErrorKind::NoSpace, at(&tunables, time), note);
            assert_eq!(kind(1000.0), None, "too few attempts");
        }
        refusal.failed(ErrorKind::NoSpace, at(&tunables, 3.0), note);
        assert_eq!((kind(9.9), kind(10.0)), (None, Some(ErrorKind::NoSpace)));
        refusal.failed(ErrorKind::Io, at(&tunables, 11.0), note);
        assert_eq!((kind(299.0), kind(300.0)), (None, Some(ErrorKind::Io)), "it may pass");
        refusal.ended(note);
        refusal.failed(ErrorKind::NoSpace, at(&tunables, 301.0), note);
        assert_eq!(kind(1000.0), None, "from the beginning");
        let since = noted.get().expect("it is stored for the next process");
        let (refusal, unnoted) = (Refusal::new(), |_| panic!("it was known"));
        refusal.inherit(since);
        assert_eq!(refusal.kind(at(&tunables, 1000.0), &tunables), None, "no attempt of its own");
        refusal.failed(ErrorKind::NoSpace, at(&tunables, 302.0), unnoted);
        assert_eq!(refusal.kind(at(&tunables, 310.9), &tunables), None);
        assert_eq!(refusal.kind(at(&tunables, 311.0), &tunables), Some(ErrorKind::NoSpace));
    }
}

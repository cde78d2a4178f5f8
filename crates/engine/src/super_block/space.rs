//! Space on the backend that dirty pages are going to need, so that a write is refused when it is made and not at
//! a flush that nobody waits for.
//!
//! A page that becomes dirty where the backend's file has nothing yet is *delayed*: its bytes are reserved here
//! until a unit has brought it there. What is left is `limit - delayed`.
//!
//! A backend is asked by the flusher when its answer is old, by a write that finds nothing left, and by `statfs`;
//! never by a completion.
//!
//! # Invariants
//! P1. `delayed` counts the pages with the `DELAYED` mark, from before they have it until after they lose it;
//!     `in_flight` those of them that are in units.
//! P2. `limit` is what the backend said was free, less what units have allocated since. The end of a unit moves
//!     its bytes from the one to the other: limit and delayed sink by as much, and what is left stays.
//! P3. Of a unit that was in flight between question and answer nobody knows whether the answer includes it. It
//!     is counted as not included, so it may count twice but never not at all, and `unsure` says by how much.
//!     A write is refused for good only if it would not fit without that.
//!
//! A change that takes space at once is counted like a unit of delayed pages ([`super::claims`]).
//!
//! Where a file ends and what lies in its holes are not told apart: a page before the end of what was ever
//! allocated of the file counts as having its space. A write into an old hole of a full volume is accepted, and
//! fails at its flush (P2 of SEMANTICS).
//!
//! # Memory ordering
//! Writers look at `limit` and `delayed` alone, and may see the one without the other: then they ask. All other
//! changes are made under `state`.
//!
//! # Kernel counterpart
//! Delayed allocation: `ext4_nonda_switch`, `BH_Delay`, `percpu_counter` of free clusters.

use std::time::Duration;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::backend::{Call, Done, Statfs};
use crate::error::{BackendError, FileError};
use crate::lock_order::LEAVES;
use crate::super_block::SuperBlock;
use crate::units::{PAGE_BYTES, Tick};

const PAGE: i64 = PAGE_BYTES as i64;
/// An answer is old after this time, if something was written meanwhile.
const STALE_AFTER: Duration = Duration::from_secs(1);
/// Questions of a write that finds nothing left; more than one only if units ended meanwhile.
const QUESTIONS_MAX: u32 = 3;

/// See the [module documentation](self).
pub(crate) struct Space {
    delayed: AtomicI64,
    /// `i64::MAX` until the backend has answered.
    limit: AtomicI64,
    /// Somebody gave space back, or the backend said that there is none.
    outdated: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_flight: i64,
    /// Bytes of delayed pages that were ever sent in units, and that units ever allocated.
    sent: u64,
    allocated: u64,
    /// P3.
    unsure: i64,
    /// When the backend was asked last, and what had been sent by then.
    asked_at: Option<Tick>,
    asked_sent: u64,
    /// The flusher's question is under way.
    asking: bool,
}

/// What was going on when the backend was asked.
struct Question {
    quiet: bool,
    sent: u64,
    allocated: u64,
}

/// What is left.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Left {
    Enough,
    /// Perhaps enough: known when the units that are in flight have ended.
    Unsure,
    Nothing,
}

impl Space {
    pub(crate) fn new() -> Self {
        Self {
            delayed: AtomicI64::new(0),
            limit: AtomicI64::new(i64::MAX),
            outdated: AtomicBool::new(false),
            state: Mutex::new(LEAVES, State::default()),
        }
    }

    /// Reserves a page, if it is left.
    pub(crate) fn try_reserve(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let mut delayed = self.delayed.load(Ordering::Relaxed);
        while delayed.saturating_add(PAGE) <= limit {
            match self.delayed.compare_exchange_weak(delayed, delayed + PAGE, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => delayed = now,
            }
        }
        false
    }

    /// Reserves pages that are dirty whether there is space or not.
    pub(crate) fn reserve(&self, pages: u64) {
        self.delayed.fetch_add(pages as i64 * PAGE, Ordering::Relaxed);
    }

    /// Whether `pages` more are left, or nothing is delayed that they could be taken from. Approximate.
    pub(crate) fn has_beside_delayed(&self, pages: u64) -> bool {
        let delayed = self.delayed.load(Ordering::Relaxed);
        delayed == 0 || self.limit.load(Ordering::Relaxed).saturating_sub(delayed) >= pages as i64 * PAGE
    }

    /// The same, with what may have been counted twice (P3).
    pub(crate) fn may_have_beside_delayed(&self, pages: u64) -> bool {
        let state = self.state.lock();
        let delayed = self.delayed.load(Ordering::Relaxed);
        let left = self.limit.load(Ordering::Relaxed).saturating_sub(delayed).saturating_add(state.unsure);
        delayed == 0 || left >= pages as i64 * PAGE
    }

    /// Delayed pages are gone, or have their space from elsewhere.
    pub(crate) fn release(&self, pages: u64) {
        if pages != 0 {
            let before = self.delayed.fetch_sub(pages as i64 * PAGE, Ordering::Relaxed);
            debug_assert!(before >= pages as i64 * PAGE, "P1");
        }
    }

    /// What the backend said is old: space was given back, or is used up.
    pub(crate) fn outdate(&self) {
        self.outdated.store(true, Ordering::Release);
    }

    /// A unit takes delayed pages along.
    pub(crate) fn unit_sent(&self, pages: u64) {
        if pages != 0 {
            let mut state = self.state.lock();
            state.in_flight += pages as i64 * PAGE;
            state.sent += pages * PAGE_BYTES;
        }
    }

    /// The unit was answered: so many of the delayed pages it had are on the backend (P2).
    pub(crate) fn unit_ended(&self, pages: u64, allocated_pages: u64) {
        if pages == 0 {
            return;
        }
        let allocated = allocated_pages as i64 * PAGE;
        let mut state = self.state.lock();
        state.in_flight -= pages as i64 * PAGE;
        state.allocated += allocated as u64;
        let limit = self.limit.load(Ordering::Relaxed);
        if limit != i64::MAX {
            self.limit.store(limit - allocated, Ordering::Relaxed);
        }
        self.release(allocated_pages);
    }

    fn ask(&self, now: Tick) -> Question {
        // Before the question: what is given back from here on is another's reason to ask.
        self.outdated.store(false, Ordering::Release);
        let mut state = self.state.lock();
        state.asked_at = Some(now);
        state.asked_sent = state.sent;
        Question { quiet: state.in_flight == 0, sent: state.sent, allocated: state.allocated }
    }

    /// Takes the answer (P3), and returns how many bytes are left.
    fn answered(&self, question: &Question, statfs: &Statfs) -> i64 {
        let free_bytes = statfs.blocks_available.saturating_mul(statfs.fragment_bytes).min(i64::MAX as u64 / 2) as i64;
        let mut state = self.state.lock();
        let allocated_since = (state.allocated - question.allocated) as i64;
        let exact = question.quiet && state.sent == question.sent;
        state.unsure = if exact { 0 } else { allocated_since + state.in_flight };
        let limit = free_bytes - allocated_since;
        self.limit.store(limit, Ordering::Relaxed);
        limit - self.delayed.load(Ordering::Relaxed)
    }

    fn left(&self) -> (Left, bool) {
        let state = self.state.lock();
        let left = self.limit.load(Ordering::Relaxed).saturating_sub(self.delayed.load(Ordering::Relaxed));
        let left = match left {
            PAGE.. => Left::Enough,
            _ if left + state.unsure >= PAGE => Left::Unsure,
            _ => Left::Nothing,
        };
        (left, state.in_flight == 0)
    }

    /// Whether the flusher should ask; it does so if this says yes.
    fn wants_question(&self, now: Tick) -> bool {
        let mut state = self.state.lock();
        let used = state.sent != state.asked_sent || self.delayed.load(Ordering::Relaxed) != 0;
        let old = state.asked_at.is_none_or(|at| now.since(at) >= STALE_AFTER);
        let ask = !state.asking && (self.outdated.load(Ordering::Acquire) || (used && old) || state.asked_at.is_none());
        state.asking |= ask;
        ask
    }
}

impl SuperBlock {
    /// Space on the backend, less what dirty pages are going to take of it.
    ///
    /// # Errors
    /// The backend's.
    ///
    /// # Blocking
    /// For the backend.
    pub fn statfs(&self) -> Result<Statfs, FileError> {
        self.alive()?;
        let question = self.space.ask(self.now());
        let mut statfs = self.call(None, |done| Call::Statfs { done })?;
        let left_bytes = self.space.answered(&question, &statfs).max(0) as u64;
        let available = left_bytes / statfs.fragment_bytes.max(1);
        let taken = statfs.blocks_available.saturating_sub(available);
        statfs.blocks_available -= taken;
        statfs.blocks_free = statfs.blocks_free.saturating_sub(taken);
        Ok(statfs)
    }

    /// Asks the backend, and takes its answer.
    ///
    /// # Blocking
    /// For the backend.
    pub(crate) fn ask_for_space(&self) -> Result<(), BackendError> {
        let question = self.space.ask(self.now());
        let statfs = self.call(None, |done| Call::Statfs { done })?;
        let _ = self.space.answered(&question, &statfs);
        Ok(())
    }

    /// Asks the backend, for a write that found nothing left.
    ///
    /// # Blocking
    /// For the backend.
    pub(crate) fn confirm_space(&self) -> Result<Left, BackendError> {
        for _ in 0..QUESTIONS_MAX {
            self.ask_for_space()?;
            match self.space.left() {
                (Left::Unsure, true) => {} // its units have ended: another answer has them for certain
                (left, _) => return Ok(left),
            }
        }
        Ok(Left::Unsure)
    }

    /// Asks the backend if its last answer is old, without waiting for the next.
    pub(crate) fn refresh_space(self: &Arc<Self>, now: Tick) {
        if !self.space.wants_question(now) {
            return;
        }
        let question = self.space.ask(now);
        self.pin();
        let owner = Arc::clone(self);
        let done = Done::new(move |answer: Result<Statfs, BackendError>| {
            if let Ok(statfs) = answer {
                let _ = owner.space.answered(&question, &statfs);
            }
            owner.space.state.lock().asking = false;
            owner.unpin();
        });
        self.bdi.backend.submit(Call::Statfs { done });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES_FREE: u64 = 100;

    fn told(free_pages: u64) -> Statfs {
        Statfs {
            block_bytes: PAGE_BYTES,
            fragment_bytes: PAGE_BYTES,
            blocks: 1000,
            blocks_free: free_pages,
            blocks_available: free_pages,
            files: 0,
            files_free: 0,
            name_max: 255,
        }
    }

    /// Ten pages in flight, sixteen more dirty, of a hundred.
    fn busy() -> Space {
        let space = Space::new();
        let question = space.ask(Tick(0));
        assert_eq!(space.answered(&question, &told(PAGES_FREE)), PAGES_FREE as i64 * PAGE);
        (0..26).for_each(|_| assert!(space.try_reserve()));
        space.unit_sent(10);
        space
    }

    fn left_pages(space: &Space) -> i64 {
        (space.limit.load(Ordering::Relaxed) - space.delayed.load(Ordering::Relaxed)) / PAGE
    }

    #[test]
    fn the_end_of_a_unit_changes_nothing() {
        let space = busy();
        assert_eq!(left_pages(&space), 74);
        space.unit_ended(10, 7);
        assert_eq!(left_pages(&space), 74);
        space.release(3);
        assert_eq!(left_pages(&space), 77, "dropped, not written");
    }

    #[test]
    fn a_unit_that_ends_between_question_and_answer_is_counted_once_or_said_to_be_unsure() {
        // The backend took it before it counted, or after: the answer is another, and both are told apart later.
        for free_pages in [PAGES_FREE, PAGES_FREE - 10] {
            let space = busy();
            let question = space.ask(Tick(1));
            space.unit_ended(10, 10);
            space.answered(&question, &told(free_pages));
            let twice = (PAGES_FREE - free_pages) as i64;
            assert_eq!(left_pages(&space), 74 - twice, "never more than there is");
            assert_eq!(space.state.lock().unsure / PAGE, 10);
            let question = space.ask(Tick(2));
            space.answered(&question, &told(PAGES_FREE - 10));
            assert_eq!((left_pages(&space), space.state.lock().unsure), (74, 0), "exact when nothing was in flight");
        }
    }

    #[test]
    fn a_unit_that_ends_after_the_answer_is_counted_once_or_said_to_be_unsure() {
        for free_pages in [PAGES_FREE, PAGES_FREE - 10] {
            let space = busy();
            let question = space.ask(Tick(1));
            space.answered(&question, &told(free_pages));
            space.unit_ended(10, 10);
            assert_eq!(left_pages(&space), 74 - (PAGES_FREE - free_pages) as i64);
            assert_eq!(space.state.lock().unsure / PAGE, 10);
        }
    }

    #[test]
    fn what_may_be_counted_twice_refuses_nobody_for_good() {
        let space = busy();
        (0..69).for_each(|_| assert!(space.try_reserve()));
        let question = space.ask(Tick(1));
        space.answered(&question, &told(PAGES_FREE - 10)); // it has the ten that are in flight
        assert_eq!(space.left(), (Left::Unsure, false));
        space.unit_ended(10, 10);
        assert_eq!(space.left(), (Left::Unsure, true));
        let question = space.ask(Tick(2));
        space.answered(&question, &told(PAGES_FREE - 10));
        assert_eq!((space.left().0, left_pages(&space)), (Left::Enough, 5));
        while space.try_reserve() {}
        assert_eq!(space.left().0, Left::Nothing);
    }
}

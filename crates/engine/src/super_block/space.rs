//! Accounts for the backend space that dirty pages will need, so that a lack of space fails the write itself rather
//! than a later flush that no caller waits for.
//!
//! A page that becomes dirty where the backend's file has no space allocated is *delayed*: its bytes are reserved here
//! until a unit has written it. The space left is `limit - delayed`.
//!
//! The backend is queried by the flusher when its last answer is stale, by a write that finds no space left, and by
//! `statfs`; never by a completion.
//!
//! # Invariants
//! P1. `delayed` counts the pages with the `DELAYED` mark, from before they get it until after they lose it.
//!     `in_flight` counts those of them that are in units.
//! P2. `limit` is the free space that the backend reported, less what units have allocated since. The end of a unit
//!     lowers limit and delayed by the same number of bytes, so the space left does not change.
//! P3. If a unit was in flight between query and answer, it is unknown whether the answer includes it. It is counted as
//!     not included: it may be counted twice, but never not at all, and `unsure` is the amount in question. A write is
//!     refused for good only if it would not fit even without that amount.
//!
//! A change that takes space at once is counted like a unit of delayed pages ([`super::claims`]).
//!
//! Holes are not distinguished: a page before the end of what was ever allocated of the file counts as having its
//! space. A write into an old hole of a full volume is accepted and fails at its flush (P2 of SEMANTICS).
//!
//! # Memory ordering
//! Writers read only `limit` and `delayed`, and may see one updated without the other; then they query the backend. All
//! other fields change under `state`.
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
/// An answer is stale after this time if something was written meanwhile.
const STALE_AFTER: Duration = Duration::from_secs(1);
/// Queries by a write that finds no space left; more than one only if units ended meanwhile.
const QUERIES_MAX: u32 = 3;

/// See the [module documentation](self).
pub(crate) struct Space {
    delayed: AtomicI64,
    /// `i64::MAX` until the backend has answered.
    limit: AtomicI64,
    /// Space was freed, or the backend has reported that there is none.
    is_stale: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_flight: i64,
    /// Total bytes of delayed pages sent in units, and allocated by units.
    sent: u64,
    allocated: u64,
    /// P3.
    unsure: i64,
    /// When the backend was last queried, and `sent` at that time.
    queried_at: Option<Tick>,
    queried_sent: u64,
    /// The flusher's query is in flight.
    is_querying: bool,
}

/// State of the counters when the backend was queried.
struct Query {
    quiet: bool,
    sent: u64,
    allocated: u64,
}

/// Result of checking the space left.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Left {
    Enough,
    /// Perhaps enough; known once the units in flight have ended.
    Unsure,
    Nothing,
}

impl Space {
    pub(crate) fn new() -> Self {
        Self {
            delayed: AtomicI64::new(0),
            limit: AtomicI64::new(i64::MAX),
            is_stale: AtomicBool::new(false),
            state: Mutex::new(LEAVES, State::default()),
        }
    }

    /// Reserves a page if there is space for it.
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

    /// Reserves pages that are dirty already, whether or not there is space.
    pub(crate) fn reserve(&self, pages: u64) {
        self.delayed.fetch_add(pages as i64 * PAGE, Ordering::Relaxed);
    }

    /// Whether there is space for `pages` more, or no delayed page could lose its space to them. Approximate.
    pub(crate) fn has_beyond_delayed(&self, pages: u64) -> bool {
        let delayed = self.delayed.load(Ordering::Relaxed);
        delayed == 0 || self.limit.load(Ordering::Relaxed).saturating_sub(delayed) >= pages as i64 * PAGE
    }

    /// The same, including space that may have been counted twice (P3).
    pub(crate) fn may_have_beyond_delayed(&self, pages: u64) -> bool {
        let state = self.state.lock();
        let delayed = self.delayed.load(Ordering::Relaxed);
        let left = self.limit.load(Ordering::Relaxed).saturating_sub(delayed).saturating_add(state.unsure);
        delayed == 0 || left >= pages as i64 * PAGE
    }

    /// Releases reservations of delayed pages that were dropped or have their space from elsewhere.
    pub(crate) fn release(&self, pages: u64) {
        if pages != 0 {
            let before = self.delayed.fetch_sub(pages as i64 * PAGE, Ordering::Relaxed);
            debug_assert!(before >= pages as i64 * PAGE, "P1");
        }
    }

    /// Marks the backend's last answer as stale: space was freed, or is used up.
    pub(crate) fn mark_stale(&self) {
        self.is_stale.store(true, Ordering::Release);
    }

    /// Records that a unit with delayed pages was submitted.
    pub(crate) fn unit_sent(&self, pages: u64) {
        if pages != 0 {
            let mut state = self.state.lock();
            state.in_flight += pages as i64 * PAGE;
            state.sent += pages * PAGE_BYTES;
        }
    }

    /// Records that the unit was answered and how many of its delayed pages are now allocated (P2).
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

    fn begin_query(&self, now: Tick) -> Query {
        // Before the query: space freed from now on is a reason for another query.
        self.is_stale.store(false, Ordering::Release);
        let mut state = self.state.lock();
        state.queried_at = Some(now);
        state.queried_sent = state.sent;
        Query { quiet: state.in_flight == 0, sent: state.sent, allocated: state.allocated }
    }

    /// Applies the answer (P3) and returns the bytes left.
    fn finish_query(&self, query: &Query, statfs: &Statfs) -> i64 {
        let free_bytes = statfs.blocks_available.saturating_mul(statfs.fragment_bytes).min(i64::MAX as u64 / 2) as i64;
        let mut state = self.state.lock();
        let allocated_since = (state.allocated - query.allocated) as i64;
        let exact = query.quiet && state.sent == query.sent;
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

    /// Whether the flusher should query; if so, it must.
    fn wants_query(&self, now: Tick) -> bool {
        let mut state = self.state.lock();
        let used = state.sent != state.queried_sent || self.delayed.load(Ordering::Relaxed) != 0;
        let old = state.queried_at.is_none_or(|at| now.since(at) >= STALE_AFTER);
        let ask = !state.is_querying
            && (self.is_stale.load(Ordering::Acquire) || (used && old) || state.queried_at.is_none());
        state.is_querying |= ask;
        ask
    }
}

impl SuperBlock {
    /// Free space on the backend, less what dirty pages will take.
    ///
    /// # Errors
    /// The backend's errors.
    ///
    /// # Blocking
    /// Waits for the backend.
    pub fn statfs(&self) -> Result<Statfs, FileError> {
        self.alive()?;
        let query = self.space.begin_query(self.now());
        let mut statfs = self.call(None, |done| Call::Statfs { done })?;
        let left_bytes = self.space.finish_query(&query, &statfs).max(0) as u64;
        let available = left_bytes / statfs.fragment_bytes.max(1);
        let taken = statfs.blocks_available.saturating_sub(available);
        statfs.blocks_available -= taken;
        statfs.blocks_free = statfs.blocks_free.saturating_sub(taken);
        Ok(statfs)
    }

    /// Queries the backend and applies the answer.
    ///
    /// # Blocking
    /// Waits for the backend.
    pub(crate) fn query_space(&self) -> Result<(), BackendError> {
        let query = self.space.begin_query(self.now());
        let statfs = self.call(None, |done| Call::Statfs { done })?;
        let _ = self.space.finish_query(&query, &statfs);
        Ok(())
    }

    /// Queries the backend for a write that found no space left.
    ///
    /// # Blocking
    /// Waits for the backend.
    pub(crate) fn confirm_space(&self) -> Result<Left, BackendError> {
        for _ in 0..QUERIES_MAX {
            self.query_space()?;
            match self.space.left() {
                (Left::Unsure, true) => {} // its units have ended, so another answer includes them for certain
                (left, _) => return Ok(left),
            }
        }
        Ok(Left::Unsure)
    }

    /// Queries the backend if its last answer is stale, without waiting for the new one.
    pub(crate) fn refresh_space(self: &Arc<Self>, now: Tick) {
        if !self.space.wants_query(now) {
            return;
        }
        let query = self.space.begin_query(now);
        self.pin();
        let owner = Arc::clone(self);
        let done = Done::new(move |answer: Result<Statfs, BackendError>| {
            if let Ok(statfs) = answer {
                let _ = owner.space.finish_query(&query, &statfs);
            }
            owner.space.state.lock().is_querying = false;
            owner.unpin();
        });
        self.bdi.backend.submit(Call::Statfs { done });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES_FREE: u64 = 100;

    fn statfs_of(free_pages: u64) -> Statfs {
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

    /// A space of a hundred pages, of which ten are in flight and sixteen more are dirty.
    fn busy() -> Space {
        let space = Space::new();
        let query = space.begin_query(Tick(0));
        assert_eq!(space.finish_query(&query, &statfs_of(PAGES_FREE)), PAGES_FREE as i64 * PAGE);
        (0..26).for_each(|_| assert!(space.try_reserve()));
        space.unit_sent(10);
        space
    }

    fn left_pages(space: &Space) -> i64 {
        (space.limit.load(Ordering::Relaxed) - space.delayed.load(Ordering::Relaxed)) / PAGE
    }

    #[test]
    fn the_end_of_a_unit_does_not_change_the_space_left() {
        let space = busy();
        assert_eq!(left_pages(&space), 74);
        space.unit_ended(10, 7);
        assert_eq!(left_pages(&space), 74);
        space.release(3);
        assert_eq!(left_pages(&space), 77, "dropped, not written");
    }

    #[test]
    fn a_unit_that_ends_between_query_and_answer_is_counted_once_or_reported_unsure() {
        // The backend wrote it before it counted, or after. The answers differ, and the next query tells them apart.
        for free_pages in [PAGES_FREE, PAGES_FREE - 10] {
            let space = busy();
            let query = space.begin_query(Tick(1));
            space.unit_ended(10, 10);
            space.finish_query(&query, &statfs_of(free_pages));
            let twice = (PAGES_FREE - free_pages) as i64;
            assert_eq!(left_pages(&space), 74 - twice, "never more than there is");
            assert_eq!(space.state.lock().unsure / PAGE, 10);
            let query = space.begin_query(Tick(2));
            space.finish_query(&query, &statfs_of(PAGES_FREE - 10));
            assert_eq!((left_pages(&space), space.state.lock().unsure), (74, 0), "exact when nothing was in flight");
        }
    }

    #[test]
    fn a_unit_that_ends_after_the_answer_is_counted_once_or_reported_unsure() {
        for free_pages in [PAGES_FREE, PAGES_FREE - 10] {
            let space = busy();
            let query = space.begin_query(Tick(1));
            space.finish_query(&query, &statfs_of(free_pages));
            space.unit_ended(10, 10);
            assert_eq!(left_pages(&space), 74 - (PAGES_FREE - free_pages) as i64);
            assert_eq!(space.state.lock().unsure / PAGE, 10);
        }
    }

    #[test]
    fn space_that_may_be_counted_twice_refuses_no_write_for_good() {
        let space = busy();
        (0..69).for_each(|_| assert!(space.try_reserve()));
        let query = space.begin_query(Tick(1));
        space.finish_query(&query, &statfs_of(PAGES_FREE - 10)); // it has the ten that are in flight
        assert_eq!(space.left(), (Left::Unsure, false));
        space.unit_ended(10, 10);
        assert_eq!(space.left(), (Left::Unsure, true));
        let query = space.begin_query(Tick(2));
        space.finish_query(&query, &statfs_of(PAGES_FREE - 10));
        assert_eq!((space.left().0, left_pages(&space)), (Left::Enough, 5));
        while space.try_reserve() {}
        assert_eq!(space.left().0, Left::Nothing);
    }
}

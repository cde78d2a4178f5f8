//! Pauses between the attempts of a flush that must not give up, such as an unmount's, with or without a deadline.
//!
//! A sync always tries at once, even after failures (P2 of SEMANTICS). A flush is a loop of syncs, so it pauses after a
//! failed one as the flusher does: for `retry_min`, doubled by each consecutive failure up to `retry_max`.
//!
//! # Invariants
//! B1. The pause belongs to the volume, not to the call: a flush made in slices pauses like an unsliced one.
//! B2. A pause ends early when nothing is left to flush, because the flusher makes attempts of its own meanwhile. A file
//!     that another program removed is left until a flush has copied it.

use std::time::Duration;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;

use crate::lock_order::LEAVES;
use crate::super_block::SuperBlock;
use crate::tunables::Tunables;
use crate::units::Tick;
use crate::wait::sleep;

/// Interval at which a pause checks whether it is over.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// When the next attempt is due.
pub(crate) struct Backoff(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    in_a_row: u32,
    due: Option<Tick>,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LEAVES, Failures::default()))
    }

    /// Records an attempt that ended at `now`.
    pub(crate) fn tried(&self, failed: bool, now: Tick, tunables: &Tunables) {
        let mut failures = self.0.lock();
        if !failed {
            *failures = Failures::default();
            return;
        }
        failures.due = Some(now + tunables.retry_after(failures.in_a_row));
        failures.in_a_row += 1;
    }

    fn is_due(&self, now: Tick) -> bool {
        self.0.lock().due.is_none_or(|due| due <= now)
    }
}

impl SuperBlock {
    /// Waits until the next attempt is due (B2). False if `deadline` comes first.
    ///
    /// # Blocking
    /// Until then, or until `deadline`.
    pub(crate) fn wait_for_attempt(self: &Arc<Self>, deadline: Option<Tick>) -> bool {
        let engine = self.engine();
        loop {
            let now = engine.clock.now();
            let by_hand = engine.tunables.flusher_threads == 0;
            if by_hand || self.flush_backoff.is_due(now) || self.has_nothing_to_flush() {
                return true;
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                return false;
            }
            sleep(deadline.map_or(POLL_INTERVAL, |deadline| deadline.since(now).min(POLL_INTERVAL)));
        }
    }
}

//! Requests to a flusher, and how to wait for them.
//!
//! # Lifetime
//! A work item shares its [`WbCompletion`] by counted reference, so a waiter that gives up at its deadline leaves the
//! completion to the flusher.

use std::fmt;
use std::time::Duration;

use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::Arc;

use crate::clock::Clock;
use crate::lock_order::LEAVES;
use crate::units::Tick;

/// Why write-back was started. The names are those of the kernel's traces.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[non_exhaustive]
pub enum WbReason {
    /// Too many dirty pages.
    Background,
    /// sync, umount and similar requests.
    Sync,
    /// Data has been dirty for long enough.
    Periodic,
    /// An earlier attempt failed and its back-off has expired. Ours: the kernel does not retry.
    Retry,
    /// Another tenant owns some of the dirty pages and is short of frames.
    ForeignFlush,
    /// A DONTCACHE write has ended.
    DontCache,
}

impl fmt::Display for WbReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Background => "background",
            Self::Sync => "sync",
            Self::Periodic => "periodic",
            Self::Retry => "retry",
            Self::ForeignFlush => "foreign_flush",
            Self::DontCache => "dontcache",
        })
    }
}

/// A request to a flusher: submit everything dirtied at or before `dirtied_before`.
pub(crate) struct WbWork {
    pub(crate) reason: WbReason,
    /// Fixes the set of inodes when the work is queued, so that a process that keeps dirtying files cannot extend it.
    pub(crate) dirtied_before: Tick,
    /// Dropped when the last inode has been submitted or the work is discarded.
    #[expect(dead_code, reason = "held to be dropped")]
    pub(crate) done: Option<WorkToken>,
}

/// A count on a [`WbCompletion`]. Dropping it decrements the count.
pub(crate) struct WorkToken(Arc<WbCompletion>);

impl Drop for WorkToken {
    fn drop(&mut self) {
        // This reference keeps the completion alive, not the waiter's stack.
        let mut state = self.0.state.lock();
        state.pending -= 1;
        if state.pending == 0 {
            self.0.finished.notify_all();
        }
    }
}

struct State {
    pending: u32,
    waiting_since: Tick,
}

/// Counts pending work items. Kernel: `wb_completion`.
pub(crate) struct WbCompletion {
    state: Mutex<State>,
    finished: Condvar,
}

impl WbCompletion {
    pub(crate) fn new(now: Tick) -> Arc<Self> {
        let state = State { pending: 0, waiting_since: now };
        Arc::new(Self { state: Mutex::new(LEAVES, state), finished: Condvar::new() })
    }

    /// Adds a count. Call it *before* queuing the work.
    pub(crate) fn token(self: &Arc<Self>) -> WorkToken {
        self.state.lock().pending += 1;
        WorkToken(Arc::clone(self))
    }

    /// Waits until every token is dropped; false if `deadline` came first. When `progress_at` has not moved for `hung`,
    /// it calls `report` with the time waited and the time without progress, and keeps waiting.
    ///
    /// # Blocking
    /// Yes.
    pub(crate) fn wait(
        &self,
        clock: &dyn Clock,
        deadline: Option<Tick>,
        hung: Duration,
        progress_at: impl Fn() -> Tick,
        report: impl Fn(Duration, Duration),
    ) -> bool {
        let mut state = self.state.lock();
        let mut reported = state.waiting_since;
        while state.pending != 0 {
            let now = clock.now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return false;
            }
            let stuck = now.since(progress_at().max(reported));
            if stuck >= hung {
                report(now.since(state.waiting_since), stuck);
                reported = now;
            }
            let left = deadline.map_or(hung, |deadline| deadline.since(now).min(hung));
            let _ = self.finished.wait_timeout(&mut state, left);
        }
        true
    }
}

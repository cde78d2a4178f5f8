//! What a flusher is asked to do, and how to wait until it has.
//!
//! # Lifetime
//! A work item shares its [`WbCompletion`] by counted reference: a waiter that gives up at its deadline
//! leaves it to the flusher.

use std::fmt;
use std::time::Duration;

use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::Arc;

use crate::clock::Clock;
use crate::lock_order::LEAVES;
use crate::units::Tick;

/// Why write-back was started. Names as in the kernel's traces.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[non_exhaustive]
pub enum WbReason {
    /// Too many dirty pages.
    Background,
    /// sync, umount and the like.
    Sync,
    /// The dirty data is old enough.
    Periodic,
    /// An earlier attempt failed, and the back-off is over. Ours: the kernel does not try again.
    Retry,
    /// Another tenant's pages are among them, and it is short of room.
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

/// One request to a flusher: submit all that became dirty up to `dirtied_before`.
pub(crate) struct WbWork {
    pub(crate) reason: WbReason,
    /// The set of inodes is fixed when the work is queued, so that a process that keeps dirtying files
    /// cannot extend it.
    pub(crate) dirtied_before: Tick,
    /// Told when the last inode has been submitted, or the work was dropped.
    #[expect(dead_code, reason = "held to be dropped")]
    pub(crate) done: Option<WorkToken>,
}

/// One count on a [`WbCompletion`]; dropping it counts down.
pub(crate) struct WorkToken(Arc<WbCompletion>);

impl Drop for WorkToken {
    fn drop(&mut self) {
        // The completion is kept alive by this reference, not by the waiter's stack.
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

/// Counts work items down. Kernel: `wb_completion`.
pub(crate) struct WbCompletion {
    state: Mutex<State>,
    finished: Condvar,
}

impl WbCompletion {
    pub(crate) fn new(now: Tick) -> Arc<Self> {
        let state = State { pending: 0, waiting_since: now };
        Arc::new(Self { state: Mutex::new(LEAVES, state), finished: Condvar::new() })
    }

    /// A count, taken *before* the work is queued.
    pub(crate) fn token(self: &Arc<Self>) -> WorkToken {
        self.state.lock().pending += 1;
        WorkToken(Arc::clone(self))
    }

    /// Waits until every token is gone; false when `deadline` came first. A wait in which `progress_at` has
    /// not moved for `hung` calls `report` with the time waited and the time without progress, and goes on.
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

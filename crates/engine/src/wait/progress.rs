//! A count of the events that a refused writer may wait for.
//!
//! Such an event frees frames, makes pages evictable, lowers what a tenant has dirty, thaws a volume or ends an
//! operation that an unmount waits for. One count serves the whole engine: a woken thread tries again, and sleeps again
//! if the event was for another.
//!
//! # Memory ordering
//! None beyond the lock. A thread reads the count before its attempt, and waits until the count has moved on: an event
//! between the two is not missed.

use std::time::Duration;

use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::{Arc, thread};

use crate::clock::Clock;
use crate::lock_order::LEAVES;
use crate::units::Tick;

/// See the [module documentation](self).
pub(crate) struct Progress {
    count: Mutex<u64>,
    changed: Condvar,
    clock: Arc<dyn Clock>,
}

impl Progress {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { count: Mutex::new(LEAVES, 0), changed: Condvar::new(), clock }
    }

    /// The count. Read it before the attempt whose failure is to be waited for.
    pub(crate) fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Counts an event and wakes all that wait.
    pub(crate) fn note(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits for the next event, or for `time`.
    pub(crate) fn pause(&self, time: Duration) {
        let mut count = self.count.lock();
        let _ = self.changed.wait_timeout(&mut count, time);
        drop(count);
        thread::yield_now();
    }

    /// Waits until the count has moved on from `seen`; false if `deadline` came first.
    pub(crate) fn wait(&self, seen: u64, deadline: Option<Tick>) -> bool {
        let mut count = self.count.lock();
        while *count == seen {
            match deadline {
                None => self.changed.wait(&mut count),
                Some(deadline) => {
                    let left = deadline.since(self.clock.now());
                    if left == Duration::ZERO {
                        return false;
                    }
                    let _ = self.changed.wait_timeout(&mut count, left);
                }
            }
        }
        true
    }
}

#[cfg(all(test, not(slackwater_shuttle)))]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::units::Timestamp;

    #[test]
    fn an_event_between_the_count_and_the_wait_is_not_missed() {
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        let progress = Progress::new(clock.clone());
        let seen = progress.count();
        assert!(!progress.wait(seen, Some(clock.now())), "nothing has happened");
        progress.note();
        assert!(progress.wait(seen, None));
    }
}

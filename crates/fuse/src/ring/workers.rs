//! Threads for calls that may block, since the threads of a ring must not.
//!
//! A thread is started when a call finds none idle, and exits after some idle seconds. Beyond the limit calls wait in a
//! queue.
//!
//! # Invariants
//! W1. While a call waits, a thread is idle and was notified, or as many as allowed are busy and look before they
//!     sleep. If the first thread cannot be started, the call runs on the caller's thread.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::{Arc, thread};

use crate::TRANSPORT;

/// How long a thread waits for a call before it exits.
const IDLE: Duration = Duration::from_secs(5);

type Call = Box<dyn FnOnce() + Send>;

/// The threads of a session over io_uring for calls that may block; see [`Context::workers`](crate::Context::workers).
pub struct Workers {
    /// Limit of threads.
    most: usize,
    state: Mutex<State>,
    called: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Call>,
    threads: usize,
    /// Threads without a call, also those that were notified.
    idle: usize,
}

impl Workers {
    pub(super) fn new(most: usize) -> Self {
        Self { most: most.max(1), state: Mutex::new(TRANSPORT, State::default()), called: Condvar::new() }
    }

    /// Whether a call would begin at once.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.waiting.len() < state.idle + self.most - state.threads
    }

    /// Runs `call` on the next free thread.
    pub fn run(self: &Arc<Self>, call: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.waiting.push_back(Box::new(call));
        let must_start = state.waiting.len() > state.idle && state.threads < self.most;
        if must_start {
            (state.threads, state.idle) = (state.threads + 1, state.idle + 1);
        }
        drop(state);
        if !must_start {
            self.called.notify_one();
            return;
        }
        let workers = Arc::clone(self);
        if let Err(error) = thread::Builder::new().name("sw-ring-call".to_owned()).spawn(move || workers.work()) {
            tracing::warn!(%error, "cannot start a thread for a call");
            self.not_started();
        }
    }

    /// W1.
    fn not_started(&self) {
        let mut state = self.state.lock();
        (state.threads, state.idle) = (state.threads - 1, state.idle - 1);
        while state.threads == 0
            && let Some(call) = state.waiting.pop_front()
        {
            drop(state);
            call();
            state = self.state.lock();
        }
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(call) = state.waiting.pop_front() {
                state.idle -= 1;
                drop(state);
                if catch_unwind(AssertUnwindSafe(call)).is_err() {
                    tracing::error!("a handler panicked; its request was answered with EIO");
                }
                state = self.state.lock();
                state.idle += 1;
            } else if self.called.wait_timeout(&mut state, IDLE) && state.waiting.is_empty() {
                (state.threads, state.idle) = (state.threads - 1, state.idle - 1);
                return;
            }
        }
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("most", &self.most).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use slackwater_sync::Completion;
    use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn calls_beyond_the_limit_wait_for_a_thread() {
        let workers = Arc::new(Workers::new(2));
        let (gate, done) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
        let count = Arc::new(AtomicUsize::new(0));
        for number in 1..=5 {
            assert_eq!(workers.has_room(), number <= 2, "call {number}");
            let (gate, done, count) = (Arc::clone(&gate), Arc::clone(&done), Arc::clone(&count));
            workers.run(move || {
                gate.wait();
                if count.fetch_add(1, Ordering::Relaxed) == 4 {
                    done.complete_all();
                }
            });
        }
        gate.complete_all();
        done.wait();
        assert!(workers.state.lock().threads <= 2);
    }

    #[test]
    fn a_panic_does_not_take_a_thread() {
        let workers = Arc::new(Workers::new(1));
        let done = Arc::new(Completion::new());
        workers.run(|| panic!("as a test"));
        let after = Arc::clone(&done);
        workers.run(move || after.complete_all());
        done.wait();
    }
}

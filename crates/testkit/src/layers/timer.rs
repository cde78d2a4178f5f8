//! Jobs at a later time, on one thread per layer, which ends when idle.

use std::collections::BTreeMap;
use std::time::Duration;

use slackwater::{Clock, Tick};
use slackwater_backends::SystemClock;
use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::{Arc, thread};

use crate::LAYER;

/// How long the thread waits for the next job before it ends.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs when they are due. Jobs of one instant run in the order they were added. Jobs must not block. Dropping the
/// timer drops the jobs that are not due yet.
pub(super) struct Timer {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    idle: Duration,
}

#[derive(Default)]
struct State {
    jobs: BTreeMap<(Tick, u64), Job>,
    last_job: u64,
    has_thread: bool,
    is_closed: bool,
}

impl Timer {
    pub(super) fn new() -> Self {
        Self::with_idle(IDLE)
    }

    fn with_idle(idle: Duration) -> Self {
        let shared = Shared { state: Mutex::new(LAYER, State::default()), changed: Condvar::new(), idle };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `job` at `due`, or soon if that has passed. Drops it if no thread can be started.
    pub(super) fn at(&self, due: Tick, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.last_job += 1;
        let key = (due, state.last_job);
        state.jobs.insert(key, Box::new(job));
        let has_thread = std::mem::replace(&mut state.has_thread, true);
        drop(state);
        self.shared.changed.notify_one();
        if !has_thread {
            let shared = self.shared.clone();
            if thread::Builder::new().name("slack-timer".to_owned()).spawn(move || shared.run()).is_err() {
                let mut state = self.shared.state.lock();
                state.has_thread = false;
                let abandoned = std::mem::take(&mut state.jobs);
                drop(state);
                drop(abandoned);
            }
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.is_closed = true;
        let abandoned = std::mem::take(&mut state.jobs);
        drop(state);
        self.shared.changed.notify_one();
        drop(abandoned);
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.is_closed {
            let Some(next) = state.jobs.first_entry() else {
                let is_late = self.changed.wait_timeout(&mut state, self.idle);
                if is_late && state.jobs.is_empty() {
                    state.has_thread = false; // under the lock of the decision, or `at` would count on this thread
                    return;
                }
                continue;
            };
            let wait = next.key().0.since(SystemClock.now());
            if wait.is_zero() {
                let job = next.remove();
                drop(state);
                job();
                state = self.state.lock();
            } else {
                self.changed.wait_timeout(&mut state, wait);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_run_in_the_order_they_are_due() {
        let (send, ran) = mpsc::channel();
        let timer = Timer::new();
        // The thread is busy until all are there.
        let (let_go, gate) = mpsc::channel::<()>();
        timer.at(SystemClock.now(), move || gate.recv().unwrap_or(()));
        let start = SystemClock.now();
        for ms in [6_u64, 2, 4, 2] {
            let send = send.clone();
            timer.at(start + Duration::from_millis(ms), move || send.send(ms).expect("the test waits"));
        }
        drop(let_go);
        let order: Vec<u64> = ran.iter().take(4).collect();
        assert_eq!(order, [2, 2, 4, 6]);
        assert!(SystemClock.now().since(start) >= Duration::from_millis(6));
    }

    #[test]
    fn the_thread_ends_when_idle_and_starts_again() {
        let timer = Timer::with_idle(Duration::from_millis(1));
        for _ in 0..20 {
            let (send, ran) = mpsc::channel();
            timer.at(SystemClock.now(), move || send.send(()).expect("the test waits"));
            ran.recv().expect("it runs");
            while timer.shared.state.lock().has_thread {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_dropped_timer_drops_its_jobs() {
        let (send, ran) = mpsc::channel::<()>();
        let timer = Timer::new();
        timer.at(SystemClock.now() + Duration::from_secs(3600), move || send.send(()).expect("the test waits"));
        drop(timer);
        ran.recv().expect_err("dropped unrun");
    }
}

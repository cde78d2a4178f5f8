//! Threads of one volume that may block forever.
//!
//! Each volume has its own, so that a hung server occupies only the threads of its own volume. There may be thousands
//! of volumes, most of them idle: a thread is started when a job finds none free, and ends after ten idle seconds.
//!
//! Jobs have two lanes. [`Lane::Bulk`] jobs move bytes or wait for a disk. They never take the last `reserved` threads,
//! so a [`Lane::Quick`] job does not wait behind all slow writes of a volume. Within a lane, jobs start in order; quick
//! ones start first.
//!
//! # Invariants
//! W1. At most `threads_max` threads, of which at most `threads_max - reserved` run bulk jobs.
//! W2. While a job may start, some thread will run it: one was woken or started, or is running and looks again when
//!     done.
//! W3. When [`Workers::wait_idle`] returns true, nothing is left of what jobs had, except in the job that called it.
//!
//! The queues have no limit of their own: the engine limits its calls in flight.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::thread::{self, ThreadId};

use crate::BACKEND;

/// How long a thread waits for its next job before it ends.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// The kind of job: how long it may occupy its thread.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Lane {
    /// Names and attributes: short, unless the file system hangs.
    Quick,
    /// Data and syncs.
    Bulk,
}

/// A bounded set of threads that start and end with the work. Dropping it drops queued jobs, lets running ones finish,
/// and waits for neither.
pub struct Workers {
    shared: Arc<Shared>,
}

impl Workers {
    /// Starts no threads yet. There will be up to `threads_max`, called `name`, of which `reserved` take no bulk jobs.
    ///
    /// # Panics
    /// When `reserved` leaves no thread for bulk jobs.
    pub fn new(name: &str, threads_max: usize, reserved: usize) -> Self {
        Self::with_idle(name, threads_max, reserved, IDLE)
    }

    fn with_idle(name: &str, threads_max: usize, reserved: usize, idle: Duration) -> Self {
        assert!(reserved < threads_max, "bulk jobs need a thread");
        let limits = Limits { threads_max, bulk_max: threads_max - reserved, idle };
        let state = Mutex::new(BACKEND, State { running: Vec::with_capacity(threads_max), ..State::default() });
        let (work, ended) = (Condvar::new(), Condvar::new());
        Self { shared: Arc::new(Shared { name: name.to_owned(), limits, state, work, ended }) }
    }

    /// Queues `job` for one of the threads. If there is no thread and none can be started, the job is dropped.
    ///
    /// # Blocking
    /// Never.
    pub fn run(&self, lane: Lane, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.queue(lane).push_back(Box::new(job));
        let threads_wanted = state.runnable(&self.shared.limits);
        if threads_wanted == 0 {
            return; // W2: the end of a bulk job makes this one runnable
        }
        if threads_wanted <= state.idle {
            drop(state);
            self.shared.work.notify_one();
        } else if state.threads < self.shared.limits.threads_max {
            state.threads += 1;
            drop(state);
            self.start_thread();
        }
    }

    /// Waits until all jobs have ended and have dropped what they had, except the job that calls this. Returns whether they
    /// have: it gives up when none has ended for `within`.
    ///
    /// # Blocking
    /// As described.
    pub fn wait_idle(&self, within: Duration) -> bool {
        let (own, mut is_late) = (thread::current().id(), false);
        let mut state = self.shared.state.lock();
        state.waiting += 1;
        loop {
            let is_idle = state.quick.is_empty() && state.bulk.is_empty() && state.running.iter().all(|it| *it == own);
            if is_idle || is_late {
                state.waiting -= 1;
                return is_idle;
            }
            is_late = self.shared.ended.wait_timeout(&mut state, within);
        }
    }

    /// The current number of threads, including idle ones.
    pub fn threads(&self) -> usize {
        self.shared.state.lock().threads
    }

    fn start_thread(&self) {
        let shared = self.shared.clone();
        let work = move || {
            let mut ended = None;
            while let Some((lane, job)) = shared.next_job(ended) {
                // The hook has reported the panic, and the dropped call has answered it.
                catch_unwind(AssertUnwindSafe(job)).ok();
                ended = Some(lane);
            }
        };
        if thread::Builder::new().name(self.shared.name.clone()).spawn(work).is_err() {
            let mut state = self.shared.state.lock();
            state.threads -= 1;
            // Existing threads will run the jobs; without a thread, none would run.
            let abandoned = (state.threads == 0).then(|| state.take_all());
            drop(state);
            drop(abandoned);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.is_closed = true;
        let abandoned = state.take_all();
        drop(state);
        self.shared.work.notify_all();
        drop(abandoned);
    }
}

struct Shared {
    name: String,
    limits: Limits,
    state: Mutex<State>,
    work: Condvar,
    /// A job has ended while a thread waits for that.
    ended: Condvar,
}

struct Limits {
    threads_max: usize,
    bulk_max: usize,
    idle: Duration,
}

#[derive(Default)]
struct State {
    quick: VecDeque<Job>,
    bulk: VecDeque<Job>,
    bulk_running: usize,
    /// The threads that run a job.
    running: Vec<ThreadId>,
    /// The threads that wait until all jobs have ended.
    waiting: usize,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl State {
    fn queue(&mut self, lane: Lane) -> &mut VecDeque<Job> {
        match lane {
            Lane::Quick => &mut self.quick,
            Lane::Bulk => &mut self.bulk,
        }
    }

    /// Queued jobs that could start if there were threads for them.
    fn runnable(&self, limits: &Limits) -> usize {
        self.quick.len() + self.bulk.len().min(limits.bulk_max - self.bulk_running)
    }

    fn take(&mut self, limits: &Limits) -> Option<(Lane, Job)> {
        if let Some(job) = self.quick.pop_front() {
            return Some((Lane::Quick, job));
        }
        if self.bulk_running == limits.bulk_max {
            return None; // W1
        }
        let job = self.bulk.pop_front()?;
        self.bulk_running += 1;
        Some((Lane::Bulk, job))
    }

    fn take_all(&mut self) -> [VecDeque<Job>; 2] {
        [std::mem::take(&mut self.quick), std::mem::take(&mut self.bulk)]
    }
}

impl Shared {
    /// Waits for a job, after one that has `ended`. `None` when the thread should end.
    fn next_job(&self, ended: Option<Lane>) -> Option<(Lane, Job)> {
        let own = thread::current().id();
        let mut state = self.state.lock();
        if let Some(lane) = ended {
            state.bulk_running -= usize::from(lane == Lane::Bulk);
            state.running.retain(|thread| *thread != own);
            if state.waiting > 0 {
                self.ended.notify_all();
            }
        }
        loop {
            if let Some(next) = state.take(&self.limits) {
                state.running.push(own);
                return Some(next);
            }
            if state.is_closed {
                break;
            }
            state.idle += 1;
            let is_late = self.work.wait_timeout(&mut state, self.limits.idle);
            state.idle -= 1;
            // A job may have been queued between the end of the wait and the lock.
            if is_late && state.runnable(&self.limits) == 0 {
                break;
            }
        }
        state.threads -= 1; // under the lock of the decision, or `run` would count on this thread (W2)
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A job that reports its start and then waits until it is released.
    fn blocking_job() -> (impl FnOnce() + Send + 'static, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let (started, has_started) = mpsc::channel();
        let (let_go, gate) = mpsc::channel::<()>();
        let job = move || {
            started.send(()).expect("the test waits");
            gate.recv().ok();
        };
        (job, has_started, let_go)
    }

    #[test]
    fn quick_jobs_start_while_bulk_jobs_hold_all_their_threads() {
        let workers = Workers::new("test", 3, 1);
        let mut gates = Vec::new();
        for _ in 0..2 {
            let (job, has_started, let_go) = blocking_job();
            workers.run(Lane::Bulk, job);
            has_started.recv().expect("a thread is free");
            gates.push(let_go);
        }
        let (bulk, bulk_has_started, _gate) = blocking_job();
        workers.run(Lane::Bulk, bulk);
        let (quick, quick_has_started, let_go) = blocking_job();
        workers.run(Lane::Quick, quick);
        quick_has_started.recv().expect("W1 leaves it a thread");
        assert!(bulk_has_started.try_recv().is_err());
        assert_eq!(workers.threads(), 3);
        gates.pop();
        bulk_has_started.recv().expect("W2");
        drop(let_go);
    }

    #[test]
    fn threads_end_when_idle_and_start_again() {
        let workers = Workers::with_idle("test", 2, 1, Duration::from_millis(1));
        for _ in 0..20 {
            let (send, done) = mpsc::channel();
            workers.run(Lane::Bulk, move || send.send(()).expect("the test waits"));
            done.recv().expect("the job ran");
            while workers.threads() > 0 {
                thread::yield_now();
            }
        }
    }

    /// W3.
    #[test]
    fn it_is_idle_when_jobs_have_dropped_everything() {
        /// Dropped slowly.
        struct Slow(mpsc::Sender<()>);
        impl Drop for Slow {
            fn drop(&mut self) {
                slackwater_sync::Completion::new().wait_timeout(Duration::from_millis(20));
                self.0.send(()).expect("the test waits");
            }
        }
        let workers = Workers::new("test", 3, 1);
        let (send, dropped) = mpsc::channel();
        let (answer, answered) = mpsc::channel();
        for lane in [Lane::Quick, Lane::Bulk] {
            let (slow, answer) = (Slow(send.clone()), answer.clone());
            workers.run(lane, move || {
                let _slow = slow;
                answer.send(()).expect("the test waits");
            });
            answered.recv().expect("a thread is free");
        }
        assert!(workers.wait_idle(Duration::from_secs(60)));
        assert_eq!(dropped.try_iter().count(), 2);
        let (job, has_started, _gate) = blocking_job();
        workers.run(Lane::Bulk, job);
        has_started.recv().expect("a thread is free");
        assert!(!workers.wait_idle(Duration::from_millis(1)), "the job may take forever");
    }

    #[test]
    fn a_drop_drops_queued_jobs_without_waiting_for_running_ones() {
        let workers = Workers::new("test", 2, 1);
        let (job, has_started, let_go) = blocking_job();
        workers.run(Lane::Bulk, job);
        has_started.recv().expect("a thread is free");
        let (queued, was_started, _gate) = blocking_job();
        workers.run(Lane::Bulk, queued);
        drop(workers);
        was_started.recv().expect_err("dropped unrun");
        drop(let_go);
    }

    #[test]
    fn workers_may_be_dropped_by_one_of_their_own_jobs() {
        let workers = Arc::new(Workers::new("test", 2, 1));
        let (send, dropped) = mpsc::channel();
        let (let_go, gate) = mpsc::channel::<()>();
        let own = workers.clone();
        workers.run(Lane::Bulk, move || {
            gate.recv().ok();
            drop(own);
            send.send(()).expect("the test waits");
        });
        drop(workers);
        drop(let_go);
        dropped.recv().expect("no deadlock");
    }

    #[test]
    fn a_panicking_job_frees_its_slot() {
        let workers = Workers::new("test", 2, 1);
        let (send, done) = mpsc::channel();
        for _ in 0..4 {
            workers.run(Lane::Bulk, || std::panic::resume_unwind(Box::new("on purpose")));
        }
        workers.run(Lane::Bulk, move || send.send(()).expect("the test waits"));
        done.recv().expect("W1, W2");
    }
}

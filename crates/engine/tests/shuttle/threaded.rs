//! A backend that answers from its own thread, for tests under shuttle.

use std::collections::VecDeque;

use slackwater::backend::{Backend, Call, Limits, MemBackend};
use slackwater::{ErrorKind, PAGE_BYTES};
use slackwater_sync::lock::{Condvar, Mutex, Rank};
use slackwater_sync::shim::{Arc, thread};

const QUEUE: Rank = Rank::new(90, "test queue");

/// Small, so that few pages need several units.
pub(crate) fn limits() -> Limits {
    Limits {
        unit_bytes: 2 * PAGE_BYTES as u32,
        units_in_flight: 2,
        max_file_bytes: 1 << 30,
        device: Some(1),
        readahead_bytes: 0,
        flushes: false,
        reopens: true,
    }
}

/// Answers calls from its own thread, in order. If it refuses units, it answers only those from the thread and others
/// at once.
pub(crate) struct ThreadedBackend {
    queue: Arc<(Mutex<(VecDeque<Call>, bool)>, Condvar)>,
    limits: Limits,
    at_once: Option<Arc<MemBackend>>,
}

/// How many units the backend refuses before it accepts one.
#[derive(Copy, Clone)]
pub(crate) struct Refused(pub(crate) u32);

impl ThreadedBackend {
    pub(crate) fn new(inner: Arc<MemBackend>, Refused(mut refused): Refused) -> (Self, thread::JoinHandle<()>) {
        let queue = Arc::new((Mutex::new(QUEUE, (VecDeque::new(), false)), Condvar::new()));
        let limits = inner.limits();
        let calls = Arc::clone(&queue);
        let at_once = (refused != 0).then(|| Arc::clone(&inner));
        let worker = thread::spawn(move || {
            loop {
                let call = {
                    let mut state = calls.0.lock();
                    while state.0.is_empty() && !state.1 {
                        calls.1.wait(&mut state);
                    }
                    let Some(call) = state.0.pop_front() else { return };
                    call
                };
                match call {
                    Call::Write(unit) if refused != 0 => {
                        refused -= 1;
                        unit.complete(Err(ErrorKind::Io.into()));
                    }
                    call => inner.submit(call),
                }
            }
        });
        (Self { queue, limits, at_once }, worker)
    }
}

impl Backend for ThreadedBackend {
    fn submit(&self, call: Call) {
        match (&self.at_once, call) {
            (Some(inner), call) if !matches!(call, Call::Write(_)) => inner.submit(call),
            (_, call) => {
                self.queue.0.lock().0.push_back(call);
                self.queue.1.notify_one();
            }
        }
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }
}

impl Drop for ThreadedBackend {
    fn drop(&mut self) {
        self.queue.0.lock().1 = true;
        self.queue.1.notify_one();
    }
}

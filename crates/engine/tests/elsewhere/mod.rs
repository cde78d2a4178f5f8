//! A backend that answers from a thread of its own, for tests under shuttle.

use std::collections::VecDeque;

use slackwater::ErrorKind;
use slackwater::backend::{Backend, Call, Limits, MemBackend};
use slackwater_sync::lock::{Condvar, Mutex, Rank};
use slackwater_sync::shim::{Arc, thread};

const QUEUE: Rank = Rank::new(90, "test queue");

/// Answers calls from a thread of its own, in their order. Or refused ones from there, and the others at once.
pub(crate) struct Elsewhere {
    queue: Arc<(Mutex<(VecDeque<Call>, bool)>, Condvar)>,
    limits: Limits,
    at_once: Option<Arc<MemBackend>>,
}

/// How many units the backend refuses before it takes one.
#[derive(Copy, Clone)]
pub(crate) struct Refused(pub(crate) u32);

impl Elsewhere {
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

impl Backend for Elsewhere {
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

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.queue.0.lock().1 = true;
        self.queue.1.notify_one();
    }
}

//! The completion of a call.

use std::fmt;
use std::time::Duration;

use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::Arc;

use crate::backend::{Backend, Call};
use crate::clock::Clock;
use crate::error::{BackendError, ErrorKind};
use crate::lock_order::LEAVES;
use crate::units::Tick;

/// The completion of a call. Dropping it completes the call with [`ErrorKind::Abandoned`].
pub struct Done<T>(Option<Then<T>>);

type Then<T> = Box<dyn FnOnce(Result<T, BackendError>) + Send>;

impl<T> Done<T> {
    /// Runs `then` with the answer, on the thread that completes the call.
    pub fn new(then: impl FnOnce(Result<T, BackendError>) + Send + 'static) -> Self {
        Self(Some(Box::new(then)))
    }

    /// Completes the call.
    pub fn complete(mut self, answer: Result<T, BackendError>) {
        if let Some(then) = self.0.take() {
            then(answer);
        }
    }
}

impl<T> Drop for Done<T> {
    fn drop(&mut self) {
        if let Some(then) = self.0.take() {
            then(Err(ErrorKind::Abandoned.into()));
        }
    }
}

/// Makes a call and waits for its answer. `make` receives the [`Done`] to put into the call.
///
/// # Errors
/// The answer's, or `TimedOut` if `deadline` came first. The call continues then, and its answer is dropped.
///
/// # Blocking
/// Waits for the backend, until `deadline` at most.
pub(crate) fn call_and_wait<T: Send + 'static>(
    backend: &dyn Backend,
    clock: &dyn Clock,
    deadline: Option<Tick>,
    make: impl FnOnce(Done<T>) -> Call,
) -> Result<T, BackendError> {
    struct Answer<T> {
        slot: Mutex<Option<Result<T, BackendError>>>,
        arrived: Condvar,
    }
    let answer = Arc::new(Answer { slot: Mutex::new(LEAVES, None), arrived: Condvar::new() });
    let sender = Arc::clone(&answer);
    let call = make(Done::new(move |result| {
        *sender.slot.lock() = Some(result);
        sender.arrived.notify_one();
    }));
    match deadline {
        None => backend.submit_and_wait(call),
        Some(_) => backend.submit(call),
    }
    let mut slot = answer.slot.lock();
    loop {
        if let Some(result) = slot.take() {
            return result;
        }
        match deadline {
            None => answer.arrived.wait(&mut slot),
            Some(deadline) => {
                let left = deadline.since(clock.now());
                if left == Duration::ZERO {
                    return Err(ErrorKind::TimedOut.into());
                }
                let _ = answer.arrived.wait_timeout(&mut slot, left);
            }
        }
    }
}

impl<T> fmt::Debug for Done<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_dropped_call_is_answered_as_abandoned() {
        let (send, answers) = mpsc::channel();
        drop(Call::SyncVolume { done: Done::new(move |answer| send.send(answer).expect("receiver lives")) });
        let answer = answers.recv().expect("answered");
        assert_eq!(answer.expect_err("abandoned").kind(), ErrorKind::Abandoned);
    }
}

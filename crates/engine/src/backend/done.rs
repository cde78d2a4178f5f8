//! Where the answer to a call goes.

use std::fmt;

use crate::error::{BackendError, ErrorKind};

/// Where the answer to a call goes. Dropping it answers [`ErrorKind::Abandoned`].
pub struct Done<T>(Option<Then<T>>);

type Then<T> = Box<dyn FnOnce(Result<T, BackendError>) + Send>;

impl<T> Done<T> {
    /// Calls `then` with the answer, on whatever thread completes the call.
    pub fn new(then: impl FnOnce(Result<T, BackendError>) + Send + 'static) -> Self {
        Self(Some(Box::new(then)))
    }

    /// Answers the call.
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

impl<T> fmt::Debug for Done<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::backend::Call;

    #[test]
    fn a_dropped_call_is_answered_as_abandoned() {
        let (send, answers) = mpsc::channel();
        drop(Call::SyncVolume { done: Done::new(move |answer| send.send(answer).expect("receiver lives")) });
        let answer = answers.recv().expect("answered");
        assert_eq!(answer.expect_err("abandoned").kind(), ErrorKind::Abandoned);
    }
}

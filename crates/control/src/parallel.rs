//! Jobs in parallel, one for each of several items, so that a hung one delays few.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Does `work` for each of `items`, for at most `most` of them at the same time. This thread works too, so the work is
/// done even if no other thread can be started.
///
/// # Blocking
/// Until all of it is done.
pub fn for_each_parallel<T>(most: usize, items: impl ExactSizeIterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    let helpers = items.len().min(most).saturating_sub(1);
    let queue = Mutex::new(items);
    let work = || {
        loop {
            // A thread that panicked has taken one item or none.
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(item) = next else { break };
            work(item);
        }
    };
    thread::scope(|scope| {
        for _ in 0..helpers {
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

/// Does `work` for each of `items` at the same time, on threads of which the first is called `name`. Returns the results
/// that there are when all is done, or after `within`, and whether all is done. The rest goes on.
///
/// # Errors
/// The first thread cannot be started; nothing is done then.
///
/// # Blocking
/// At most for `within`.
pub fn for_each_within<T: Send + 'static, R: Send + 'static>(
    name: &str,
    items: Vec<T>,
    within: Duration,
    work: impl Fn(T) -> R + Send + Sync + 'static,
) -> io::Result<(Vec<R>, bool)> {
    let (done, outcomes) = channel();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        for_each_parallel(usize::MAX, items.into_iter(), |item| {
            // Nothing receives it after the time limit.
            let _ = done.send(work(item));
        });
    })?;
    let deadline = Instant::now() + within;
    let mut results = Vec::new();
    loop {
        match outcomes.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(result) => results.push(result),
            Err(RecvTimeoutError::Disconnected) => return Ok((results, true)),
            Err(RecvTimeoutError::Timeout) => return Ok((results, false)),
        }
    }
}

/// Does `work` on another thread, and calls `tick` at this interval meanwhile.
pub fn while_running<T: Send>(every: Duration, work: impl FnOnce() -> T + Send, tick: &mut dyn FnMut()) -> T {
    thread::scope(|scope| {
        let (done, outcome) = channel();
        let working = scope.spawn(move || {
            // The receiver exists until it has received this.
            let _ = done.send(work());
        });
        loop {
            match outcome.recv_timeout(every) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Timeout) => tick(),
                Err(RecvTimeoutError::Disconnected) => match working.join() {
                    Err(panic) => std::panic::resume_unwind(panic),
                    Ok(()) => unreachable!("it sends before it ends"),
                },
            }
        }
    })
}

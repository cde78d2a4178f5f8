//! One job for each of several items, so that a hung one delays few.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Does `work` for each of `items`, for at most `most` of them at the same time. This thread works too, so the work is
/// done even if no other thread can be started.
///
/// # Blocking
/// Until all of it is done.
pub(crate) fn for_each_parallel<T>(
    most: usize,
    items: impl ExactSizeIterator<Item = T> + Send,
    work: impl Fn(T) + Sync,
) {
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

//! One job for each of several, so that one that hangs delays few.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Does `work` for each of `items`, for `most` of them at the same time. It is done on this thread too: others that cannot be
/// had leave it more.
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
            // A thread that panicked has taken an item or none.
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

//! Whether the calling thread is inside an operation that many threads may be inside at once.
//!
//! Used to refuse a wait that would never end: a thread inside a walk must not wait until all walks have ended.
//!
//! # Invariants
//! M1. A mark belongs to one thread: other threads neither see it nor receive it.
//! M2. It is set from [`ThreadMark::enter`] until the last [`Marked`] of it on this thread is dropped.

use std::cell::RefCell;
use std::marker::PhantomData;

use crate::shim::{thread_local, unique_id};

thread_local! {
    /// The marks that are set, one entry for each `enter`: a few at most.
    static SET: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// A mark that each thread has set or not; see the module documentation.
pub struct ThreadMark {
    id: u64,
}

/// The calling thread is inside, until this is dropped.
#[must_use = "the mark is cleared when this is dropped"]
pub struct Marked {
    id: u64,
    /// M1.
    _not_send: PhantomData<*const ()>,
}

impl ThreadMark {
    /// A mark that no thread has set.
    #[allow(clippy::new_without_default, reason = "two marks are never the same")]
    pub fn new() -> Self {
        Self { id: unique_id() }
    }

    /// Sets the mark on the calling thread. May be nested.
    ///
    /// # Panics
    /// If called while the thread's local data are being destroyed.
    pub fn enter(&self) -> Marked {
        SET.with(|set| set.borrow_mut().push(self.id));
        Marked { id: self.id, _not_send: PhantomData }
    }

    /// Whether the calling thread is inside.
    pub fn is_set(&self) -> bool {
        SET.try_with(|set| set.borrow().contains(&self.id)).unwrap_or(false)
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        let _ = SET.try_with(|set| {
            let mut set = set.borrow_mut();
            if let Some(at) = set.iter().rposition(|id| *id == self.id) {
                set.swap_remove(at);
            }
        });
    }
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use super::*;
    use crate::shim::{Arc, thread};

    #[test]
    fn a_mark_is_set_until_the_last_of_its_thread_is_dropped() {
        let (mark, other) = (ThreadMark::new(), ThreadMark::new());
        assert!(!mark.is_set());
        let outer = mark.enter();
        let inner = mark.enter();
        drop(outer);
        assert!(mark.is_set() && !other.is_set());
        drop(inner);
        assert!(!mark.is_set());
    }

    #[test]
    fn other_threads_do_not_see_a_mark() {
        let mark = Arc::new(ThreadMark::new());
        let _marked = mark.enter();
        let seen = thread::spawn({
            let mark = Arc::clone(&mark);
            move || mark.is_set()
        });
        assert!(!seen.join().unwrap());
    }
}

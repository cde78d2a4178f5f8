//! A log of the grace periods and barriers that a thread waits for, in order.
//!
//! Experiments and tests use it. The counters of an operation show the intended waits. This log is kept where a thread
//! waits, so it also shows unintended ones.
//!
//! # Invariants
//! W1. A thread logs only inside [`waits_during`], and only its own waits. Elsewhere a wait costs one read of a
//!     thread-local, which is negligible compared with a grace period.

use std::cell::RefCell;

use crate::shim::thread_local;

/// A wait of a thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Wait {
    /// [`Domain::synchronize`](super::Domain::synchronize).
    Normal,
    /// [`Domain::synchronize_expedited`](super::Domain::synchronize_expedited).
    Expedited,
    /// [`Domain::barrier`](super::Domain::barrier).
    Barrier,
}

thread_local! {
    static LOG: RefCell<Option<Vec<Wait>>> = const { RefCell::new(None) };
}

/// Runs `work` and returns the waits of the calling thread meanwhile, in any domain, in order. May be nested: the outer
/// log includes the inner waits.
///
/// # Panics
/// If called while the thread's local data are being destroyed.
pub fn waits_during<T>(work: impl FnOnce() -> T) -> (T, Vec<Wait>) {
    let outer = LOG.with(|log| log.borrow_mut().replace(Vec::new()));
    let done = work();
    let waits = LOG.with(|log| std::mem::replace(&mut *log.borrow_mut(), outer)).unwrap_or_default();
    waits.iter().for_each(|wait| note(*wait));
    (done, waits)
}

/// Adds `wait` to the calling thread's log, if it keeps one (W1).
pub(super) fn note(wait: Wait) {
    let _ = LOG.try_with(|log| {
        if let Some(waits) = &mut *log.borrow_mut() {
            waits.push(wait);
        }
    });
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use super::super::Domain;
    use super::*;
    use crate::shim::{Arc, thread};

    #[test]
    fn a_thread_logs_its_own_waits_in_order_and_nests() {
        let domain = Arc::new(Domain::new());
        domain.synchronize();
        let ((), outer) = waits_during(|| {
            domain.synchronize_expedited();
            let ((), inner) = waits_during(|| {
                domain.barrier();
                domain.synchronize();
            });
            assert_eq!(inner, [Wait::Barrier, Wait::Normal]);
            let other = Arc::clone(&domain);
            thread::spawn(move || other.synchronize()).join().unwrap();
        });
        assert_eq!(outer, [Wait::Expedited, Wait::Barrier, Wait::Normal]);
        domain.synchronize();
    }
}

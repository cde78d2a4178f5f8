//! Integers in memory that the next process finds there.
//!
//! Their size and bytes are part of the format. The atomics of a model checker carry bookkeeping and have another size.
//! Therefore these are the plain ones in every build, and this file is the only one that names them.
//!
//! # Memory ordering
//! O1. Every store is a Release, every load an Acquire. A kill stops each thread between two instructions, so the next
//!     process sees the stores of a thread in the order in which they were made.

use core::sync::atomic::{AtomicU64, Ordering};

/// A 64-bit field.
#[repr(transparent)]
pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// Adds one. Returns the value before.
    pub(crate) fn count(&self) -> u64 {
        self.0.fetch_add(1, Ordering::AcqRel)
    }

    /// Changes it to the value that `new` makes of its own, unless that is `None`.
    pub(crate) fn change(&self, new: impl FnMut(u64) -> Option<u64>) {
        // The caller has no use for the value before.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, new);
    }

    /// Changes 0 to `value`. Returns false if it was not 0.
    pub(crate) fn take(&self, value: u64) -> bool {
        self.0.compare_exchange(0, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

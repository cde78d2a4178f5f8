//! A lock with a sequence number, so that a reader without the lock can tell whether anything has changed.
//!
//! # Invariants
//! S1. The number is odd while the lock is held, and even otherwise. It never returns to an earlier value.
//!
//! # Memory ordering
//! O1. [`Site::SeqLockEndRelease`] with [`Site::SeqLockBeginAcquire`]: a reader that begins with a number sees all
//!     changes made up to it. Without either, the reader may combine the new number with an old pointer and take both
//!     for current.
//! O2. A reader checks that nothing has changed since only after it has published something of its own, followed by a
//!     full barrier: see [`SeqRefs`](crate::SeqRefs).
//!
//! # Kernel counterpart
//! `seqlock_t`. Differs: a reader that finds the lock held sleeps until it is free.

use crate::lock::{Mutex, MutexGuard, Rank};
use crate::shim::atomic::{AtomicU64, Ordering};
use crate::shim::{Site, const_unless_loom};

/// A lock around a value, with a number that shows readers of other data whether the lock was held; see the module
/// documentation.
pub struct SeqLock<T> {
    number: AtomicU64,
    inner: Mutex<T>,
}

/// The lock while it is held: readers that have begun will notice.
#[must_use = "the lock is released when the guard is dropped"]
pub struct SeqGuard<'a, T> {
    number: &'a AtomicU64,
    inner: MutexGuard<'a, T>,
}

/// A value of the number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen(u64);

impl<T> SeqLock<T> {
    const_unless_loom! {
        /// A free lock.
        pub const fn new(rank: Rank, value: T) -> Self {
            Self { number: AtomicU64::new(0), inner: Mutex::new(rank, value) }
        }
    }

    /// Begins to read. Everything found from here on belongs to one moment, if the pin at the end succeeds.
    ///
    /// # Blocking
    /// While the lock is held. Not inside an RCU read section.
    #[inline]
    pub fn begin(&self) -> Seen {
        loop {
            // O1.
            let number = self.number.load(Site::SeqLockBeginAcquire.order(Ordering::Acquire));
            if number & 1 == 0 {
                return Seen(number);
            }
            drop(self.inner.lock());
        }
    }

    /// Whether the lock has not been held since `seen`. The caller has passed a full barrier since it published what
    /// the next holder must see (O2).
    #[inline]
    #[must_use]
    pub(crate) fn is_unchanged(&self, seen: Seen) -> bool {
        self.number.load(Ordering::Relaxed) == seen.0
    }

    /// Takes the lock.
    ///
    /// # Blocking
    /// Until the holder drops its guard.
    ///
    /// # Panics
    /// On a wrong order, where `debug_assertions` are on.
    #[track_caller]
    pub fn lock(&self) -> SeqGuard<'_, T> {
        let inner = self.inner.lock();
        self.number.fetch_add(1, Ordering::Relaxed);
        SeqGuard { number: &self.number, inner }
    }
}

impl<T> std::ops::Deref for SeqGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> std::ops::DerefMut for SeqGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T> Drop for SeqGuard<'_, T> {
    fn drop(&mut self) {
        // O1. The lock itself is released after this.
        self.number.fetch_add(1, Site::SeqLockEndRelease.order(Ordering::Release));
    }
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_begun_notices_a_holder() {
        let lock = SeqLock::new(Rank::new(1, "test"), 1);
        let seen = lock.begin();
        assert!(lock.is_unchanged(seen));
        let mut held = lock.lock();
        *held += 1;
        assert!(!lock.is_unchanged(seen));
        drop(held);
        assert!(!lock.is_unchanged(seen) && lock.is_unchanged(lock.begin()));
        assert_eq!(*lock.lock(), 2);
    }
}

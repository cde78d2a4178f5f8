//! A lock whose holders are numbered, so that who reads without it can tell whether anything changed meanwhile.
//!
//! # Invariants
//! S1. The number is odd while somebody holds the lock, and even otherwise. It never comes back to an earlier value.
//!
//! # Memory ordering
//! O1. [`Site::SeqLockEndRelease`] with [`Site::SeqLockBeginAcquire`]: who begins with a number finds all changes that were
//!     made up to it. Without either he may combine the new number with an old pointer, and believe in both.
//! O2. That nothing changed since is found out by who has published something of his own in between, with a full barrier:
//!     see [`SeqRefs`](crate::SeqRefs).
//!
//! # Kernel counterpart
//! `seqlock_t`. Differs: a reader who finds the lock held sleeps until it is free.

use crate::lock::{Mutex, MutexGuard, Rank};
use crate::shim::atomic::{AtomicU64, Ordering};
use crate::shim::{Site, const_unless_loom};

/// A lock around a value, and a number that tells readers of something else whether it was held; see the module's head.
pub struct SeqLock<T> {
    number: AtomicU64,
    inner: Mutex<T>,
}

/// The lock held: readers that have begun will notice.
#[must_use = "the lock is released when the guard is dropped"]
pub struct SeqGuard<'a, T> {
    number: &'a AtomicU64,
    inner: MutexGuard<'a, T>,
}

/// What the number was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen(u64);

impl<T> SeqLock<T> {
    const_unless_loom! {
        /// A free lock.
        pub const fn new(rank: Rank, value: T) -> Self {
            Self { number: AtomicU64::new(0), inner: Mutex::new(rank, value) }
        }
    }

    /// Begins to read: what is found from here on is as it is at one moment, if a pin at the end is sure.
    ///
    /// # Blocking
    /// While somebody holds the lock. Not inside a read section of RCU.
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

    /// Whether nobody has held the lock since `seen`. The caller has had a full barrier since he published what he wants
    /// the next holder to see (O2).
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
        // O1. The lock itself is let go after this.
        self.number.fetch_add(1, Site::SeqLockEndRelease.order(Ordering::Release));
    }
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn who_has_begun_notices_a_holder() {
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

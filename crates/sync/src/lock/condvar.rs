//! Waiting for a condition that a [`Mutex`](super::Mutex) guards.

use std::time::Duration;

use super::MutexGuard;
use crate::shim::{const_unless_loom, raw};

/// A condition variable. Wakes may be spurious: wait in a loop that tests the condition.
pub struct Condvar {
    inner: raw::Condvar,
}

impl Condvar {
    const_unless_loom! {
        /// A condition without waiters.
        pub const fn new() -> Self {
            Self { inner: raw::Condvar::new() }
        }
    }

    /// Gives up the lock, sleeps until notified, retakes the lock.
    ///
    /// # Blocking
    /// The guard's lock has the greatest rank held, and no other lock of `SPIN_RANK` or more is held (L3, L4).
    ///
    /// # Panics
    /// Where `debug_assertions` are on, if that is not so.
    #[track_caller]
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.entry.check_wait();
        self.inner.wait(&mut guard.inner);
    }

    /// Waits as [`Condvar::wait`] does, for at most `timeout`. Returns true if the time ran out.
    ///
    /// # Panics
    /// As [`Condvar::wait`].
    #[track_caller]
    pub fn wait_timeout<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        guard.entry.check_wait();
        self.inner.wait_timeout(&mut guard.inner, timeout)
    }

    /// Wakes one waiter, if there is one.
    pub fn notify_one(&self) {
        self.inner.notify_one();
    }

    /// Wakes every waiter.
    pub fn notify_all(&self) {
        self.inner.notify_all();
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

//! Waiting until another thread has finished something.
//!
//! ```text
//!   31     30         29 ... 0
//! +-----+----------+------------------------------+
//! | ALL | SLEEPERS | completions not yet taken    |
//! +-----+----------+------------------------------+
//! ```
//!
//! # Invariants
//! C1. After its step on the word, a finisher does not access the word again: a waiter may have freed it. A wake uses
//!     the address only.
//! C2. A step that adds a completion clears SLEEPERS and wakes every sleeper. A sleeper that finds no completion left
//!     sets SLEEPERS again.
//!
//! # Memory ordering
//! O1. [`Site::CompletionRelease`] with [`Site::CompletionAcquire`]: the waiter sees everything that the finisher did
//!     before.
//!
//! # Kernel counterpart
//! `struct completion`. Differs: `complete` wakes all sleepers, of which one continues.

use std::time::Duration;

use crate::lock::might_sleep;
use crate::shim::atomic::{AtomicU32, Ordering};
use crate::shim::{Site, const_unless_loom, futex_wait, futex_wake_all};

const ALL: u32 = 1 << 31;
const SLEEPERS: u32 = 1 << 30;
const COUNT: u32 = SLEEPERS - 1;

/// An event that other threads wait for; see the module documentation.
pub struct Completion {
    word: AtomicU32,
}

impl Completion {
    const_unless_loom! {
        /// Not complete.
        pub const fn new() -> Self {
            Self { word: AtomicU32::new(0) }
        }
    }

    /// Lets one waiter continue, now or later. A waiter may free the completion at once (C1).
    pub fn complete(&self) {
        let address: *const AtomicU32 = &self.word;
        // O1, C2.
        let release = Site::CompletionRelease.order(Ordering::Release);
        let old = self.word.fetch_update(release, Ordering::Relaxed, |now| {
            debug_assert!(now & COUNT != COUNT, "more completions than fit");
            (now & ALL == 0).then_some((now & !SLEEPERS) + 1)
        });
        if old.is_ok_and(|old| old & SLEEPERS != 0) {
            futex_wake_all(address);
        }
    }

    /// Lets every waiter continue, now and in the future. A waiter may free the completion at once (C1).
    pub fn complete_all(&self) {
        let address: *const AtomicU32 = &self.word;
        // O1.
        let old = self.word.swap(ALL, Site::CompletionRelease.order(Ordering::Release));
        if old & SLEEPERS != 0 {
            futex_wake_all(address);
        }
    }

    /// Whether a wait would return at once.
    pub fn is_complete(&self) -> bool {
        self.word.load(Site::CompletionAcquire.order(Ordering::Acquire)) & (ALL | COUNT) != 0
    }

    /// Waits for a completion and takes it.
    ///
    /// # Blocking
    /// Until another thread completes.
    ///
    /// # Panics
    /// Where `debug_assertions` are on, if the caller may not sleep.
    #[track_caller]
    pub fn wait(&self) {
        might_sleep();
        while !self.try_take() {
            self.sleep(None);
        }
    }

    /// Waits as [`Completion::wait`] does, for about `timeout`. The time starts again if another waiter takes a
    /// completion first. Returns true if the time ran out.
    ///
    /// # Panics
    /// As [`Completion::wait`].
    #[track_caller]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        might_sleep();
        while !self.try_take() {
            if self.sleep(Some(timeout)) {
                return !self.try_take();
            }
        }
        false
    }

    fn try_take(&self) -> bool {
        // O1.
        let acquire = Site::CompletionAcquire.order(Ordering::Acquire);
        let mut now = self.word.load(acquire);
        while now & (ALL | COUNT) != 0 {
            if now & ALL != 0 {
                return true;
            }
            match self.word.compare_exchange(now, now - 1, acquire, acquire) {
                Ok(_) => return true,
                Err(newer) => now = newer,
            }
        }
        false
    }

    /// Sleeps until a completion arrives or `timeout` passes. Returns true if the time ran out.
    fn sleep(&self, timeout: Option<Duration>) -> bool {
        let is_marked = match self.word.compare_exchange(0, SLEEPERS, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(now) => now == SLEEPERS,
        };
        is_marked && futex_wait(&self.word, SLEEPERS, timeout)
    }
}

impl Default for Completion {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use super::*;
    use crate::shim::{Arc, thread};

    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn completions_are_counted() {
        let done = Completion::new();
        assert!(done.wait_timeout(SHORT));
        done.complete();
        done.complete();
        done.wait();
        assert!(!done.wait_timeout(SHORT));
        assert!(!done.is_complete());
    }

    #[test]
    fn complete_all_lets_later_waits_return_too() {
        let done = Completion::new();
        done.complete_all();
        done.complete();
        done.wait();
        assert!(!done.wait_timeout(SHORT));
        assert!(done.is_complete());
    }

    #[test]
    fn every_waiter_gets_one_completion() {
        let done = Arc::new(Completion::new());
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let done = Arc::clone(&done);
                thread::spawn(move || (0..500).for_each(|_| done.wait()))
            })
            .collect();
        for _ in 0..2000 {
            done.complete();
        }
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        assert!(!done.is_complete());
    }
}

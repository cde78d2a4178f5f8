//! Serving a session with one thread while one client uses it.
//!
//! A client waits for the answer to its request before it makes the next one. Another thread that is woken for that
//! request finds nothing left to read, or delays the first. So a thread that has read several requests of one client in
//! a row takes the session's [`Lease`] and removes the session from the epoll set. It then sleeps in read(2), which
//! takes one system call per request instead of three. It gives the lease back when a request of another client arrives,
//! and before a call that may take long.
//!
//! A call that is usually brief, such as a few system calls on a local directory, is made with the lease. The watcher
//! of the pool revokes the lease if the call lasts beyond two of its ticks, and has the events delivered again. It also
//! wakes a thread that waits for a request and gets few.
//!
//! # Invariants
//! U1. While no thread holds the lease, the session is in the epoll set, or is about to be put there by the thread that
//!     has given the lease back or revoked it. So no request is lost: when it is added, epoll checks for requests.
//! U2. A thread reads the session only after it has joined or taken the lease. So the device waits for requests
//!     ([`Transport::set_waiting`](crate::Transport::set_waiting)) only while the holder alone reads it. A holder may
//!     find that it does not, if the watcher has just revoked an earlier lease; then it gives the lease back.
//! U3. A held lease is in the watcher's list.
//! U4. A thread that ends a session first marks it as ended, and then wakes the holder of its lease by a signal. If the
//!     signal comes before the holder sleeps, the watcher sends another one.

use rustix::thread::gettid;
use slackwater_sync::shim::atomic::{AtomicU32, AtomicU64, Ordering};
use slackwater_sync::{Joined, Lease};

use super::sys::wake_up;

/// The fewest requests of one client in a row before one thread serves it.
const STREAK_MIN: u32 = 16;
/// The most requests that are waited for after attempts that did not pay.
const STREAK_MAX: u32 = 4096;
/// The wanted streak of a session whose lease is never taken.
const NEVER: u32 = u32::MAX;
/// A lease given back after fewer requests did not pay, since taking it and giving it back costs four system calls.
const WORTHWHILE: u32 = 32;

/// The lease of a session, and who its clients are.
pub(crate) struct Solo {
    pub(crate) lease: Lease,
    /// The last client in the lower half; above it how many of its requests came in a row.
    streak: AtomicU64,
    /// The streak after which the lease is taken.
    wanted: AtomicU32,
    /// The thread that holds the lease.
    holder: AtomicU32,
}

impl Solo {
    pub(crate) fn new() -> Self {
        Self {
            lease: Lease::new(),
            streak: AtomicU64::new(0),
            wanted: AtomicU32::new(STREAK_MIN),
            holder: AtomicU32::new(0),
        }
    }

    /// Notes a request of the client `pid`. It is 0 for a request that the kernel makes on its own, and for clients
    /// outside the pid namespace of the mount; these are not counted, since they may be many. Returns whether another
    /// client made the last one. Threads that do this at once may lose counts.
    pub(super) fn note(&self, pid: u32) -> bool {
        if pid == 0 {
            return false;
        }
        let last = self.streak.load(Ordering::Relaxed);
        let is_same = last as u32 == pid;
        let next = if is_same { last.saturating_add(1 << 32) } else { u64::from(pid) };
        self.streak.store(next, Ordering::Relaxed);
        !is_same
    }

    /// Takes the lease if one client has made the last requests.
    pub(super) fn try_take(&self, joined: Joined) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let takes = self.streak() >= wanted && wanted != NEVER && self.lease.try_take(joined);
        if takes {
            self.holder.store(gettid().as_raw_nonzero().get().unsigned_abs(), Ordering::Release);
        }
        takes
    }

    /// Interrupts the wait of the holder for a request. If it has just read one, the signal comes while it is handled,
    /// where a local file system takes no notice.
    pub(crate) fn wake(&self) {
        if self.lease.is_held() && self.lease.call().is_none() {
            wake_up(self.holder.load(Ordering::Acquire));
        }
    }

    /// How many requests one client has made in a row.
    pub(super) fn streak(&self) -> u32 {
        (self.streak.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Gives the lease back after `served` requests.
    pub(super) fn give_back(&self, served: u32) {
        match served >= WORTHWHILE {
            true => self.wanted.store(STREAK_MIN, Ordering::Relaxed),
            false => self.back_off(),
        }
        self.lease.give_back();
    }

    /// The transport cannot wait for requests.
    pub(super) fn never_again(&self) {
        self.wanted.store(NEVER, Ordering::Relaxed);
    }

    /// Waits for a longer streak before the lease is taken the next time.
    pub(super) fn back_off(&self) {
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted == NEVER {
            return;
        }
        let wanted = wanted.saturating_mul(4).min(STREAK_MAX);
        self.wanted.store(wanted, Ordering::Relaxed);
        let last = self.streak.load(Ordering::Relaxed);
        self.streak.store(u64::from(last as u32), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_is_taken_for_one_client_only() {
        let solo = Solo::new();
        for _ in 0..100 {
            let changes = [1, 2].map(|pid| solo.note(pid));
            assert_eq!(changes, [true, true]);
            assert!(!solo.try_take(Joined::No), "two clients");
        }
        assert!((0..1000).all(|_| !solo.note(0) && !solo.try_take(Joined::No)), "clients of another pid namespace");
        assert!((0..STREAK_MIN).all(|_| !solo.note(2) && !solo.note(0)));
        assert!(solo.try_take(Joined::No));
        assert!(!solo.try_take(Joined::No), "it is held");
        assert!(solo.note(3));
    }

    #[test]
    fn attempts_that_do_not_pay_become_rare() {
        let solo = Solo::new();
        let taken_after = || (0..).position(|_| solo.note(1) || solo.try_take(Joined::No));
        solo.note(1);
        let mut streaks = Vec::new();
        for _ in 0..7 {
            streaks.extend(taken_after());
            solo.give_back(WORTHWHILE - 1);
        }
        assert_eq!(streaks, [15, 63, 255, 1023, 4095, 4095, 4095]);
        streaks.extend(taken_after());
        solo.give_back(WORTHWHILE);
        assert_eq!(taken_after(), Some(0), "it pays again");
    }
}

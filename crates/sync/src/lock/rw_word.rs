//! A reader/writer lock in four bytes, without a payload and without an owner.
//!
//! Such locks guard page frames: there is one per frame, and the thread that unlocks a frame at the end of its I/O is
//! seldom the one that locked it. Callers are responsible for the order of frame locks.
//!
//! ```text
//!   31      30       29 ... 0
//! +--------+---------+----------+
//! | WRITER | WAITING | readers  |
//! +--------+---------+----------+
//! ```
//!
//! # Invariants
//! W1. WRITER and a reader count above zero exclude each other.
//! W2. WAITING is set only by a thread that saw the lock held, in the same step. So a lock that is held with WAITING
//!     set stays so until its last holder releases it, and that holder wakes all waiters.
//! W3. While WAITING is set, no new reader enters: a stream of readers cannot keep a writer out.
//! W4. A thread that has waited and finds the lock free but WAITING may take it. Its release must then do the wake.
//!
//! # Memory ordering
//! O1. Writer's release ([`Site::RwWordWriteRelease`]) with any acquire: the next holder sees what was written.
//! O2. Reader's release ([`Site::RwWordReadRelease`]) with the writer's acquire: the writer overwrites nothing that is
//!     still being read. Every step in between is a read-modify-write, so O2 holds for all readers at once.
//!
//! # Lifetime
//! The last reader accesses the word once more after releasing it, to clear WAITING. The word must outlive its unlocks.
//!
//! # Kernel counterpart
//! The folio lock bit with `PG_waiters`. Differs: it can be held shared, and is never handed from one owner to the
//! next.

use crate::shim::atomic::{AtomicU32, Ordering};
use crate::shim::{Site, const_unless_loom, futex_wait, futex_wake_all, spin_until};

const WRITER: u32 = 1 << 31;
const WAITING: u32 = 1 << 30;
const READERS: u32 = WAITING - 1;

/// A reader/writer lock in one word; see the module documentation.
#[repr(transparent)]
pub struct RwWord {
    word: AtomicU32,
}

impl RwWord {
    const_unless_loom! {
        /// A free lock.
        pub const fn new() -> Self {
            Self { word: AtomicU32::new(0) }
        }
    }

    /// Takes the lock to read if that needs no waiting.
    #[inline]
    #[must_use]
    pub fn try_read(&self) -> bool {
        let mut now = self.word.load(Ordering::Relaxed);
        while now & (WRITER | WAITING) == 0 {
            match self.replace(now, now + 1, Site::RwWordReadAcquire) {
                Ok(_) => return true,
                Err(newer) => now = newer,
            }
        }
        false
    }

    /// Takes the lock to read.
    ///
    /// # Blocking
    /// While a writer holds the lock or any thread waits for it. A thread that holds it for reading must not take it
    /// again.
    #[inline]
    pub fn read(&self) {
        if !self.try_read() {
            self.acquire_slow(WRITER, 1, Site::RwWordReadAcquire);
        }
    }

    /// Takes the lock to write if it is free.
    #[inline]
    #[must_use]
    pub fn try_write(&self) -> bool {
        self.replace(0, WRITER, Site::RwWordWriteAcquire).is_ok()
    }

    /// Takes the lock to write.
    ///
    /// # Blocking
    /// While the lock is held.
    #[inline]
    pub fn write(&self) {
        if !self.try_write() {
            self.acquire_slow(WRITER | READERS, WRITER, Site::RwWordWriteAcquire);
        }
    }

    /// Releases one reader's share, whichever thread took it.
    #[inline]
    pub fn read_unlock(&self) {
        // O2.
        let old = self.word.fetch_sub(1, Site::RwWordReadRelease.order(Ordering::Release));
        debug_assert!(old & READERS != 0 && old & WRITER == 0, "read_unlock without a reader: {old:#x}");
        if old == WAITING | 1 {
            self.wake();
        }
    }

    /// Releases the writer's lock, whichever thread took it.
    #[inline]
    pub fn write_unlock(&self) {
        // O1.
        let old = self.word.swap(0, Site::RwWordWriteRelease.order(Ordering::Release));
        debug_assert!(old & WRITER != 0, "write_unlock without a writer: {old:#x}");
        if old & WAITING != 0 {
            futex_wake_all(&self.word);
        }
    }

    /// Whether the lock is held at this moment.
    pub fn is_locked(&self) -> bool {
        self.word.load(Ordering::Relaxed) & (WRITER | READERS) != 0
    }

    /// Waits until none of `excluded` is set, then adds `share`.
    #[cold]
    fn acquire_slow(&self, excluded: u32, share: u32, site: Site) {
        // A thread that waits may take a free lock with WAITING set: the mark is also its own (W4).
        let is_open = |now: u32| now & excluded == 0 && (now & WAITING == 0 || now & (WRITER | READERS) == 0);
        spin_until(|| is_open(self.word.load(Ordering::Relaxed)));
        loop {
            let now = self.word.load(Ordering::Relaxed);
            if !is_open(now) {
                self.sleep(now);
            } else if self.replace(now, now + share, site).is_ok() {
                return;
            }
        }
    }

    /// Sleeps until the holders of a lock seen as `now` have released it.
    fn sleep(&self, now: u32) {
        let waiting = now | WAITING;
        let is_marked =
            now == waiting || self.word.compare_exchange(now, waiting, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_marked {
            futex_wait(&self.word, waiting, None);
        }
    }

    /// After the last reader has released a lock with WAITING set.
    #[cold]
    fn wake(&self) {
        // Failure means that another thread took the lock, and WAITING with it (W4).
        if self.word.compare_exchange(WAITING, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            futex_wake_all(&self.word);
        }
    }

    #[inline]
    fn replace(&self, old: u32, new: u32, site: Site) -> Result<u32, u32> {
        self.word.compare_exchange(old, new, site.order(Ordering::Acquire), Ordering::Relaxed)
    }
}

impl Default for RwWord {
    fn default() -> Self {
        Self::new()
    }
}

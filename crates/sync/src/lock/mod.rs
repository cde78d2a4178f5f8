//! Locks with a rank.
//!
//! A lock is created with a [`Rank`]. A thread takes locks in rising rank. Within one rank it takes only locks with
//! keys, in rising key or two at once through [`lock_two`]. Where `debug_assertions` are on, each thread records the
//! locks that it holds, and a wrong order panics at once with both ranks: on any run that takes the two locks, not only
//! on the run that deadlocks. Otherwise a rank is not even stored, and a lock is as small as `parking_lot` makes it.
//!
//! # Invariants
//! L1. A blocking acquisition has a rank above every held one, or the same rank and a greater key.
//! L2. `try_*` may break L1, since it cannot wait. A lock taken this way is held like any other.
//! L3. A thread that holds a rank of [`SPIN_RANK`] or more, or is inside an RCU read section, does not sleep. It takes
//!     no lock below [`SPIN_RANK`], passes no [`might_sleep`], and waits for no condition.
//! L4. A wait on a [`Condvar`] releases its own lock only. The lock is retaken at the end, so L1 must hold again.
//!
//! # Kernel counterpart
//! `lockdep`, `lock_nested` and `might_sleep`. Differs: the order is a table of numbers written in advance, not a graph
//! learned at run time.

mod condvar;
mod held;
mod mutex;
mod rw_word;
mod rwlock;
#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests;

pub use condvar::Condvar;
pub(crate) use held::{enter_read_section, exit_read_section};
pub use mutex::{Mutex, MutexGuard, lock_two};
pub use rw_word::RwWord;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// From this order on, a lock is held only briefly, and its holder does not sleep.
pub const SPIN_RANK: u8 = 45;

/// The place of a class of locks in the order in which locks are taken: smaller first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    order: u8,
    name: &'static str,
}

impl Rank {
    /// A class called `name` at `order`.
    pub const fn new(order: u8, name: &'static str) -> Self {
        Self { order, name }
    }

    /// The place in the order, smaller first.
    pub const fn order(self) -> u8 {
        self.order
    }

    /// The name of the class in the lock-order table.
    pub const fn name(self) -> &'static str {
        self.name
    }
}

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name, self.order)
    }
}

/// States that the caller may block from here on.
///
/// # Panics
/// Where `debug_assertions` are on, if a lock of [`SPIN_RANK`] or more is held or an RCU read section is open (L3).
#[inline]
#[track_caller]
pub fn might_sleep() {
    held::check_sleep(None);
}

//! The locks that the calling thread holds. Every item here is empty unless `debug_assertions` are on.

use super::Rank;

pub(crate) use imp::{Class, Entry, check_sleep, enter_read_section, exit_read_section};

#[cfg(debug_assertions)]
mod imp {
    use std::cell::{Cell, RefCell};
    use std::fmt;

    use super::super::SPIN_RANK;
    use super::Rank;
    use crate::shim::thread_local;

    /// Which lock a lock is: its rank, and its key within the rank.
    #[derive(Clone, Copy)]
    pub(crate) struct Class {
        rank: Rank,
        key: Option<u64>,
    }

    /// A lock held by this thread, until dropped. Bound to the thread because every guard is.
    pub(crate) struct Entry {
        serial: u64,
    }

    struct Held {
        class: Class,
        serial: u64,
    }

    thread_local! {
        static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
        static LAST_SERIAL: Cell<u64> = const { Cell::new(0) };
        static READ_SECTIONS: Cell<u32> = const { Cell::new(0) };
    }

    impl Class {
        pub(crate) const fn new(rank: Rank, key: Option<u64>) -> Self {
            Self { rank, key }
        }

        /// Panics unless this thread may block on the lock now (L1, L3).
        #[track_caller]
        pub(crate) fn check_order(self) {
            if let Some(held) = find_held(|held| !self.may_follow(held.class)) {
                panic!("lock order: {self} taken while {held} is held");
            }
            let is_sleeping_lock = self.rank.order < SPIN_RANK;
            assert!(!is_sleeping_lock || !is_reading(), "sleeping lock {self} taken inside an RCU read section");
        }

        /// Panics unless the two may be held together, in either order.
        #[track_caller]
        pub(crate) fn check_pair(self, other: Self) {
            let is_pair = self.rank == other.rank && self.key.is_some() && self.key != other.key;
            assert!(is_pair, "lock_two: {self} and {other} are not two locks of one rank with different keys");
        }

        /// Notes that the lock is held now.
        pub(crate) fn record(self) -> Entry {
            // A lock taken while the thread's locals are being destroyed goes unrecorded.
            let serial = LAST_SERIAL.try_with(|last| last.replace(last.get() + 1)).unwrap_or(0);
            let _ = HELD.try_with(|held| held.borrow_mut().push(Held { class: self, serial }));
            Entry { serial }
        }

        /// L1.
        fn may_follow(self, held: Self) -> bool {
            let is_next_key = self.rank == held.rank && held.key.is_some() && self.key > held.key;
            self.rank.order > held.rank.order || is_next_key
        }
    }

    impl fmt::Display for Class {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.key {
                Some(key) => write!(f, "{} with key {key}", self.rank),
                None => self.rank.fmt(f),
            }
        }
    }

    impl Entry {
        /// Panics unless this thread may release the lock, sleep, and retake it (L3, L4).
        #[track_caller]
        pub(crate) fn check_wait(&self) {
            let own = find_held(|held| held.serial == self.serial);
            let is_in_the_way =
                |held: &Held| held.serial != self.serial && own.is_some_and(|own| !own.may_follow(held.class));
            if let (Some(own), Some(held)) = (own, find_held(is_in_the_way)) {
                panic!("lock order: a wait retakes {own} while {held} is held");
            }
            check_sleep(Some(self));
        }
    }

    impl Drop for Entry {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|held| held.serial == self.serial) {
                    held.remove(at);
                }
            });
        }
    }

    /// See [`super::super::might_sleep`]; `except` is a lock that will be released before the sleep.
    #[track_caller]
    pub(crate) fn check_sleep(except: Option<&Entry>) {
        let is_kept = |held: &Held| except.is_none_or(|entry| entry.serial != held.serial);
        if let Some(held) = find_held(|held| is_kept(held) && held.class.rank.order >= SPIN_RANK) {
            panic!("might sleep while {held} is held");
        }
        assert!(!is_reading(), "might sleep inside an RCU read section");
    }

    /// Notes that an RCU read section of this thread began.
    pub(crate) fn enter_read_section() {
        let _ = READ_SECTIONS.try_with(|n| n.set(n.get() + 1));
    }

    /// Notes that an RCU read section of this thread ended.
    pub(crate) fn exit_read_section() {
        let _ = READ_SECTIONS.try_with(|n| n.set(n.get() - 1));
    }

    fn is_reading() -> bool {
        READ_SECTIONS.try_with(|sections| sections.get() > 0).unwrap_or(false)
    }

    /// The first lock held by this thread for which `is_wanted` is true. The caller panics, not a closure in here, so
    /// that the panic names the place that takes the lock.
    fn find_held(is_wanted: impl Fn(&Held) -> bool) -> Option<Class> {
        let find = |held: &RefCell<Vec<Held>>| held.borrow().iter().find(|held| is_wanted(held)).map(|held| held.class);
        HELD.try_with(find).ok().flatten()
    }
}

#[cfg(not(debug_assertions))]
mod imp {
    use super::Rank;

    #[derive(Clone, Copy)]
    pub(crate) struct Class;

    pub(crate) struct Entry;

    impl Class {
        #[inline(always)]
        pub(crate) const fn new(_rank: Rank, _key: Option<u64>) -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn check_order(self) {}

        #[inline(always)]
        pub(crate) fn check_pair(self, _other: Self) {}

        #[inline(always)]
        pub(crate) fn record(self) -> Entry {
            Entry
        }
    }

    impl Entry {
        #[inline(always)]
        pub(crate) fn check_wait(&self) {}
    }

    #[inline(always)]
    pub(crate) fn check_sleep(_except: Option<&Entry>) {}

    #[inline(always)]
    pub(crate) fn enter_read_section() {}

    #[inline(always)]
    pub(crate) fn exit_read_section() {}
}

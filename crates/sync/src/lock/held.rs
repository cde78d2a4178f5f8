//! What the calling thread holds. Every item here is empty unless `debug_assertions` are on.

use super::Rank;

pub(crate) use imp::{Class, Entry, check_sleep, enter_read_section, exit_read_section};

#[cfg(debug_assertions)]
mod imp {
    use std::cell::{Cell, RefCell};

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
            with_held(|held| {
                for other in held {
                    self.check_after(other.class, "taken");
                }
            });
            if self.rank.order < SPIN_RANK {
                check_no_read_section(self.rank);
            }
        }

        /// Panics unless the two may be held together, in either order.
        #[track_caller]
        pub(crate) fn check_pair(self, other: Self) {
            assert!(
                self.rank == other.rank && self.key.is_some() && self.key != other.key,
                "lock_two: {} key {:?} and {} key {:?} are not two locks of one rank with different keys",
                self.rank,
                self.key,
                other.rank,
                other.key
            );
        }

        /// Notes that the lock is held now.
        pub(crate) fn record(self) -> Entry {
            // A lock taken while the thread's locals are being destroyed goes unrecorded.
            let serial = LAST_SERIAL.try_with(|last| last.replace(last.get() + 1)).unwrap_or(0);
            let _ = HELD.try_with(|held| held.borrow_mut().push(Held { class: self, serial }));
            Entry { serial }
        }

        #[track_caller]
        fn check_after(self, held: Self, done: &str) {
            let is_later = self.rank.order > held.rank.order;
            let is_next_key = self.rank == held.rank && self.key.is_some() && self.key > held.key && held.key.is_some();
            assert!(
                is_later || is_next_key,
                "lock order: {} key {:?} {done} while {} key {:?} is held",
                self.rank,
                self.key,
                held.rank,
                held.key
            );
        }
    }

    impl Entry {
        /// Panics unless this thread may sleep until the lock, given up meanwhile, can be retaken (L3, L4).
        #[track_caller]
        pub(crate) fn check_wait(&self) {
            with_held(|held| {
                let own = held.iter().find(|h| h.serial == self.serial).map(|h| h.class);
                for other in held.iter().filter(|h| h.serial != self.serial) {
                    if let Some(own) = own {
                        own.check_after(other.class, "awaited");
                    }
                }
            });
            check_sleep(Some(self));
        }
    }

    impl Drop for Entry {
        fn drop(&mut self) {
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|h| h.serial == self.serial) {
                    held.remove(at);
                }
            });
        }
    }

    /// See [`super::super::might_sleep`]; `except` is a lock that will be given up before sleeping.
    #[track_caller]
    pub(crate) fn check_sleep(except: Option<&Entry>) {
        with_held(|held| {
            for other in held.iter().filter(|h| except.is_none_or(|e| e.serial != h.serial)) {
                let rank = other.class.rank;
                assert!(rank.order < SPIN_RANK, "might sleep while {rank} is held");
            }
        });
        assert!(read_sections() == 0, "might sleep inside an RCU read section");
    }

    /// Notes that an RCU read section of this thread began.
    pub(crate) fn enter_read_section() {
        let _ = READ_SECTIONS.try_with(|n| n.set(n.get() + 1));
    }

    /// Notes that an RCU read section of this thread ended.
    pub(crate) fn exit_read_section() {
        let _ = READ_SECTIONS.try_with(|n| n.set(n.get() - 1));
    }

    #[track_caller]
    fn check_no_read_section(rank: Rank) {
        assert!(read_sections() == 0, "sleeping lock {rank} taken inside an RCU read section");
    }

    fn read_sections() -> u32 {
        READ_SECTIONS.try_with(Cell::get).unwrap_or(0)
    }

    // Not a closure passed to `try_with`: `#[track_caller]` does not reach through one, and a panic should name the lock.
    #[track_caller]
    fn with_held(check: impl FnOnce(&[Held])) {
        let _ = HELD.try_with(|held| check(&held.borrow()));
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

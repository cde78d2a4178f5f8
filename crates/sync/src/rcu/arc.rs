//! A shared pointer that readers follow without counting, and writers replace.
//!
//! # Invariants
//! A1. The pointer came from [`Arc::into_raw`], and its count belongs to this cell. Replacing passes that count to a
//!     callback, which gives it up a grace period later. A reader that found the old pointer in a section may use it
//!     until the section ends.
//! A2. Readers and writers of one cell use one domain. Its number is checked each time, since a section of another
//!     domain would keep nothing alive.
//!
//! # Memory ordering
//! O1. [`Site::RcuArcRelease`] with [`Site::RcuArcAcquire`]: the replacement is published with Release and read with
//!     Acquire, so a reader sees what the pointer points to. The grace period keeps the old value alive for its readers
//!     (O1 to O3 of the [parent](super)). A writer acquires too, since it causes the drop of a value that another
//!     writer has published.
//!
//! # Kernel counterpart
//! `rcu_assign_pointer`, `rcu_dereference`, `kfree_rcu`.
#![allow(unsafe_code, reason = "a count is kept as a bare pointer")]

use std::marker::PhantomData;

use super::{Domain, Guard};
use crate::shim::atomic::{AtomicPtr, Ordering};
use crate::shim::{Arc, Site};

/// A counted pointer that readers follow inside a section, and writers replace.
pub struct RcuArc<T> {
    pointer: AtomicPtr<T>,
    domain: u64,
    /// A marker for the auto traits, as of an `Arc`: shared with other threads, and dropped by them.
    _owns: PhantomData<Arc<T>>,
}

impl<T: Send + Sync + 'static> RcuArc<T> {
    /// A cell of `domain` that holds `value`.
    pub fn new(domain: &Domain, value: Arc<T>) -> Self {
        Self { pointer: AtomicPtr::new(Arc::into_raw(value).cast_mut()), domain: domain.core.id, _owns: PhantomData }
    }

    /// The value that the cell holds now. It may be replaced during the section, and lives until the section ends.
    ///
    /// # Panics
    /// If the section is of another domain than the cell.
    #[inline]
    pub fn read<'g>(&self, section: &'g Guard<'_>) -> &'g T {
        assert_eq!(section.core.id, self.domain, "A2");
        // SAFETY: A1 - the section began before the pointer was loaded.
        unsafe { &*self.pointer.load(Site::RcuArcAcquire.order(Ordering::Acquire)) } // O1
    }

    /// A counted reference to the value that the cell holds now.
    ///
    /// # Panics
    /// If `domain` is not the cell's.
    #[inline]
    pub fn load(&self, domain: &Domain) -> Arc<T> {
        assert_eq!(domain.core.id, self.domain, "A2");
        let _section = domain.read_lock();
        let pointer = self.pointer.load(Site::RcuArcAcquire.order(Ordering::Acquire)); // O1
        // SAFETY: A1 - a count exists while the section lasts, so one more may be added to it.
        unsafe { Arc::increment_strong_count(pointer) };
        // SAFETY: the count just added is ours.
        unsafe { Arc::from_raw(pointer) }
    }

    /// Whether the cell holds `value` now.
    #[inline]
    pub fn holds(&self, value: &Arc<T>) -> bool {
        std::ptr::eq(self.pointer.load(Ordering::Relaxed), Arc::as_ptr(value))
    }

    /// Replaces the value. The old reference is dropped by the domain's worker, a grace period later.
    ///
    /// # Blocking
    /// Never.
    ///
    /// # Panics
    /// If `domain` is not the cell's.
    pub fn replace(&self, domain: &Domain, value: Arc<T>) {
        self.replace_then(domain, value, || ());
    }

    /// Replaces as [`RcuArc::replace`] does; `then` runs after the old reference was dropped, as a callback does.
    ///
    /// # Blocking
    /// Never.
    ///
    /// # Panics
    /// If `domain` is not the cell's.
    pub fn replace_then(&self, domain: &Domain, value: Arc<T>, then: impl FnOnce() + Send + 'static) {
        assert_eq!(domain.core.id, self.domain, "A2");
        let old = self.pointer.swap(Arc::into_raw(value).cast_mut(), Site::RcuArcRelease.order(Ordering::AcqRel)); // O1
        // SAFETY: A1 - it was this cell's, and the swap has made it ours.
        let old = unsafe { Arc::from_raw(old) };
        domain.call(move || {
            drop(old);
            then();
        });
    }

    /// The value. The reference is exclusive, so no other thread can read it.
    pub fn get_mut(&mut self) -> &T {
        // SAFETY: A1, with an exclusive reference.
        unsafe { &*self.pointer.load(Ordering::Relaxed) }
    }
}

impl<T> Drop for RcuArc<T> {
    fn drop(&mut self) {
        // SAFETY: A1 - the cell has no readers any more, and the count is given up once.
        drop(unsafe { Arc::from_raw(self.pointer.load(Ordering::Acquire)) });
    }
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use super::*;
    use crate::shim::thread;

    #[test]
    fn a_replaced_value_lives_until_its_readers_have_ended() {
        let domain = Domain::new();
        let first = Arc::new(1);
        let cell = RcuArc::new(&domain, Arc::clone(&first));
        {
            let section = domain.read_lock();
            let read = cell.read(&section);
            cell.replace(&domain, Arc::new(2));
            assert_eq!((*read, *cell.read(&section)), (1, 2));
            assert_eq!(Arc::strong_count(&first), 2, "a reader may have it");
        }
        domain.barrier();
        assert_eq!(Arc::strong_count(&first), 1);
        let second = cell.load(&domain);
        assert!(cell.holds(&second) && !cell.holds(&first));
        drop(cell);
        assert_eq!(Arc::strong_count(&second), 1);
    }

    #[test]
    fn concurrent_readers_and_writers_find_whole_values() {
        let domain = Arc::new(Domain::new());
        let cell = Arc::new(RcuArc::new(&domain, Arc::new([0_u64; 8])));
        let writer = thread::spawn({
            let (domain, cell) = (Arc::clone(&domain), Arc::clone(&cell));
            move || (1..2000).for_each(|n| cell.replace(&domain, Arc::new([n; 8])))
        });
        for _ in 0..20_000 {
            let section = domain.read_lock();
            let read = cell.read(&section);
            assert!(read.iter().all(|word| *word == read[0]));
            drop(section);
            let kept = cell.load(&domain);
            assert!(kept.iter().all(|word| *word == kept[0]));
        }
        writer.join().unwrap();
    }

    #[test]
    #[should_panic(expected = "A2")]
    fn a_section_of_another_domain_is_refused() {
        let (domain, other) = (Domain::new(), Domain::new());
        let cell = RcuArc::new(&domain, Arc::new(1));
        let _ = cell.read(&other.read_lock());
    }
}

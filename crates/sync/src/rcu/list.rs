//! A list that readers follow without a lock. Writers add and remove elements, one writer at a time.
//!
//! New elements are added at the front. An addition needs no grace period, and writes to no other element.
//!
//! # Invariants
//! L1. A node is freed a grace period after it was removed: a reader that has reached it inside a section may continue
//!     from there.
//! L2. A removed node keeps its link. For a reader at that node, the link leads to a node that was in the list when the
//!     reader's section began, or later: L1 holds for that node too.
//! L3. Links change with `changes` held.
//!
//! # Memory ordering
//! O1. [`Site::RcuListLinkRelease`] and [`Site::RcuListUnlinkRelease`] with [`Site::RcuListAcquire`]: a reader sees the
//!     value of a node, whether it follows the link that adding set or one that removing moved. The grace period keeps
//!     nodes alive for their readers (O1 to O3 of the [parent](super)).
//!
//! # Kernel counterpart
//! `hlist_add_head_rcu`, `hlist_del_rcu`, `hlist_for_each_entry_rcu`.
#![allow(unsafe_code, reason = "a list whose links are followed while they change")]

use std::marker::PhantomData;
use std::ptr;

use super::{Domain, Guard};
use crate::shim::atomic::{AtomicPtr, Ordering};
use crate::shim::{Site, raw};

/// A list that is read inside sections; see the module documentation.
pub struct RcuList<T> {
    head: AtomicPtr<Node<T>>,
    domain: u64,
    changes: raw::Mutex<()>,
    /// A marker for the auto traits: elements are shared with other threads, and dropped by them.
    _owns: PhantomData<Box<Node<T>>>,
}

struct Node<T> {
    next: AtomicPtr<Node<T>>,
    value: T,
}

/// The elements of a list, the last added first.
pub struct Iter<'g, T> {
    next: &'g AtomicPtr<Node<T>>,
}

impl<T: Send + Sync + 'static> RcuList<T> {
    /// An empty list of `domain`.
    pub fn new(domain: &Domain) -> Self {
        Self {
            head: AtomicPtr::new(ptr::null_mut()),
            domain: domain.core.id,
            changes: raw::Mutex::new(()),
            _owns: PhantomData,
        }
    }

    /// The elements of the list. An element may be removed during the section, and lives until the section ends.
    ///
    /// # Panics
    /// If the section is of another domain than the list.
    #[inline]
    pub fn iter<'g>(&'g self, section: &'g Guard<'_>) -> Iter<'g, T> {
        assert_eq!(section.core.id, self.domain, "a list is read inside its own domain");
        Iter { next: &self.head }
    }

    /// Adds `value` at the front.
    ///
    /// # Blocking
    /// While another thread adds or removes.
    pub fn push(&self, value: T) {
        let node = Box::new(Node { next: AtomicPtr::new(ptr::null_mut()), value });
        let _changes = self.changes.lock();
        node.next.store(self.head.load(Ordering::Relaxed), Ordering::Relaxed);
        // O1.
        self.head.store(Box::into_raw(node), Site::RcuListLinkRelease.order(Ordering::Release));
    }

    /// Removes the first value for which the predicate is true. The domain's worker drops it, a grace period later.
    /// False if there is none.
    ///
    /// # Blocking
    /// While another thread adds or removes.
    ///
    /// # Panics
    /// If `domain` is not the list's.
    pub fn remove(&self, domain: &Domain, is_it: impl Fn(&T) -> bool) -> bool {
        assert_eq!(domain.core.id, self.domain, "a list is changed inside its own domain");
        let changes = self.changes.lock();
        let mut link = &self.head;
        let removed = loop {
            let found = link.load(Ordering::Relaxed);
            // SAFETY: L3 - it is in the list, and stays there while `changes` is held.
            let Some(node) = (unsafe { found.as_ref() }) else { return false };
            if is_it(&node.value) {
                let next = node.next.load(Ordering::Relaxed);
                // O1, L2.
                link.store(next, Site::RcuListUnlinkRelease.order(Ordering::Release));
                break found;
            }
            link = &node.next;
        };
        drop(changes);
        // SAFETY: it came from `Box::into_raw`, and no new reader finds it; the callback provides L1.
        let removed = unsafe { Box::from_raw(removed) };
        domain.call(move || drop(removed));
        true
    }
}

impl<'g, T> Iterator for Iter<'g, T> {
    type Item = &'g T;

    #[inline]
    fn next(&mut self) -> Option<&'g T> {
        let next = self.next.load(Site::RcuListAcquire.order(Ordering::Acquire)); // O1
        // SAFETY: L1, L2 - the section began before the link was read.
        let node = unsafe { next.as_ref() }?;
        self.next = &node.next;
        Some(&node.value)
    }
}

impl<T> Drop for RcuList<T> {
    fn drop(&mut self) {
        let mut next = self.head.load(Ordering::Acquire);
        while !next.is_null() {
            // SAFETY: the list has no readers any more, and each node is in it once.
            let node = unsafe { Box::from_raw(next) };
            next = node.next.load(Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use super::*;
    use crate::shim::{Arc, thread};

    fn found(list: &RcuList<Arc<u64>>, domain: &Domain) -> Vec<u64> {
        list.iter(&domain.read_lock()).map(|value| **value).collect()
    }

    #[test]
    fn the_element_added_last_comes_first_until_it_is_removed() {
        let domain = Domain::new();
        let list = RcuList::new(&domain);
        (0..5).for_each(|n| list.push(Arc::new(n)));
        assert_eq!(found(&list, &domain), [4, 3, 2, 1, 0]);
        for (n, left) in [(2, vec![4, 3, 1, 0]), (4, vec![3, 1, 0]), (0, vec![3, 1])] {
            assert!(list.remove(&domain, |value| **value == n));
            assert_eq!(found(&list, &domain), left);
        }
        assert!(!list.remove(&domain, |value| **value == 2));
        list.push(Arc::new(7));
        assert_eq!(found(&list, &domain), [7, 3, 1]);
    }

    #[test]
    fn a_removed_element_lives_until_its_readers_have_ended() {
        let domain = Domain::new();
        let list = RcuList::new(&domain);
        let values = [1, 2, 3].map(Arc::new);
        values.iter().for_each(|value| list.push(Arc::clone(value)));
        {
            let section = domain.read_lock();
            let mut iter = list.iter(&section);
            assert_eq!(iter.next().map(|value| **value), Some(3));
            assert!(list.remove(&domain, |value| **value == 3) && list.remove(&domain, |value| **value == 2));
            // The reader continues from its element, across one that was removed meanwhile.
            assert_eq!(iter.map(|value| **value).collect::<Vec<_>>(), [2, 1]);
            assert_eq!(values.each_ref().map(Arc::strong_count), [2, 2, 2], "a reader may have them");
        }
        domain.barrier();
        assert_eq!(values.each_ref().map(Arc::strong_count), [2, 1, 1]);
        drop(list);
        assert_eq!(Arc::strong_count(&values[0]), 1);
    }

    #[test]
    fn readers_find_all_elements_that_stay_beside_additions_and_removals() {
        let domain = Arc::new(Domain::new());
        let list = Arc::new(RcuList::new(&domain));
        list.push(Arc::new(0));
        let writers: Vec<_> = (1..3)
            .map(|own| {
                let (domain, list) = (Arc::clone(&domain), Arc::clone(&list));
                thread::spawn(move || {
                    for _ in 0..2000 {
                        list.push(Arc::new(own));
                        assert!(list.remove(&domain, |value| **value == own));
                    }
                })
            })
            .collect();
        for _ in 0..5000 {
            let found = found(&list, &domain);
            assert_eq!(found.iter().filter(|value| **value == 0).count(), 1, "{found:?}");
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(found(&list, &domain), [0]);
    }

    #[test]
    #[should_panic(expected = "its own domain")]
    fn a_section_of_another_domain_is_refused() {
        let (domain, other) = (Domain::new(), Domain::new());
        let list = RcuList::<Arc<u64>>::new(&domain);
        let _ = list.iter(&other.read_lock());
    }
}

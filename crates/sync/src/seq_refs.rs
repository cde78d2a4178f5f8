//! References that lookups take without a lock, and that the holder of the lock can count.
//!
//! An object is in a tree that is changed under a [`SeqLock`] and searched without it, inside a read section. A lookup
//! that finds the object *pins* it first and then checks whether the tree has changed. The tree has a reference of its
//! own, the *initial* one, until the object is detached. A put of an attached object therefore cannot be the last, and
//! need not check.
//!
//! ```text
//! lookup                                 unmount
//! seen = lock.begin();                   held = lock.lock();
//! section = domain.read_lock();          if refs.count(&held) != 1 { busy }
//! found in the tree                      refs.detach(&held); out of the tree
//! if refs.pin(&section, &lock, seen) {   drop(held);
//!     use it, until the put              domain.synchronize_expedited();
//! } else { begin again }                 refs.put_initial(&lock)
//!                                            Put::Last: no reference is left
//! ```
//!
//! # Invariants
//! Q1. The references are the sum of all shards. One shard alone may be below zero.
//! Q2. A put without the lock is made in a section that found the object attached. The initial reference is put after a
//!     grace period that began when the object was detached. Every such put has ended by then, and none was the last.
//! Q3. The pins of lookups that found the object before it was removed from the tree have ended by then too: each was
//!     undone or has become a reference. No lookup finds the object afterwards.
//! Q4. The sum is zero only after the initial reference was put. Only the first put that finds it zero, with the lock
//!     held, returns [`Put::Last`].
//!
//! # Memory ordering
//! O1. [`Site::SeqRefsPinFence`] with [`Site::SeqRefsCountFence`]: the lookup counts itself, then checks for a change;
//!     the unmount announces its change, then counts. Without either barrier, the lookup may succeed while the unmount
//!     counts no reference.
//! O2. The shards need no order: because of the grace period, changes made without the lock are final when they matter
//!     (Q2, Q3).
//!
//! # Kernel counterpart
//! `mnt_pcp`, `__legitimize_mnt`, `mntput_no_expire`. Differs: a lookup that fails undoes its pin inside
//! its section. In Linux it may have to wait for the lock there, since a detached mount can still be walked.

use crate::rcu::{Domain, Guard};
use crate::seq_lock::{Seen, SeqGuard, SeqLock};
use crate::shim::atomic::{AtomicI64, AtomicU8, Ordering};
use crate::shim::{Site, cpu_hint, nr_cpus};

/// No references: not in use yet, or the last reference was put.
const FREE: u8 = 0;
/// In the tree.
const ATTACHED: u8 = 1;
/// Removed from the tree, with references left.
const DETACHED: u8 = 2;

/// The result of a put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "no other thread cleans up"]
pub enum Put {
    /// References are left, or another thread cleans up.
    Some,
    /// No reference is left: the caller cleans up, and may reuse the object after a grace period.
    Last,
}

/// References taken and put on one CPU.
#[repr(align(64))]
struct Shard(AtomicI64);

/// The references to one object; see the module documentation.
pub struct SeqRefs {
    shards: Box<[Shard]>,
    /// Changes with the lock held.
    state: AtomicU8,
}

impl SeqRefs {
    /// No references, for an object that is not in the tree yet.
    pub fn new() -> Self {
        Self { shards: (0..nr_cpus()).map(|_| Shard(AtomicI64::new(0))).collect(), state: AtomicU8::new(FREE) }
    }

    /// Attaches the object to the tree, with the initial reference. If it was attached before, its last reference was
    /// put a grace period ago.
    pub fn attach<T>(&self, held: &SeqGuard<'_, T>) {
        debug_assert!(self.state.load(Ordering::Relaxed) == FREE && self.count(held) == 0, "in use");
        self.state.store(ATTACHED, Ordering::Relaxed);
        self.add(1);
    }

    #[inline]
    fn add(&self, references: i64) {
        self.shards[cpu_hint() % self.shards.len()].0.fetch_add(references, Ordering::Relaxed);
    }

    /// Takes a reference to the object that a lookup has found which began at `seen`. False if the tree has changed
    /// since.
    #[inline]
    #[must_use = "without a reference the lookup begins again"]
    pub fn pin<T>(&self, _section: &Guard<'_>, lock: &SeqLock<T>, seen: Seen) -> bool {
        self.add(1);
        // O1: pairs with the barrier in `count`.
        Site::SeqRefsPinFence.smp_mb();
        let is_sure = lock.is_unchanged(seen);
        if !is_sure {
            self.add(-1); // Q3
        }
        is_sure
    }

    /// Takes another reference. The caller already has one.
    #[inline]
    pub fn get(&self) {
        self.add(1);
    }

    /// Puts a reference.
    ///
    /// # Blocking
    /// For the lock, if the object is no longer attached. Not inside a section.
    #[inline]
    pub fn put<T>(&self, domain: &Domain, lock: &SeqLock<T>) -> Put {
        {
            let _section = domain.read_lock();
            if self.state.load(Ordering::Relaxed) == ATTACHED {
                self.add(-1); // Q2
                return Put::Some;
            }
        }
        self.put_locked(&lock.lock())
    }

    /// Puts the initial reference of an object that was detached a grace period ago.
    ///
    /// # Blocking
    /// For the lock. Not inside a section.
    pub fn put_initial<T>(&self, lock: &SeqLock<T>) -> Put {
        let held = lock.lock();
        debug_assert!(!self.is_attached(), "Q2");
        self.put_locked(&held)
    }

    fn put_locked<T>(&self, held: &SeqGuard<'_, T>) -> Put {
        self.add(-1);
        if self.count(held) != 0 {
            return Put::Some;
        }
        debug_assert_eq!(self.state.load(Ordering::Relaxed), DETACHED, "Q4");
        self.state.store(FREE, Ordering::Relaxed);
        Put::Last
    }

    /// The number of references, including the initial one until it is put. A pin that is not counted will be undone.
    pub fn count<T>(&self, _held: &SeqGuard<'_, T>) -> u64 {
        // O1: pairs with the barrier in `pin`.
        Site::SeqRefsCountFence.smp_mb();
        let sum = self.shards.iter().fold(0_i64, |sum, shard| sum.wrapping_add(shard.0.load(Ordering::Relaxed)));
        u64::try_from(sum).unwrap_or(0)
    }

    /// Marks the object as detached from the tree. The caller removes it from the place where lookups find it, releases
    /// the lock, waits for a grace period, and puts the initial reference.
    pub fn detach<T>(&self, _held: &SeqGuard<'_, T>) {
        debug_assert!(self.is_attached(), "detached twice");
        self.state.store(DETACHED, Ordering::Relaxed);
    }

    /// Whether the object is in the tree. Does not change while the lock is held.
    pub fn is_attached(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ATTACHED
    }
}

impl Default for SeqRefs {
    fn default() -> Self {
        Self::new()
    }
}

//! References that lookups take without a lock, and that who holds the lock can count.
//!
//! An object hangs in a tree that is changed under a [`SeqLock`] and searched without it, inside a read section. A lookup that
//! finds the object *pins* it first and looks afterwards whether the tree has changed. The tree has a reference of its own, the
//! *initial* one, until the object is detached; so a put of an object that is attached cannot be the last, and need not ask.
//!
//! ```text
//! lookup                                 unmount
//! seen = lock.begin();                   held = lock.lock();
//! section = domain.read_lock();          if refs.count(&held) != 1 { busy }
//! found in the tree                      refs.detach(&held); out of the tree
//! if refs.pin(&section, &lock, seen) {   drop(held);
//!     it is ours, until the put          domain.synchronize_expedited();
//! } else { begin again }                 refs.put_initial(&lock)
//!                                            Put::Last: nobody has it any more
//! ```
//!
//! # Invariants
//! Q1. The references are the sum of all shards. One shard alone may be below zero.
//! Q2. A put without the lock is made in a section that found the object attached. The initial reference is put after a grace
//!     period that began when it was detached: every such put is over by then, and none was the last.
//! Q3. So are the pins of lookups that found it before it was taken out of the tree: they have been undone, or are references.
//!     Nobody finds it afterwards.
//! Q4. The sum is zero only after the initial reference was put. Whoever finds it so first, with the lock held,
//!     and nobody else, hears [`Put::Last`].
//!
//! # Memory ordering
//! O1. [`Site::SeqRefsPinFence`] with [`Site::SeqRefsCountFence`]: the lookup counts itself, then looks for a change; the
//!     unmount announces its change, then counts. Without either barrier the lookup is sure and the unmount finds nobody.
//! O2. The shards need no order: what is changed without the lock is final when it matters, by the grace period (Q2, Q3).
//!
//! # Kernel counterpart
//! `mnt_pcp`, `__legitimize_mnt`, `mntput_no_expire`; sem. 9.2, 9.3. Differs: a lookup that is not sure undoes its pin in its
//! section. There it may have to wait for the lock, since a mount that was detached can still be walked through.

use crate::rcu::{Domain, Guard};
use crate::seq_lock::{Seen, SeqGuard, SeqLock};
use crate::shim::atomic::{AtomicI64, AtomicU8, Ordering};
use crate::shim::{Site, cpu_hint, nr_cpus};

/// No references: it is not in use yet, or its last one is gone.
const FREE: u8 = 0;
/// In the tree.
const ATTACHED: u8 = 1;
/// Out of it.
const DETACHED: u8 = 2;

/// What a put has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "nobody else cleans up"]
pub enum Put {
    /// Others, or somebody else to clean up.
    Some,
    /// Nobody: the caller cleans up, and may reuse the object after a grace period.
    Last,
}

/// References taken and put on one CPU.
#[repr(align(64))]
struct Shard(AtomicI64);

/// The references to one object; see the module's head.
pub struct SeqRefs {
    shards: Box<[Shard]>,
    /// Changes with the lock held.
    state: AtomicU8,
}

impl SeqRefs {
    /// None, of an object that is not in the tree yet.
    pub fn new() -> Self {
        Self { shards: (0..nr_cpus()).map(|_| Shard(AtomicI64::new(0))).collect(), state: AtomicU8::new(FREE) }
    }

    /// The object comes into the tree, with the initial reference. If it was there before, its last reference was put a
    /// grace period ago.
    pub fn attach<T>(&self, held: &SeqGuard<'_, T>) {
        debug_assert!(self.state.load(Ordering::Relaxed) == FREE && self.count(held) == 0, "in use");
        self.state.store(ATTACHED, Ordering::Relaxed);
        self.add(1);
    }

    #[inline]
    fn add(&self, references: i64) {
        self.shards[cpu_hint() % self.shards.len()].0.fetch_add(references, Ordering::Relaxed);
    }

    /// Takes a reference to what a lookup that began at `seen` has found; false if the tree has changed since.
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

    /// Takes another reference. The caller has one.
    #[inline]
    pub fn get(&self) {
        self.add(1);
    }

    /// Puts a reference.
    ///
    /// # Blocking
    /// For the lock, if the object is not attached any more. Not inside a section.
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

    /// The references there are, the initial one among them until it is put. A pin that is not counted will be undone.
    pub fn count<T>(&self, _held: &SeqGuard<'_, T>) -> u64 {
        // O1: pairs with the barrier in `pin`.
        Site::SeqRefsCountFence.smp_mb();
        let sum = self.shards.iter().fold(0_i64, |sum, shard| sum.wrapping_add(shard.0.load(Ordering::Relaxed)));
        u64::try_from(sum).unwrap_or(0)
    }

    /// Takes the object out of the tree, as far as its references go. The caller takes it out of where lookups find it, lets
    /// the lock go, waits for a grace period, and puts the initial reference.
    pub fn detach<T>(&self, _held: &SeqGuard<'_, T>) {
        debug_assert!(self.is_attached(), "detached twice");
        self.state.store(DETACHED, Ordering::Relaxed);
    }

    /// Whether it is in the tree. Stays so while the lock is held.
    pub fn is_attached(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ATTACHED
    }
}

impl Default for SeqRefs {
    fn default() -> Self {
        Self::new()
    }
}

//! A mutex with a rank.

use std::ops::{Deref, DerefMut};

use super::Rank;
use super::held::{Class, Entry};
use crate::shim::{const_unless_loom, raw};

/// Mutual exclusion around a value. Does not poison; one or two bytes beside the value in a release build.
pub struct Mutex<T: ?Sized> {
    class: Class,
    inner: raw::Mutex<T>,
}

/// Access to the value of a [`Mutex`], until dropped, on this thread only.
#[must_use = "the lock is released when the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    pub(super) inner: raw::MutexGuard<'a, T>,
    pub(super) entry: Entry,
}

impl<T> Mutex<T> {
    const_unless_loom! {
        /// A lock of a class of which a thread holds at most one.
        pub const fn new(rank: Rank, value: T) -> Self {
            Self { class: Class::new(rank, None), inner: raw::Mutex::new(value) }
        }
    }

    const_unless_loom! {
        /// A lock of a class of which a thread may hold several, taken in rising `key` or through [`lock_two`].
        pub const fn keyed(rank: Rank, key: u64, value: T) -> Self {
            Self { class: Class::new(rank, Some(key)), inner: raw::Mutex::new(value) }
        }
    }

    /// The value, without the lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the lock.
    ///
    /// # Blocking
    /// Until the holder drops its guard. The caller holds smaller ranks only (L1).
    ///
    /// # Panics
    /// On a wrong order, where `debug_assertions` are on.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.class.check_order();
        MutexGuard { inner: self.inner.lock(), entry: self.class.record() }
    }

    /// Takes the lock if it is free. Allowed in any order (L2).
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard { inner, entry: self.class.record() })
    }

    /// The value. No lock is needed, since the reference is exclusive.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

/// Takes two locks of one rank, in any order relative to other threads.
///
/// Blocks on one lock while holding neither, then tries the other. If that one is held, releases the first and blocks
/// on the other instead. It therefore needs no key at run time, and cannot deadlock with a thread that takes the locks
/// by key.
///
/// # Blocking
/// As for [`Mutex::lock`].
///
/// # Panics
/// Where `debug_assertions` are on: on a wrong order, and unless both have the same rank and different keys.
#[track_caller]
pub fn lock_two<'a, T, U>(a: &'a Mutex<T>, b: &'a Mutex<U>) -> (MutexGuard<'a, T>, MutexGuard<'a, U>) {
    a.class.check_pair(b.class);
    loop {
        let held_a = a.lock();
        if let Some(held_b) = b.try_lock() {
            return (held_a, held_b);
        }
        drop(held_a);
        let held_b = b.lock();
        if let Some(held_a) = a.try_lock() {
            return (held_a, held_b);
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.try_lock() {
            Some(value) => f.debug_tuple("Mutex").field(&*value).finish(),
            None => f.write_str("Mutex(<locked>)"),
        }
    }
}

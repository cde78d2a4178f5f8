//! A reader/writer lock with a rank.

use std::ops::{Deref, DerefMut};

use super::Rank;
use super::held::{Class, Entry};
use crate::shim::{const_unless_loom, raw};

/// Many readers or one writer around a value. A waiting writer keeps new readers out, so reading twice on one thread
/// can deadlock; the order check refuses it. Does not poison.
pub struct RwLock<T> {
    class: Class,
    inner: raw::RwLock<T>,
}

/// Shared access to the value of an [`RwLock`], until dropped, on this thread only.
#[must_use = "the lock is released when the guard is dropped"]
pub struct RwLockReadGuard<'a, T> {
    inner: raw::RwLockReadGuard<'a, T>,
    _entry: Entry,
}

/// Exclusive access to the value of an [`RwLock`], until dropped, on this thread only.
#[must_use = "the lock is released when the guard is dropped"]
pub struct RwLockWriteGuard<'a, T> {
    inner: raw::RwLockWriteGuard<'a, T>,
    _entry: Entry,
}

impl<T> RwLock<T> {
    const_unless_loom! {
        /// A lock of a class of which a thread holds at most one.
        pub const fn new(rank: Rank, value: T) -> Self {
            Self { class: Class::new(rank, None), inner: raw::RwLock::new(value) }
        }
    }

    const_unless_loom! {
        /// A lock of a class of which a thread may hold several, taken in rising `key`.
        pub const fn keyed(rank: Rank, key: u64, value: T) -> Self {
            Self { class: Class::new(rank, Some(key)), inner: raw::RwLock::new(value) }
        }
    }

    /// Takes the lock to read.
    ///
    /// # Blocking
    /// While a writer holds the lock or waits for it. The caller holds smaller ranks only (L1).
    ///
    /// # Panics
    /// On a wrong order, where `debug_assertions` are on.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.class.check_order();
        RwLockReadGuard { inner: self.inner.read(), _entry: self.class.record() }
    }

    /// Takes the lock to write.
    ///
    /// # Blocking
    /// While the lock is held. The caller holds smaller ranks only (L1).
    ///
    /// # Panics
    /// On a wrong order, where `debug_assertions` are on.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.class.check_order();
        RwLockWriteGuard { inner: self.inner.write(), _entry: self.class.record() }
    }

    /// Takes the lock to read if that needs no waiting. Allowed in any order (L2).
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard { inner, _entry: self.class.record() })
    }

    /// Takes the lock to write if that needs no waiting. Allowed in any order (L2).
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard { inner, _entry: self.class.record() })
    }

    /// The value. No lock is needed, since the reference is exclusive.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// The value, without the lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.try_read() {
            Some(value) => f.debug_tuple("RwLock").field(&*value).finish(),
            None => f.write_str("RwLock(<locked>)"),
        }
    }
}

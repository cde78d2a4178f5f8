//! The parts that loom and shuttle share: futex, locks without poison, thread locals.
//!
//! # Memory ordering
//! One lock stands for the kernel's futex queues. It is stronger than the kernel in one point: a wake that finds no
//! sleeper still orders the waker before the next sleeper. Words used with a futex therefore carry their own orderings,
//! and a scenario for one of these orderings must have a path without a sleep.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

#[cfg(slackwater_loom)]
use ::loom::{lazy_static, sync};
#[cfg(slackwater_shuttle)]
use ::shuttle::{lazy_static, sync};

use super::atomic::{AtomicU32, Ordering};
use super::build::thread;

struct Sleeper {
    address: usize,
    wake: Arc<sync::Condvar>,
}

lazy_static! {
    static ref SLEEPERS: sync::Mutex<Vec<Sleeper>> = sync::Mutex::new(Vec::new());
}

/// Sleeps while the word holds `expected`. With a timeout, it only yields and reports that the time ran out.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
    if timeout.is_some() {
        thread::yield_now();
        return word.load(Ordering::Relaxed) == expected;
    }
    let mut sleepers = SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
    if word.load(Ordering::Relaxed) != expected {
        return false;
    }
    let wake = Arc::new(sync::Condvar::new());
    sleepers.push(Sleeper { address: address_of(word), wake: Arc::clone(&wake) });
    while sleepers.iter().any(|sleeper| Arc::ptr_eq(&sleeper.wake, &wake)) {
        sleepers = wake.wait(sleepers).unwrap_or_else(PoisonError::into_inner);
    }
    false
}

/// Wakes the thread that has slept longest on this address.
pub fn futex_wake_one(word: *const AtomicU32) {
    wake(word, 1);
}

/// Wakes every thread that sleeps on this address.
pub fn futex_wake_all(word: *const AtomicU32) {
    wake(word, usize::MAX);
}

fn wake(word: *const AtomicU32, mut count: usize) {
    let mut sleepers = SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
    sleepers.retain(|sleeper| {
        let is_woken = sleeper.address == address_of(word) && count > 0;
        if is_woken {
            count -= 1;
            sleeper.wake.notify_one();
        }
        !is_woken
    });
}

fn address_of(word: *const AtomicU32) -> usize {
    word.addr()
}

/// A different number for each thread of a scenario, so that each has its own shard.
pub(crate) fn cpu_hint() -> usize {
    let id = format!("{:?}", thread::current().id());
    id.bytes().filter(u8::is_ascii_digit).fold(0, |number, digit| number * 10 + usize::from(digit - b'0'))
}

/// Checks once: more turns would only add schedules of the same loop.
pub(crate) fn spin_until(mut condition: impl FnMut() -> bool) -> bool {
    condition()
}

/// Two shards, the smallest number with a choice.
pub(crate) fn nr_cpus() -> usize {
    2
}

/// Declares thread-local variables as the build's `thread_local!` does, which does not know `const` initialisers.
#[macro_export]
#[doc(hidden)]
macro_rules! modelled_thread_local {
    () => {};
    ($(#[$attr:meta])* $vis:vis static $name:ident: $t:ty = const $init:block; $($rest:tt)*) => {
        $crate::shim::model::model_thread_local!($(#[$attr])* $vis static $name: $t = $init);
        $crate::modelled_thread_local!($($rest)*);
    };
    ($(#[$attr:meta])* $vis:vis static $name:ident: $t:ty = $init:expr; $($rest:tt)*) => {
        $crate::shim::model::model_thread_local!($(#[$attr])* $vis static $name: $t = $init);
        $crate::modelled_thread_local!($($rest)*);
    };
}

/// Locks with the interface of `parking_lot`, which does not poison.
///
/// Loom makes a `try_lock` wait for a lock that another thread takes at the same moment. Two threads that each hold a
/// lock and try the other's therefore deadlock under loom only.
pub(crate) mod raw {
    use std::ops::{Deref, DerefMut};
    use std::sync::{PoisonError, TryLockError, TryLockResult};
    use std::time::Duration;

    use super::{sync, thread};
    use crate::shim::const_unless_loom;

    pub(crate) struct Mutex<T: ?Sized>(sync::Mutex<T>);

    /// Empty only inside a wait.
    pub(crate) struct MutexGuard<'a, T: ?Sized> {
        lock: &'a Mutex<T>,
        held: Option<sync::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        const_unless_loom! {
            pub(crate) const fn new(value: T) -> Self {
                Self(sync::Mutex::new(value))
            }
        }

        pub(crate) fn into_inner(self) -> T {
            self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T: ?Sized> Mutex<T> {
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard { lock: self, held: Some(self.lock_inner()) }
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            Some(MutexGuard { lock: self, held: Some(ignore_poison(self.0.try_lock())?) })
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }

        fn lock_inner(&self) -> sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T: ?Sized> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.held.as_ref().expect("held outside a wait")
        }
    }

    impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.held.as_mut().expect("held outside a wait")
        }
    }

    pub(crate) struct Condvar(sync::Condvar);

    impl Condvar {
        const_unless_loom! {
            pub(crate) const fn new() -> Self {
                Self(sync::Condvar::new())
            }
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.held.take().expect("held outside a wait");
            guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }

        /// The time runs out at once, after a chance for the other threads to run.
        pub(crate) fn wait_timeout<T>(&self, guard: &mut MutexGuard<'_, T>, _timeout: Duration) -> bool {
            guard.held = None;
            thread::yield_now();
            guard.held = Some(guard.lock.lock_inner());
            true
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    pub(crate) struct RwLock<T>(sync::RwLock<T>);
    pub(crate) use super::sync::{RwLockReadGuard, RwLockWriteGuard};

    impl<T> RwLock<T> {
        const_unless_loom! {
            pub(crate) const fn new(value: T) -> Self {
                Self(sync::RwLock::new(value))
            }
        }

        pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            ignore_poison(self.0.try_read())
        }

        pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            ignore_poison(self.0.try_write())
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn into_inner(self) -> T {
            self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
        }
    }

    fn ignore_poison<G>(result: TryLockResult<G>) -> Option<G> {
        match result {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

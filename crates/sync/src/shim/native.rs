//! The ordinary build: the standard library, with `parking_lot` for locks.

use std::num::NonZero;
use std::sync::OnceLock;

pub use std::hint::spin_loop;
pub use std::thread_local;

/// Atomic types and orderings.
pub mod atomic {
    pub use std::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };
}

/// Threads.
pub mod thread {
    pub use std::thread::{Builder, JoinHandle, ThreadId, current, panicking, spawn, yield_now};

    /// Starts a thread that debuggers and stall reports show as `name`.
    ///
    /// # Panics
    /// If the system cannot create a thread.
    pub fn spawn_named<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        Builder::new().name(name.to_owned()).spawn(f).expect("the system can create a thread")
    }

    /// The name of the calling thread, if it has one.
    pub fn current_name() -> Option<String> {
        current().name().map(str::to_owned)
    }
}

/// Locks without ranks, for the inside of this crate only.
pub(crate) mod raw {
    pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

    /// A condition variable; `wait_timeout` returns true if the time ran out.
    pub(crate) struct Condvar(parking_lot::Condvar);

    impl Condvar {
        pub(crate) const fn new() -> Self {
            Self(parking_lot::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            self.0.wait(guard);
        }

        pub(crate) fn wait_timeout<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: std::time::Duration) -> bool {
            self.0.wait_for(guard, timeout).timed_out()
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

/// Repeats the check for about the time of a short critical section, far less than a futex call takes. Returns whether
/// the condition came true. Bounded, since the thread that will make it true may have been preempted on this very CPU.
pub(crate) fn spin_until(mut condition: impl FnMut() -> bool) -> bool {
    const LIMIT: u32 = 64;
    for _ in 0..LIMIT {
        if condition() {
            return true;
        }
        spin_loop();
    }
    condition()
}

/// How long a grace period waits for one reader before it reports a stall, and between reports.
pub(crate) const STALL_PERIOD: Option<std::time::Duration> = Some(std::time::Duration::from_secs(1));

/// A full memory barrier: no access moves across it, in either direction.
#[inline]
pub fn smp_mb() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// The CPU that this thread ran on a moment ago. The thread may have moved since: this is a hint, and does not grant
/// exclusive access.
#[inline]
pub(crate) fn cpu_hint() -> usize {
    super::syscall::current_cpu()
}

/// The number of CPUs that this process may use, at least one. Queried once: the system takes tens of microseconds to
/// answer, too long to query it for a sharded object of each of many cgroups.
pub(crate) fn nr_cpus() -> usize {
    static NR_CPUS: OnceLock<usize> = OnceLock::new();
    *NR_CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZero::get))
}

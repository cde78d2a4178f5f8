//! The scheduler and the memory, in three interchangeable builds.
//!
//! This folder is the only place that names `std::sync`, `std::thread`, loom or shuttle. Code that imports from here
//! can run on the machine, under loom or under shuttle without a change.
//!
//! | item | ordinary | loom | shuttle |
//! |---|---|---|---|
//! | [`atomic`] | std | modelled, constructors are not `const` | modelled, always sequentially consistent |
//! | [`Arc`], [`Weak`] | std | std: loom has no `Weak`; a drop is no scheduling point | std, by its own choice |
//! | [`cell`] | std | every access is checked for data races | std |
//! | [`thread`], [`thread_local!`](crate::shim::thread_local) | std | modelled | modelled |
//! | [`OnceLock`] | std | std: the initialiser must not reach a modelled access | std: likewise |
//! | [`futex_wait`] and wakes | the system call | a queue behind one modelled lock | likewise |
//! | [`smp_mb`] | `fence(SeqCst)` | the same, made a scheduling point | nothing: memory is strong |
//! | [`Asym`] | membarrier or full fences | two models of it, see there | nothing |
//! | `Watched` | nothing | a read of it after its memory was freed is found | nothing |
//!
//! Where a stand-in is stronger than the real thing, its own documentation says so.

mod asym;
#[cfg(not(slackwater_loom))]
pub mod cell;
#[cfg(slackwater_loom)]
mod loom;
#[cfg(any(slackwater_loom, slackwater_shuttle))]
mod modelled;
#[cfg(not(any(slackwater_loom, slackwater_shuttle)))]
mod native;
#[cfg(slackwater_shuttle)]
mod shuttle;
mod site;
#[cfg(not(any(slackwater_loom, slackwater_shuttle)))]
mod syscall;
#[cfg(not(slackwater_loom))]
mod watched;

#[cfg(slackwater_loom)]
use self::loom as build;
#[cfg(not(any(slackwater_loom, slackwater_shuttle)))]
use self::native as build;
#[cfg(slackwater_shuttle)]
use self::shuttle as build;

pub use self::asym::{Asym, Fences, Token};
#[cfg(slackwater_loom)]
pub use self::build::cell;
#[cfg(any(slackwater_loom, slackwater_shuttle))]
pub use self::build::model;
pub use self::build::{atomic, smp_mb, spin_loop, thread, thread_local};
#[cfg(any(slackwater_loom, slackwater_shuttle))]
pub use self::modelled::{futex_wait, futex_wake_all, futex_wake_one};
pub use self::site::Site;
#[cfg(not(any(slackwater_loom, slackwater_shuttle)))]
pub use self::syscall::{futex_wait, futex_wake_all, futex_wake_one};
pub use ::std::sync::{Arc, OnceLock, Weak};

#[cfg(slackwater_loom)]
pub(crate) use self::build::Watched;
pub(crate) use self::build::{STALL_PERIOD, cpu_hint, nr_cpus, raw, spin_until};
#[cfg(not(slackwater_loom))]
pub(crate) use self::watched::Watched;

/// A number that no other call in this process returns. Never zero, and not modelled.
pub(crate) fn unique_id() -> u64 {
    use ::std::sync::atomic::{AtomicU64, Ordering};
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Declares a function `const`, except under loom, whose atomics and locks are created at run time.
macro_rules! const_unless_loom {
    ($(#[$attr:meta])* $vis:vis const fn $($rest:tt)*) => {
        #[cfg(not(slackwater_loom))]
        $(#[$attr])* $vis const fn $($rest)*
        #[cfg(slackwater_loom)]
        $(#[$attr])* $vis fn $($rest)*
    };
}
pub(crate) use const_unless_loom;

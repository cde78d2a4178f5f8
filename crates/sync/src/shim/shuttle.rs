//! The random build: random schedules and strong memory.
//!
//! Every access is sequentially consistent, whatever ordering it names, so a pass proves nothing about orderings.

use super::Site;
use super::asym::Fences;

pub(crate) use super::modelled::{cpu_hint, nr_cpus, raw, spin_until};
pub use crate::modelled_thread_local as thread_local;
pub use ::shuttle::hint::spin_loop;

/// Atomic types and orderings.
pub mod atomic {
    pub use ::shuttle::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };
}

/// Threads.
pub mod thread {
    pub use ::shuttle::thread::{Builder, JoinHandle, ThreadId, current, panicking, spawn, yield_now};

    /// Starts a thread called `name`.
    ///
    /// # Panics
    /// Never; the signature is that of the ordinary build.
    pub fn spawn_named<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        Builder::new().name(name.to_owned()).spawn(f).expect("the model can create a thread")
    }

    /// The name of the calling thread, if it has one.
    pub fn current_name() -> Option<String> {
        current().name().map(str::to_owned)
    }
}

/// No watchdog: a lost wake must show as a deadlock.
pub(crate) const STALL_PERIOD: Option<std::time::Duration> = None;

/// A full memory barrier: nothing to do.
pub fn smp_mb() {}

/// The state of one reader in the model of a fence; empty here.
pub struct Token(());

impl Token {
    /// The token of one reader.
    #[allow(clippy::new_without_default, reason = "one way to make a token is enough")]
    pub fn new() -> Self {
        Self(())
    }
}

/// A pair of asymmetric fences, both empty here.
#[derive(Clone, Copy)]
pub struct Asym(Fences);

impl Asym {
    /// Fences of the requested kind.
    pub fn new(wanted: Fences) -> Self {
        Self(wanted)
    }

    /// The kind in use.
    pub fn fences(self) -> Fences {
        self.0
    }

    /// The frequent side.
    pub fn light(self, _site: Site, _token: &Token) {}

    /// The rare side.
    pub fn heavy<'t>(self, _site: Site, _tokens: impl Iterator<Item = &'t Token>) {}

    /// The rare side.
    pub fn heavy_patient<'t>(self, _site: Site, _tokens: impl Iterator<Item = &'t Token>) {}
}

/// Running a scenario under shuttle.
pub mod model {
    pub use ::shuttle::thread_local as model_thread_local;

    /// Runs `scenario` under `executions` random schedules, and as many schedules of PCT, which have few but unlucky
    /// switches.
    pub fn check(executions: usize, scenario: fn()) {
        ::shuttle::check_random(scenario, executions);
        ::shuttle::check_pct(scenario, executions, 3);
    }

    /// Runs `scenario` under `executions` random schedules only, which let every thread run from time to time. For
    /// scenarios in which one thread polls until another one is done.
    pub fn check_fair(executions: usize, scenario: fn()) {
        ::shuttle::check_random(scenario, executions);
    }
}

//! The exhaustive build: every interleaving, and every value that a load may return.
//!
//! Loom does not show every error. It performs stores in program order, and a read-modify-write sees the newest value,
//! so a pass proves nothing about such cases. Its fences order more than the language promises: they pass on everything
//! that a thread has seen, not only later accesses.
#![allow(unsafe_code, reason = "a cell that loom watches for data races")]

use ::loom::lazy_static;
use ::loom::sync::atomic::AtomicUsize;

use super::Site;
use super::asym::Fences;
use super::atomic::Ordering;

pub(crate) use super::modelled::{cpu_hint, nr_cpus, raw, spin_until};
pub use crate::modelled_thread_local as thread_local;
pub use ::loom::hint::spin_loop;

/// Atomic types and orderings.
pub mod atomic {
    pub use ::loom::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };
}

/// A cell whose accesses are checked for data races.
pub mod cell {
    pub use ::loom::cell::UnsafeCell;
}

/// Threads.
pub mod thread {
    pub use ::loom::thread::{Builder, JoinHandle, ThreadId, current, panicking, spawn, yield_now};

    /// Starts a thread called `name`.
    ///
    /// # Panics
    /// If there are too many threads for the model.
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

lazy_static! {
    static ref FENCE_POINT: AtomicUsize = AtomicUsize::new(0);
}

/// A full memory barrier.
///
/// Loom switches threads at accesses only, so no switch could happen between two adjacent fences. The access at each
/// fence makes such a switch possible. Without it, a real bug in the grace periods passed.
pub fn smp_mb() {
    FENCE_POINT.fetch_add(1, Ordering::Relaxed);
    ::loom::sync::atomic::fence(Ordering::SeqCst);
}

/// The word of one reader in the model of tokens.
pub struct Token(AtomicUsize);

impl Token {
    /// The token of one reader.
    #[allow(clippy::new_without_default, reason = "one way to make a token is enough")]
    pub fn new() -> Self {
        Self(AtomicUsize::new(0))
    }
}

/// A pair of asymmetric fences, in the model that [`model::asym`] names.
#[derive(Clone, Copy)]
pub struct Asym(model::AsymModel);

impl Asym {
    /// Fences of the model in force; `wanted` applies to the machine only.
    pub fn new(_wanted: Fences) -> Self {
        Self(model::asym())
    }

    /// The kind that the model in force represents.
    pub fn fences(self) -> Fences {
        match self.0 {
            model::AsymModel::Full => Fences::Full,
            model::AsymModel::Tokens => Fences::Membarrier,
        }
    }

    /// The frequent side.
    pub fn light(self, site: Site, token: &Token) {
        self.both(site, std::iter::once(token));
    }

    /// The rare side.
    pub fn heavy<'t>(self, site: Site, tokens: impl Iterator<Item = &'t Token>) {
        self.both(site, tokens);
    }

    /// The rare side; a model has no delays.
    pub fn heavy_patient<'t>(self, site: Site, tokens: impl Iterator<Item = &'t Token>) {
        self.both(site, tokens);
    }

    fn both<'t>(self, site: Site, tokens: impl Iterator<Item = &'t Token>) {
        match self.0 {
            _ if site.is_off() => {}
            model::AsymModel::Full => smp_mb(),
            model::AsymModel::Tokens => {
                for token in tokens {
                    token.0.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
    }
}

/// A mark in memory that is freed by hand: an access that is not ordered before the free fails the scenario.
pub(crate) struct Watched(model::RaceCell<bool>);

impl Watched {
    /// Memory that is in use.
    pub(crate) fn new() -> Self {
        Self(model::RaceCell::new(true))
    }

    /// The memory is read.
    ///
    /// # Panics
    /// If it has been freed, or is freed concurrently.
    pub(crate) fn access(&self) {
        assert!(self.0.get(), "memory read after it was freed");
    }

    /// The memory is about to be freed.
    pub(crate) fn free(&self) {
        self.0.set(false);
    }
}

/// Running a scenario under loom.
pub mod model {
    use std::cell::Cell;
    use std::sync::Arc;

    use ::loom::cell::UnsafeCell;
    pub use ::loom::thread_local as model_thread_local;

    /// How asymmetric fences are modelled; see `asym`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum AsymModel {
        /// Both sides are full barriers.
        Full,
        /// Both sides touch the reader's token.
        Tokens,
    }

    // Per thread of the machine: loom runs all threads of a scenario on the one that started it.
    std::thread_local! {
        static ASYM: Cell<AsymModel> = const { Cell::new(AsymModel::Full) };
        static EXECUTIONS: Cell<usize> = const { Cell::new(0) };
    }

    /// The model in force in this scenario.
    pub fn asym() -> AsymModel {
        ASYM.get()
    }

    /// The number of executions that the scenario on this thread has begun.
    pub fn executions() -> usize {
        EXECUTIONS.get()
    }

    /// Runs every execution of `scenario` with at most `preemptions` involuntary switches, in the given model of the
    /// asymmetric fences. Returns their number, after all of them have run: no limit of time or number applies,
    /// whatever the environment sets.
    pub fn check(asym: AsymModel, preemptions: Option<usize>, scenario: fn()) -> usize {
        let mut builder = ::loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.max_branches = 20_000;
        builder.max_duration = None;
        builder.max_permutations = None;
        ASYM.set(asym);
        EXECUTIONS.set(0);
        builder.check(move || {
            EXECUTIONS.set(EXECUTIONS.get() + 1);
            scenario();
        });
        executions()
    }

    /// A plain value without any ordering of its own: two unordered accesses fail the scenario.
    pub struct RaceCell<T>(UnsafeCell<T>);

    // SAFETY: loom panics at an access that races, before it is made.
    unsafe impl<T: Send> Sync for RaceCell<T> {}

    impl<T: Copy> RaceCell<T> {
        /// A cell that holds `value`.
        pub fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        /// Reads the value.
        pub fn get(&self) -> T {
            // SAFETY: loom has checked that no write races with this read.
            self.0.with(|value| unsafe { *value })
        }

        /// Writes the value.
        pub fn set(&self, value: T) {
            // SAFETY: loom has checked that no access races with this write.
            self.0.with_mut(|old| unsafe { *old = value });
        }
    }

    /// A shared [`RaceCell`].
    pub fn race_cell<T: Copy>(value: T) -> Arc<RaceCell<T>> {
        Arc::new(RaceCell::new(value))
    }
}

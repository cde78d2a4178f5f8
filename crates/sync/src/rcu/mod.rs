//! Read-copy-update: readers that never wait, and writers that wait for readers.
//!
//! A reader brackets its accesses with [`Domain::read_lock`] and its guard. A writer makes an object unreachable, waits for
//! a *grace period*, and frees it: every section that was open when the grace period began has ended by then. A section
//! costs a nanosecond or two; a grace period costs microseconds, or as long as the longest section.
//!
//! There are two kinds of grace period, as in the kernel. A *normal* one is shared by all callers that request one
//! before it starts, is delayed so that more may join, and disturbs no running thread. An *expedited* one starts at
//! once and interrupts the CPUs that run threads of this process.
//!
//! Reading order: this file (the reader), `record` (the state of a reader that writers look at), `grace` (the writer),
//! `callback`, and [`RcuArc`] and [`RcuList`], a pointer and a list that are read and changed this way. [`Srcu`] is
//! separate: its readers may sleep.
//!
//! # Invariants
//! R1. A domain has one record per reading thread. Records are added and reused, and freed only with the domain.
//! R2. A record is zero outside sections. Inside a section it holds the number of the last grace period that had
//!     started when the outermost section began, and the depth. Only the record's thread writes it.
//! R3. A grace period with number `n` has waited for each record that was non-zero and below `n` after its number was set.
//! R4. A thread inside a section neither waits for a grace period nor sleeps otherwise.
//!
//! # Memory ordering
//! O1. [`Site::RcuEnterLight`] with [`Site::RcuGraceHeavy`]: the reader announces itself, then reads pointers; the
//!     writer changes pointers, then looks for readers. Without either barrier, the writer may find no reader while the
//!     reader finds the old pointer, which is then freed.
//! O2. [`Site::RcuNumberRelease`] with [`Site::RcuNumberAcquire`]: a reader that enters under the new number is not
//!     waited for, so it must see what was published before the number. Without it, the reader may combine the new
//!     number with the old pointer.
//! O3. [`Site::RcuExitRelease`] and [`Site::RcuEnterRelease`] with the barrier at the end of the grace period:
//!     whichever value of a record lets the writer continue, all earlier sections of that reader happened before.
//! O4. [`Site::RcuExitLight`] with [`Site::RcuSleepHeavy`]: the reader ends its section, then looks for sleepers; the
//!     writer marks itself as a sleeper, then looks at the section again. Without either, the wake is lost.
//! O5. [`Site::RcuEndFence`]: a third thread that is ordered after the writer, by a barrier of its own, is also ordered
//!     after the sections. Without it, the order ends at the writer.
//!
//! # Kernel counterpart
//! `rcu_read_lock`, `synchronize_rcu`, `synchronize_rcu_expedited`, `call_rcu`, `rcu_barrier`. Differs: sections may be
//! preempted, there may be several domains, and a leaked guard stalls its domain forever.

mod arc;
mod callback;
mod grace;
mod list;
mod record;
mod srcu;
#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests;
mod waits;

use std::marker::PhantomData;
use std::time::Duration;

pub use self::arc::RcuArc;
use self::callback::Callbacks;
use self::grace::{Kind, Progress};
pub use self::list::{Iter, RcuList};
use self::record::{Record, Records};
pub use self::srcu::{Srcu, SrcuGuard};
pub use self::waits::{Wait, waits_during};
use crate::lock::{enter_read_section, exit_read_section};
use crate::shim::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::shim::thread::JoinHandle;
use crate::shim::{Arc, Asym, Fences, Site, raw};

/// Grace-period numbers count in steps of this size, so that the low bits of a record can hold the depth.
const STEP: u64 = 1 << 8;
const DEPTH: u64 = STEP - 1;

/// The settings of a domain.
pub struct Options {
    /// The fences between readers and writers.
    pub fences: Fences,
    /// How long a normal grace period waits for others to join before it starts.
    pub coalesce: Duration,
    /// Called each time a grace period has waited a further second for one reader. Must not panic.
    pub on_stall: Box<dyn Fn(&Stall<'_>) + Send + Sync>,
}

/// A reader that delays a grace period.
#[derive(Debug)]
pub struct Stall<'a> {
    /// The name of the reader's thread.
    pub reader: &'a str,
    /// How long this grace period has slept in all, for this reader and others.
    pub waited: Duration,
}

/// A set of readers and the writers that wait for them.
pub struct Domain {
    core: Arc<Core>,
    /// Started by the first callback.
    worker: raw::Mutex<Option<JoinHandle<()>>>,
    has_worker: AtomicBool,
}

/// An open read section, until dropped. Sections nest, and may end in any order.
#[must_use = "the section ends when the guard is dropped"]
pub struct Guard<'d> {
    core: &'d Core,
    record: &'d Record,
    /// A section belongs to its thread.
    _not_send: PhantomData<*const ()>,
}

/// The state that readers, writers and the callback worker share.
struct Core {
    id: u64,
    number: AtomicU64,
    asym: Asym,
    options: Options,
    records: Records,
    progress: Progress,
    callbacks: Callbacks,
}

impl Default for Options {
    /// Membarrier where there is one, one millisecond to join, stalls ignored.
    fn default() -> Self {
        Self { fences: Fences::Membarrier, coalesce: Duration::from_millis(1), on_stall: Box::new(|_| {}) }
    }
}

impl Domain {
    /// A domain with the default options.
    pub fn new() -> Self {
        Self::with(Options::default())
    }

    /// A domain with these options. Create the first one with membarrier fences while the process has one thread: then
    /// it takes a microsecond, later some ten milliseconds.
    pub fn with(options: Options) -> Self {
        let core = Core {
            id: crate::shim::unique_id(),
            number: AtomicU64::new(STEP),
            asym: Asym::new(options.fences),
            options,
            records: Records::new(),
            progress: Progress::new(),
            callbacks: Callbacks::new(),
        };
        Self { core: Arc::new(core), worker: raw::Mutex::new(None), has_worker: AtomicBool::new(false) }
    }

    /// The fences in use: the requested ones, or full ones where the system has no membarrier.
    pub fn fences(&self) -> Fences {
        self.core.asym.fences()
    }

    /// Opens a read section.
    ///
    /// # Blocking
    /// Never, except that a thread's first section takes a short lock. The section must not sleep (R4).
    ///
    /// # Panics
    /// At a depth of 255, and if called while the thread's local data are being destroyed.
    #[inline]
    pub fn read_lock(&self) -> Guard<'_> {
        let record = record::of_this_thread(&self.core);
        self.core.enter(record);
        enter_read_section();
        Guard { core: &self.core, record, _not_send: PhantomData }
    }

    /// Waits for a normal grace period.
    ///
    /// # Blocking
    /// Until every section open now has ended, and for some milliseconds more: it waits for others to join, and if the
    /// fences are a membarrier, uses the patient one.
    ///
    /// # Panics
    /// Inside a read section of this domain.
    #[track_caller]
    pub fn synchronize(&self) {
        self.core.assert_outside();
        waits::note(Wait::Normal);
        self.core.wait_for_grace(Kind::Normal);
    }

    /// Waits for an expedited grace period.
    ///
    /// # Blocking
    /// Until every section open now has ended. Interrupts the CPUs that run threads of this process, if the fences are a
    /// membarrier.
    ///
    /// # Panics
    /// Inside a read section of this domain.
    #[track_caller]
    pub fn synchronize_expedited(&self) {
        self.core.assert_outside();
        waits::note(Wait::Expedited);
        self.core.wait_for_grace(Kind::Expedited);
    }

    /// Runs `f` on the domain's worker thread after a normal grace period.
    ///
    /// # Blocking
    /// Never, except that the first call starts the worker: usable under any lock and inside sections. `f` must not panic,
    /// nor wait for callbacks.
    pub fn call(&self, f: impl FnOnce() + Send + 'static) {
        if !self.has_worker.load(Ordering::Relaxed) {
            self.start_worker();
        }
        self.core.callbacks.push(f);
        self.core.callbacks.kick();
    }

    #[cold]
    fn start_worker(&self) {
        let mut worker = self.worker.lock();
        if worker.is_none() {
            *worker = Some(callback::start_worker(Arc::clone(&self.core)));
            self.has_worker.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until every callback of earlier [`Domain::call`]s has run.
    ///
    /// # Blocking
    /// For a normal grace period and the earlier callbacks.
    ///
    /// # Panics
    /// Inside a read section of this domain.
    #[track_caller]
    pub fn barrier(&self) {
        self.core.assert_outside();
        waits::note(Wait::Barrier);
        let reached = Arc::new(crate::Completion::new());
        let sentinel = Arc::clone(&reached);
        self.call(move || sentinel.complete());
        reached.wait();
    }
}

impl Default for Domain {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Domain {
    /// Runs the remaining callbacks.
    fn drop(&mut self) {
        if let Some(worker) = self.worker.get_mut().take() {
            self.core.callbacks.stop();
            // A callback may own the last reference to its domain: then this thread is the worker, which cannot join
            // itself and ends on its own.
            if worker.thread().id() != crate::shim::thread::current().id() {
                let _ = worker.join();
            }
        }
    }
}

impl Core {
    #[inline]
    fn enter(&self, record: &Record) {
        let now = record.section.load(Ordering::Relaxed);
        if now == 0 {
            // O2, O3.
            let number = self.number.load(Site::RcuNumberAcquire.order(Ordering::Acquire));
            record.section.store(number + 1, Site::RcuEnterRelease.order(Ordering::Release));
            // O1: pairs with the heavy side at the start of a grace period.
            self.asym.light(Site::RcuEnterLight, &record.token);
        } else {
            assert!(now & DEPTH != DEPTH, "read sections nested too deep");
            record.section.store(now + 1, Site::RcuEnterRelease.order(Ordering::Release));
        }
    }

    #[inline]
    fn exit(&self, record: &Record) {
        let now = record.section.load(Ordering::Relaxed);
        if now & DEPTH == 1 {
            // O3.
            record.section.store(0, Site::RcuExitRelease.order(Ordering::Release));
            // O4: pairs with the heavy side before a writer sleeps.
            self.asym.light(Site::RcuExitLight, &record.token);
            if record.sleepers.load(Ordering::Relaxed) != 0 {
                record.wake_sleepers();
            }
        } else {
            record.section.store(now - 1, Site::RcuEnterRelease.order(Ordering::Release));
        }
    }

    #[track_caller]
    fn assert_outside(&self) {
        assert!(!record::is_reading(self), "waiting for a grace period inside a read section would never end");
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        exit_read_section();
        self.core.exit(self.record);
    }
}

/// The domain of the whole process, with the default options unless [`init_global`] came first. Call one of the two early
/// in `main`; see [`Domain::with`].
#[cfg(not(any(slackwater_loom, slackwater_shuttle)))]
#[inline]
pub fn global() -> &'static Domain {
    GLOBAL.get_or_init(Domain::new)
}

/// Sets up the domain of the whole process. Returns false, and changes nothing, if it is in use already.
#[cfg(not(any(slackwater_loom, slackwater_shuttle)))]
pub fn init_global(options: Options) -> bool {
    let mut options = Some(options);
    GLOBAL.get_or_init(|| options.take().map_or_else(Domain::new, Domain::with));
    options.is_none()
}

#[cfg(not(any(slackwater_loom, slackwater_shuttle)))]
static GLOBAL: crate::shim::OnceLock<Domain> = crate::shim::OnceLock::new();

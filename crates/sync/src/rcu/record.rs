//! The record of each reading thread, which writers look at, and how a thread finds its own.
//!
//! # Invariants
//! R1 of the parent module makes the cached pointer sound: it is used only with the domain whose number is cached
//! beside it, numbers are never reused, and the records of a domain stay while it is borrowed.
//!
//! # Memory ordering
//! A thread registers and a writer takes its list of records under one lock. A writer that misses a record took the
//! lock first. The record's thread therefore sees what the writer had published, and the writer need not wait for it. A
//! record passes from one thread to another under the same lock.
#![allow(unsafe_code, reason = "the hot path goes to the thread's record by pointer")]

use std::cell::{Cell, RefCell};

use super::Core;
use crate::shim::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::shim::{Arc, Token, Weak, futex_wake_all, raw, thread, thread_local};

/// The record of one thread in a domain. Alone on its cache lines: the owner writes it at each section.
#[repr(align(128))]
pub(super) struct Record {
    /// R2.
    pub(super) section: AtomicU64,
    /// A bit for each kind of grace period that sleeps, or is about to sleep, until the section ends. Also the futex
    /// word.
    pub(super) sleepers: AtomicU32,
    pub(super) token: Token,
    owner: raw::Mutex<String>,
}

/// The records of a domain.
pub(super) struct Records {
    lists: raw::Mutex<Lists>,
}

struct Lists {
    /// Replaced as a whole, so that a writer can keep the list it started with.
    all: Arc<[Arc<Record>]>,
    /// Left by threads that have ended.
    idle: Vec<Arc<Record>>,
}

/// A record in use by this thread; returned when the thread ends.
struct Lease {
    domain: u64,
    core: Weak<Core>,
    record: Arc<Record>,
}

thread_local! {
    /// The record used last, and its domain. It has no destructor, so that reading it is one load.
    static LAST_USED: Cell<(u64, *const Record)> = const { Cell::new((0, std::ptr::null())) };
    static LEASES: RefCell<Vec<Lease>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread's record in this domain.
#[inline]
pub(super) fn of_this_thread(core: &Arc<Core>) -> &Record {
    let (domain, record) = LAST_USED.with(Cell::get);
    let record = if domain == core.id { record } else { look_up(core) };
    // SAFETY: R1 - the record belongs to this domain, which is borrowed for as long as the result.
    unsafe { &*record }
}

/// Whether the calling thread is inside a section of this domain.
pub(super) fn is_reading(core: &Core) -> bool {
    let is_open = |lease: &Lease| lease.domain == core.id && lease.record.section.load(Ordering::Relaxed) != 0;
    LEASES.try_with(|leases| leases.borrow().iter().any(is_open)).unwrap_or(false)
}

#[cold]
fn look_up(core: &Arc<Core>) -> *const Record {
    let record = LEASES.with(|leases| {
        let mut leases = leases.borrow_mut();
        if let Some(lease) = leases.iter().find(|lease| lease.domain == core.id) {
            return Arc::as_ptr(&lease.record);
        }
        // A thread may outlive many domains.
        leases.retain(|lease| lease.core.strong_count() > 0);
        let record = core.records.acquire();
        let pointer = Arc::as_ptr(&record);
        leases.push(Lease { domain: core.id, core: Arc::downgrade(core), record });
        pointer
    });
    LAST_USED.with(|last| last.set((core.id, record)));
    record
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = LAST_USED.try_with(|last| {
            if last.get().0 == self.domain {
                last.set((0, std::ptr::null()));
            }
        });
        if let Some(core) = self.core.upgrade() {
            core.records.release(&self.record);
        }
    }
}

impl Records {
    pub(super) fn new() -> Self {
        Self { lists: raw::Mutex::new(Lists { all: Arc::new([]), idle: Vec::new() }) }
    }

    /// All current records. Later ones belong to readers that a writer need not wait for.
    pub(super) fn snapshot(&self) -> Arc<[Arc<Record>]> {
        Arc::clone(&self.lists.lock().all)
    }

    fn acquire(&self) -> Arc<Record> {
        let name = thread::current_name().unwrap_or_else(|| "unnamed".to_owned());
        let mut lists = self.lists.lock();
        if let Some(record) = lists.idle.pop() {
            *record.owner.lock() = name;
            return record;
        }
        let record = Arc::new(Record {
            section: AtomicU64::new(0),
            sleepers: AtomicU32::new(0),
            token: Token::new(),
            owner: raw::Mutex::new(name),
        });
        lists.all = lists.all.iter().cloned().chain([Arc::clone(&record)]).collect();
        record
    }

    fn release(&self, record: &Arc<Record>) {
        // A leaked guard is a section that never ends: its record is kept, so that stall reports can name it.
        if record.section.load(Ordering::Relaxed) == 0 {
            self.lists.lock().idle.push(Arc::clone(record));
        }
    }

    /// The number of records, in use or idle.
    #[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
    pub(super) fn len(&self) -> usize {
        self.snapshot().len()
    }
}

impl Record {
    /// Whether the grace period `number` no longer needs to wait for this reader.
    ///
    /// Acquire is more than needed, since the barrier at the end of the grace period follows. It is free on x86, and
    /// avoids false reports from race detectors that do not follow barriers.
    pub(super) fn has_passed(&self, number: u64) -> bool {
        let section = self.section.load(Ordering::Acquire);
        section == 0 || section >= number
    }

    #[cold]
    pub(super) fn wake_sleepers(&self) {
        self.sleepers.swap(0, Ordering::Relaxed);
        futex_wake_all(&self.sleepers);
    }

    /// The name of the thread that uses this record, or was the last to use it.
    pub(super) fn owner(&self) -> String {
        self.owner.lock().clone()
    }
}

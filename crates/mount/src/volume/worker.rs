//! One worker thread per volume for everything that waits. It retries parked writes when frames become free, and pages
//! from mappings ([`super::mapped_writes`]). It flushes stores that only the kernel has ([`super::mapped_flush`]) and
//! sends held replies when they are due ([`super::paused`]). It also watches interrupted callers, which may be killed
//! later. It is started on demand and exits after ten idle seconds, since there may be thousands of volumes, most of
//! them idle.
//!
//! # Invariants
//! A1. Parked writes of a tenant are tried in order of arrival, so that a later write does not take a frame from an
//!     earlier one. Tenants take turns, since one may be at its limit while there are frames for the others. The worker
//!     never waits for a backend: a write that needs it goes to a thread of its own.
//! A2. `Node::parked` counts a node's writes from when they are parked until they are answered, so that a later write
//!     queues behind them.
//! A3. Parked payload is limited to [`TENANT_BYTES`] per tenant, [`VOLUME_BYTES`] per volume and [`TOTAL_BYTES`] for
//!     the process, except for [`KEPT_BYTES`] of each write. Payload that is not kept is not written: the count
//!     returned is short.
//! A4. While a write is parked or a reply is held, the worker runs or is being started. It decides to exit under the
//!     lock, and only when nothing waits. If no thread can be started, each parked write is answered with the count taken
//!     so far or EINTR, so that the program retries. Held replies are sent. Only watched callers and pages from mappings
//!     wait for the next worker.
//! A5. All watched callers are checked together, at most every [`RETRY_INTERVAL`]. The checks take at most one part in
//!     [`CHECK_SHARE`] of the worker's time, however many callers are watched.
//!
//! # Lock order
//! The queue's lock comes before those of the held replies and of the mapped writes, and before no other. A write is
//! taken out of the queue to be tried.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use slackwater::{MemcgId, Tick};
use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};
use slackwater_sync::shim::{Arc, Weak, thread};

use crate::lock_order::{LEAF, WORKER};
use crate::volume::Volume;
use crate::volume::blocking::CountGuard;
use crate::volume::callers::{Caller, PendingCall, early_answer};
use crate::volume::mapped_flush::MappedFlush;
use crate::volume::mapped_writes::MappedWrites;
use crate::volume::nodes::Node;
use crate::volume::paused::PausedReplies;
use crate::volume::writes::{Attempt, Write};

/// Limit of one tenant's parked payload on one volume. The root tenant's limit is that of the volume.
const TENANT_BYTES: usize = 16 << 20;
/// Limit of one volume's parked payload.
const VOLUME_BYTES: usize = 64 << 20;
/// Limit of the process's parked payload.
const TOTAL_BYTES: usize = 256 << 20;
/// Payload kept of each write beyond these limits.
const KEPT_BYTES: usize = 64 << 10;
/// Limit of one volume's threads for parked writes that must wait for the backend.
const THREADS_MAX: usize = 16;
/// How often watched callers are checked; also the longest effect of a missed wake-up.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// A5.
const CHECK_SHARE: u32 = 5;
/// How long the worker stays idle before it exits.
const IDLE: Duration = Duration::from_secs(10);

static TOTAL: AtomicUsize = AtomicUsize::new(0);

/// A write that waits for a free frame.
struct ParkedWrite {
    waiting: PendingCall,
    write: Write,
    payload: ParkedPayload,
    _turn: NodeTurn,
}

/// A write's place behind earlier writes to its node (A2).
struct NodeTurn(Arc<Node>);

impl NodeTurn {
    fn new(node: &Arc<Node>) -> Self {
        node.parked.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(node))
    }
}

impl Drop for NodeTurn {
    fn drop(&mut self) {
        self.0.parked.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Payload of a parked write, counted against all three limits.
struct ParkedPayload {
    bytes: Vec<u8>,
    /// Bytes that the write had taken before these.
    base: usize,
    tenant: Arc<AtomicUsize>,
    volume: Arc<AtomicUsize>,
}

impl ParkedPayload {
    /// A copy of `rest`, or of as much as may be kept (A3).
    fn keep(rest: &[u8], write: &Write, tenant: Arc<AtomicUsize>, volume: &Arc<AtomicUsize>) -> Self {
        let tenant_bytes = if write.memcg.id() == MemcgId::ROOT { VOLUME_BYTES } else { TENANT_BYTES };
        let add = |counter: &AtomicUsize| counter.fetch_add(rest.len(), Ordering::Relaxed) + rest.len();
        let is_over = (add(&tenant) > tenant_bytes) | (add(volume) > VOLUME_BYTES) | (add(&TOTAL) > TOTAL_BYTES);
        let kept = if is_over { &rest[..rest.len().min(KEPT_BYTES)] } else { rest };
        for counter in [&tenant, volume, &TOTAL] {
            counter.fetch_sub(rest.len() - kept.len(), Ordering::Relaxed);
        }
        Self { bytes: kept.to_vec(), base: write.taken, tenant, volume: Arc::clone(volume) }
    }

    /// The part that `write` has not taken yet.
    fn left(&self, write: &Write) -> &[u8] {
        &self.bytes[write.taken - self.base..]
    }
}

impl Drop for ParkedPayload {
    fn drop(&mut self) {
        for counter in [&*self.tenant, &*self.volume, &TOTAL] {
            counter.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        }
    }
}

/// The worker of a volume, and what waits for it.
pub(super) struct Worker {
    pub(super) paused: PausedReplies,
    pub(super) mapped_writes: MappedWrites,
    pub(super) mapped_flush: MappedFlush,
    queue: Mutex<Queue>,
    changed: Condvar,
    parked_bytes: Arc<AtomicUsize>,
    /// Threads for parked writes that wait for the backend.
    blocking_threads: Arc<AtomicUsize>,
}

/// The parked writes of one tenant.
#[derive(Default)]
struct TenantQueue {
    writes: VecDeque<ParkedWrite>,
    bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Queue {
    /// No tenant's queue is empty.
    parked: BTreeMap<MemcgId, TenantQueue>,
    watched: Vec<Weak<Caller>>,
    /// When the watched callers are checked (A5).
    check_due: Tick,
    /// A caller whose write may be parked was released.
    has_released: bool,
    /// A worker runs or is being started (A4).
    has_thread: bool,
    stopping: bool,
}

impl Worker {
    pub(super) fn new() -> Self {
        Self {
            paused: PausedReplies::new(),
            mapped_writes: MappedWrites::new(),
            mapped_flush: MappedFlush::new(),
            queue: Mutex::new(WORKER, Queue::default()),
            changed: Condvar::new(),
            parked_bytes: Arc::default(),
            blocking_threads: Arc::default(),
        }
    }

    /// Bytes of parked writes and of pages from mappings.
    pub(super) fn parked_bytes(&self) -> usize {
        self.parked_bytes.load(Ordering::Relaxed) + self.mapped_writes.bytes()
    }

    /// Reserves a thread that may wait for the backend, until the guard is dropped. `None` at the limit.
    pub(super) fn reserve_thread(&self) -> Option<CountGuard> {
        (self.blocking_threads.load(Ordering::Relaxed) < THREADS_MAX).then(|| CountGuard::new(&self.blocking_threads))
    }

    /// Number of parked writes, without those being tried at this moment.
    pub(super) fn parked(&self) -> usize {
        self.queue.lock().parked.values().map(|of| of.writes.len()).sum()
    }

    /// The counter of parked payload for the tenant of `write`.
    fn tenant_bytes(&self, write: &Write) -> Arc<AtomicUsize> {
        let queue = self.queue.lock();
        queue.parked.get(&write.memcg.id()).map(|of| Arc::clone(&of.bytes)).unwrap_or_default()
    }

    /// A caller whose write may be parked was released.
    pub(super) fn caller_released(&self) {
        self.queue.lock().has_released = true;
        self.changed.notify_one();
    }

    /// Ends the worker. Parked writes get EIO.
    pub(super) fn stop(&self) {
        self.queue.lock().stopping = true;
        self.changed.notify_one();
    }

    fn is_stopping(&self) -> bool {
        self.queue.lock().stopping
    }

    /// Waits for work; if only held replies and flushes are pending, until the first is due. Returns false when the
    /// worker must exit, after the idle time or because the volume ends.
    fn wait_for_work(&self, now: impl Fn() -> Tick) -> bool {
        let mut queue = self.queue.lock();
        loop {
            let due = self.paused.first().into_iter().chain(self.mapped_flush.due()).chain(queue.check_due());
            let due = due.min().map(|due| due.since(now()));
            let is_parked = !queue.parked.is_empty() || !self.mapped_writes.is_empty();
            if !queue.stopping && (is_parked || due == Some(Duration::ZERO)) {
                return true;
            }
            let is_late = !queue.stopping && self.changed.wait_timeout(&mut queue, due.unwrap_or(IDLE));
            let is_idle = is_late && due.is_none() && queue.is_empty() && self.paused.first().is_none();
            if queue.stopping || is_idle {
                queue.has_thread = false; // A4
                return false;
            }
        }
    }

    /// The tenants that have parked writes. Drops the writes of released callers, to free their payload.
    fn parked_tenants(&self) -> Vec<MemcgId> {
        let mut queue = self.queue.lock();
        if std::mem::take(&mut queue.has_released) {
            let mut all = std::mem::take(&mut queue.parked);
            drop(queue);
            all.values_mut().for_each(|of| of.writes.retain(|parked| parked.waiting.lock().is_some()));
            queue = self.queue.lock();
            for (tenant, mut earlier) in all {
                let of = queue
                    .parked
                    .entry(tenant)
                    .or_insert_with(|| TenantQueue { bytes: Arc::clone(&earlier.bytes), ..TenantQueue::default() });
                earlier.writes.append(&mut of.writes);
                of.writes = earlier.writes;
            }
            queue.parked.retain(|_, of| !of.writes.is_empty());
        }
        queue.parked.keys().copied().collect()
    }

    /// The next write of `tenant` to try.
    fn next_write(&self, tenant: MemcgId) -> Option<ParkedWrite> {
        let mut queue = self.queue.lock();
        let of = queue.parked.get_mut(&tenant)?;
        let next = of.writes.pop_front();
        if of.writes.is_empty() {
            queue.parked.remove(&tenant);
        }
        next
    }

    /// Puts a write that found no frame back at the head of its tenant's queue.
    fn put_back(&self, parked: ParkedWrite) {
        self.queue.lock().queue_of(&parked).writes.push_front(parked);
    }

    /// The worker could not be started: takes the parked writes that relied on it.
    fn take_stranded(&self) -> BTreeMap<MemcgId, TenantQueue> {
        let mut queue = self.queue.lock();
        queue.has_thread = false;
        std::mem::take(&mut queue.parked)
    }

    /// Drops the parked writes; each held reply answers EIO when dropped.
    fn fail_parked(&self) {
        let failed = std::mem::take(&mut self.queue.lock().parked);
        drop(failed);
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.parked.is_empty() && self.watched.is_empty()
    }

    /// When watched callers are to be checked, if there are any.
    fn check_due(&self) -> Option<Tick> {
        (!self.watched.is_empty()).then_some(self.check_due)
    }

    /// The queue that `parked` belongs to. The tenant keeps its byte counter even while its last write is out to be
    /// tried.
    fn queue_of(&mut self, parked: &ParkedWrite) -> &mut TenantQueue {
        let bytes = &parked.payload.tenant;
        let of = || TenantQueue { bytes: Arc::clone(bytes), ..TenantQueue::default() };
        self.parked.entry(parked.write.memcg.id()).or_insert_with(of)
    }
}

impl Volume {
    /// Parks a write with the rest of its payload until a frame is free.
    pub(super) fn park(self: &Arc<Self>, waiting: PendingCall, write: Write, rest: &[u8]) {
        let tenant = self.worker.tenant_bytes(&write);
        let payload = ParkedPayload::keep(rest, &write, tenant, &self.worker.parked_bytes);
        let turn = NodeTurn::new(&write.open.node);
        if !waiting.allow_early_answer(&write) {
            return;
        }
        let parked = ParkedWrite { _turn: turn, waiting, write, payload };
        self.wake_worker_with(|queue| queue.queue_of(&parked).writes.push_back(parked));
    }

    /// Watches an interrupted caller.
    pub(super) fn watch_caller(self: &Arc<Self>, caller: Weak<Caller>) {
        self.wake_worker_with(|queue| queue.watched.push(caller));
    }

    /// Wakes the worker: a reply is due earlier than any before, a page from a mapping waits, or a flush is scheduled.
    pub(super) fn wake_worker(self: &Arc<Self>) {
        self.wake_worker_with(|_| {});
    }

    /// Adds work to the queue by `add` and wakes the worker, or starts it (A4).
    fn wake_worker_with(self: &Arc<Self>, add: impl FnOnce(&mut Queue)) {
        let has_thread = {
            // Also for replies and flushes: the worker reads the first due time under this lock before it sleeps.
            let mut queue = self.worker.queue.lock();
            add(&mut queue);
            std::mem::replace(&mut queue.has_thread, true)
        };
        if has_thread {
            self.worker.changed.notify_one();
            return;
        }
        let volume = Arc::clone(self);
        if let Err(error) = thread::Builder::new().name("sw-worker".to_owned()).spawn(move || volume.run_worker()) {
            tracing::warn!(%error, "cannot start the worker thread: parked writes end early and their programs retry");
            for parked in self.worker.take_stranded().into_values().flat_map(|of| of.writes) {
                let ParkedWrite { waiting, write, payload, _turn } = parked;
                drop((payload, _turn));
                // Bytes that must be durable first cannot be acknowledged here.
                self.finish(waiting, early_answer(if write.is_async() { write.taken } else { 0 }));
            }
            self.send_paused(true);
        }
    }

    /// The worker thread, from its start until it is idle or the volume ends.
    fn run_worker(self: &Arc<Self>) {
        while self.worker.wait_for_work(|| self.sb.now()) {
            self.send_paused(self.is_refusing());
            self.flush_mapped_if_due();
            let seen = self.sb.progress_count();
            let mut is_short = false;
            for tenant in self.worker.parked_tenants() {
                let mut has_frames = true;
                while has_frames && let Some(parked) = self.worker.next_write(tenant) {
                    has_frames = self.retry(parked);
                    self.check_watched_callers();
                }
                is_short |= !has_frames;
            }
            let again = self.retry_mapped_writes(RETRY_INTERVAL).or(is_short.then_some(RETRY_INTERVAL));
            if let Some(again) = again {
                let moment = self.sb.now() + again;
                let until = self.worker.paused.first().map_or(moment, |due| due.min(moment));
                self.sb.wait_for_progress(seen, Some(until));
            }
            self.check_watched_callers();
        }
        if self.worker.is_stopping() {
            self.send_paused(true);
            self.worker.fail_parked();
            self.worker.mapped_writes.fail();
        }
    }

    /// Tries a parked write. Returns false if no frame was free; the write is then at the head of the queue again.
    fn retry(self: &Arc<Self>, mut parked: ParkedWrite) -> bool {
        let attempt = {
            let Some(mut state) = parked.waiting.lock() else { return true };
            let attempt = parked.write.attempt(parked.payload.left(&parked.write), false);
            state.parked = Some(parked.write.taken);
            attempt
        };
        match attempt {
            Attempt::Done if parked.write.is_async() => {
                let ParkedWrite { waiting, write, payload, _turn } = parked;
                drop((payload, _turn));
                self.finish_write(waiting, write);
            }
            Attempt::Failed(failure) => {
                self.finish(parked.waiting, Err(failure));
            }
            Attempt::Done | Attempt::NoSpace | Attempt::WouldBlock
                if self.worker.blocking_threads.load(Ordering::Relaxed) < THREADS_MAX =>
            {
                return self.retry_on_thread(parked);
            }
            Attempt::Done | Attempt::NoSpace | Attempt::WouldBlock | Attempt::NoFrames => {
                self.worker.put_back(parked);
                return false;
            }
        }
        true
    }

    /// Continues a parked write on a thread that may wait for the backend (A1). Returns false if none can be started;
    /// the write is then at the head of the queue again.
    fn retry_on_thread(self: &Arc<Self>, parked: ParkedWrite) -> bool {
        let (volume, one) = (Arc::clone(self), CountGuard::new(&self.worker.blocking_threads));
        // If the thread cannot be started, its closure is dropped with all it owns; the write in here survives.
        let place = Arc::new(Mutex::new(LEAF, Some(parked)));
        let slowly = {
            let place = Arc::clone(&place);
            move || {
                let Some(ParkedWrite { waiting, write, payload, _turn }) = place.lock().take() else { return };
                if let Some(mut state) = waiting.lock() {
                    state.parked = None;
                }
                let left = payload.left(&write);
                volume.write_blocking(waiting, write, left);
                drop(one);
            }
        };
        let Err(error) = thread::Builder::new().name("sw-parked".to_owned()).spawn(slowly) else { return true };
        tracing::warn!(%error, "cannot start a thread for a parked write that waits for the backend: it is retried");
        let parked = place.lock().take();
        parked.into_iter().for_each(|parked| self.worker.put_back(parked));
        false
    }

    /// Releases the watched callers that are being killed, if it is time to look (A5).
    fn check_watched_callers(&self) {
        let begin = self.sb.now();
        let mut watched = {
            let mut queue = self.worker.queue.lock();
            if queue.check_due().is_none_or(|due| due > begin) {
                return;
            }
            std::mem::take(&mut queue.watched)
        };
        watched.retain(|caller| caller.upgrade().is_some_and(|caller| !self.release_if_killed(&caller)));
        let now = self.sb.now();
        let mut queue = self.worker.queue.lock();
        queue.watched.append(&mut watched);
        queue.check_due = now + RETRY_INTERVAL.max(now.since(begin) * (CHECK_SHARE - 1));
    }
}

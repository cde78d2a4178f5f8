//! One thread per volume for all who wait: writes that are parked until there is room, pages of mappings that are
//! ([`super::mapped_writes`]), stores that only the kernel has ([`super::mapped_flush`]), replies that are held until their time
//! ([`super::paused`]), and callers that were interrupted and may be killed later. It is started for the first who
//! waits, and leaves after ten seconds in which nobody did: there may be thousands of volumes, most of them idle.
//!
//! # Invariants
//! A1. Parked writes of a tenant are tried in the order in which they came: who came later could only take the room
//!     from who waits. Tenants take turns, since one may be at its limit while there is room for the others. The
//!     worker never waits for a backend: a write that needs it goes to a thread of its own.
//! A2. `Node::parked` counts a node's writes from when they are parked until they are answered, so that a
//!     later write queues behind them.
//! A3. The bytes of parked payload are at most [`TENANT_BYTES`] for a tenant, [`VOLUME_BYTES`] for a volume and
//!     [`TOTAL_BYTES`] for the process, but for [`KEPT_BYTES`] of each write. What is not kept is not taken: the count is short.
//! A4. While a write is parked or a reply is held there is a thread, or one is being started: it decides to leave under the
//!     lock, and with nobody waiting. Where none can be started nobody waits: a write is answered as if a signal had come,
//!     with what was taken of it or EINTR, so that its program tries again; and a held reply goes out. Only callers that
//!     are watched, and pages of mappings, wait for the next thread.
//!
//! # Lock order
//! The queue's lock is above those of the held replies and of the pages alone: a write is taken out of the queue to be tried.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use slackwater::{MemcgId, Tick};
use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};
use slackwater_sync::shim::{Arc, Weak, thread};

use crate::volume::Volume;
use crate::volume::blocking::CountGuard;
use crate::volume::callers::{Caller, PendingCall, early_answer};
use crate::volume::lock_order::{LEAF, WORKER};
use crate::volume::mapped_flush::MappedFlush;
use crate::volume::mapped_writes::MappedWrites;
use crate::volume::nodes::Node;
use crate::volume::paused::PausedReplies;
use crate::volume::writes::{Attempt, Write};

/// Parked payload of one tenant on one volume; of the root tenant, as much as of the volume.
const TENANT_BYTES: usize = 16 << 20;
/// Parked payload of one volume.
const VOLUME_BYTES: usize = 64 << 20;
/// Parked payload of the process.
const TOTAL_BYTES: usize = 256 << 20;
/// What is kept of a write above these.
const KEPT_BYTES: usize = 64 << 10;
/// Most threads of one volume for parked writes that have to wait for the backend.
const THREADS_MAX: usize = 16;
/// How often callers are looked after, and the longest that a missed wake-up can last.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// How long the thread waits for somebody before it leaves.
const IDLE: Duration = Duration::from_secs(10);

static TOTAL: AtomicUsize = AtomicUsize::new(0);

/// A write that waits for room.
struct ParkedWrite {
    waiting: PendingCall,
    write: Write,
    payload: ParkedPayload,
    _turn: NodeTurn,
}

/// A write's place behind others of its node (A2).
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

/// Bytes of a parked write, counted in both budgets.
struct ParkedPayload {
    /// Emptied when it is let go of before its write.
    bytes: Vec<u8>,
    /// What the write had taken before the first of them.
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

    /// What is left of it for `write`.
    fn left(&self, write: &Write) -> &[u8] {
        &self.bytes[write.taken - self.base..]
    }

    /// Nothing is left for `write`.
    fn discard(&mut self, write: &Write) {
        self.uncount();
        (self.bytes, self.base) = (Vec::new(), write.taken);
    }

    fn uncount(&self) {
        for counter in [&*self.tenant, &*self.volume, &TOTAL] {
            counter.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        }
    }
}

impl Drop for ParkedPayload {
    fn drop(&mut self) {
        self.uncount();
    }
}

/// Who waits on a volume.
pub(super) struct Worker {
    pub(super) paused: PausedReplies,
    pub(super) mapped_writes: MappedWrites,
    pub(super) mapped_flush: MappedFlush,
    queue: Mutex<Queue>,
    changed: Condvar,
    parked_bytes: Arc<AtomicUsize>,
    /// Threads of writes that wait for the backend.
    blocking_threads: Arc<AtomicUsize>,
}

/// The parked writes of a tenant.
#[derive(Default)]
struct TenantQueue {
    writes: VecDeque<ParkedWrite>,
    bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Queue {
    /// None of them empty.
    parked: BTreeMap<MemcgId, TenantQueue>,
    watched: Vec<Weak<Caller>>,
    /// Somebody in the queue was let go.
    has_released: bool,
    /// A4.
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

    /// Bytes of writes that are parked, and of pages from mappings.
    pub(super) fn parked_bytes(&self) -> usize {
        self.parked_bytes.load(Ordering::Relaxed) + self.mapped_writes.bytes()
    }

    /// One more thread for what has to wait for the backend, until the count is dropped.
    pub(super) fn reserve_thread(&self) -> Option<CountGuard> {
        (self.blocking_threads.load(Ordering::Relaxed) < THREADS_MAX).then(|| CountGuard::new(&self.blocking_threads))
    }

    /// Writes that are parked; those that are being tried at this moment are not.
    pub(super) fn parked(&self) -> usize {
        self.queue.lock().parked.values().map(|of| of.writes.len()).sum()
    }

    /// Counts the payload that is parked for the tenant of `write`.
    fn tenant_bytes(&self, write: &Write) -> Arc<AtomicUsize> {
        let queue = self.queue.lock();
        queue.parked.get(&write.memcg.id()).map(|of| Arc::clone(&of.bytes)).unwrap_or_default()
    }

    /// Somebody was let go whose write may be parked.
    pub(super) fn caller_released(&self) {
        self.queue.lock().has_released = true;
        self.changed.notify_one();
    }

    /// Ends the thread. Writes that are parked get EIO.
    pub(super) fn stop(&self) {
        self.queue.lock().stopping = true;
        self.changed.notify_one();
    }

    fn is_stopping(&self) -> bool {
        self.queue.lock().stopping
    }

    /// Waits until somebody waits, and then until a held reply is due, if that is all. False when the thread is to leave:
    /// nobody has come for a while, or this is the end.
    fn wait_for_work(&self, now: impl Fn() -> Tick) -> bool {
        let mut queue = self.queue.lock();
        loop {
            let due = self.paused.first().into_iter().chain(self.mapped_flush.due()).min().map(|due| due.since(now()));
            let is_parked = !queue.parked.is_empty() || !self.mapped_writes.is_empty();
            if !queue.stopping && (is_parked || due == Some(Duration::ZERO)) {
                return true;
            }
            // ThreadCache to watch, and nothing that would wake the thread for them.
            let watched = (!queue.watched.is_empty()).then_some(RETRY_INTERVAL);
            let time = due.into_iter().chain(watched).min();
            let is_late = !queue.stopping && self.changed.wait_timeout(&mut queue, time.unwrap_or(IDLE));
            let is_idle = is_late && time.is_none() && queue.is_empty() && self.paused.first().is_none();
            if queue.stopping || is_idle {
                queue.has_thread = false; // A4
                return false;
            }
            if watched.is_some() {
                return true;
            }
        }
    }

    /// The tenants that have writes parked. Drops the writes whose callers were let go, for the memory they hold.
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

    /// The write of `tenant` to be tried next.
    fn next_write(&self, tenant: MemcgId) -> Option<ParkedWrite> {
        let mut queue = self.queue.lock();
        let of = queue.parked.get_mut(&tenant)?;
        let next = of.writes.pop_front();
        if of.writes.is_empty() {
            queue.parked.remove(&tenant);
        }
        next
    }

    /// There was no room for it: it is the first of its tenant again.
    fn put_back(&self, parked: ParkedWrite) {
        self.queue.lock().queue_of(&parked).writes.push_front(parked);
    }

    /// The thread could not be started. The writes that have relied on it.
    fn take_stranded(&self) -> BTreeMap<MemcgId, TenantQueue> {
        let mut queue = self.queue.lock();
        queue.has_thread = false;
        std::mem::take(&mut queue.parked)
    }

    /// Fails the writes that are parked: what holds their replies answers EIO when it is dropped.
    fn fail_parked(&self) {
        let failed = std::mem::take(&mut self.queue.lock().parked);
        drop(failed);
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.parked.is_empty() && self.watched.is_empty()
    }

    /// Where `parked` belongs. What is counted for its tenant stays one count, also when the last write was out to be tried.
    fn queue_of(&mut self, parked: &ParkedWrite) -> &mut TenantQueue {
        let bytes = &parked.payload.tenant;
        let of = || TenantQueue { bytes: Arc::clone(bytes), ..TenantQueue::default() };
        self.parked.entry(parked.write.memcg.id()).or_insert_with(of)
    }
}

impl Volume {
    /// Lets a write wait for room, with the bytes that are left of it.
    pub(super) fn park(self: &Arc<Self>, waiting: PendingCall, write: Write, rest: &[u8]) {
        let tenant = self.worker.tenant_bytes(&write);
        let payload = ParkedPayload::keep(rest, &write, tenant, &self.worker.parked_bytes);
        let turn = NodeTurn::new(&write.open.node);
        let Some(waiting) = self.allow_early_answer(waiting, &write) else { return };
        let parked = ParkedWrite { _turn: turn, waiting, write, payload };
        self.wake_worker_with(|queue| queue.queue_of(&parked).writes.push_back(parked));
    }

    /// Watches an interrupted caller.
    pub(super) fn watch_caller(self: &Arc<Self>, caller: Weak<Caller>) {
        self.wake_worker_with(|queue| queue.watched.push(caller));
    }

    /// A reply is due earlier than any before, a page of a mapping waits, or stores are to be asked for.
    pub(super) fn wake_worker(self: &Arc<Self>) {
        self.wake_worker_with(|_| {});
    }

    /// Somebody waits, whom `add` adds to the queue. A thread hears of it (A4).
    fn wake_worker_with(self: &Arc<Self>, add: impl FnOnce(&mut Queue)) {
        let has_thread = {
            // The others too: who is about to sleep for longer looks when the first is due under this lock.
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
            tracing::warn!(%error, "no thread for writes that have to wait: their programs are to try again");
            for parked in self.worker.take_stranded().into_values().flat_map(|of| of.writes) {
                let ParkedWrite { waiting, write, payload, _turn } = parked;
                drop((payload, _turn));
                self.finish(waiting, early_answer(write.early_count().unwrap_or(0)));
            }
            self.send_paused(true);
        }
    }

    /// The thread, from when it is started until nobody waits or the volume ends.
    fn run_worker(self: &Arc<Self>) {
        while self.worker.wait_for_work(|| self.sb.now()) {
            self.send_paused(self.is_refusing());
            self.flush_mapped_if_due();
            let seen = self.sb.room_given();
            let mut is_short = false;
            for tenant in self.worker.parked_tenants() {
                let mut has_room = true;
                while has_room && let Some(parked) = self.worker.next_write(tenant) {
                    has_room = self.retry(parked);
                }
                is_short |= !has_room;
            }
            let again = self.retry_mapped_writes(RETRY_INTERVAL).or(is_short.then_some(RETRY_INTERVAL));
            if let Some(again) = again {
                let moment = self.sb.now() + again;
                let until = self.worker.paused.first().map_or(moment, |due| due.min(moment));
                self.sb.wait_for_room(seen, Some(until));
            }
            self.check_watched_callers();
        }
        if self.worker.is_stopping() {
            self.send_paused(true);
            self.worker.fail_parked();
            self.worker.mapped_writes.fail();
        }
    }

    /// Tries a parked write. False when there is no room, and it is the first of the queue again.
    fn retry(self: &Arc<Self>, mut parked: ParkedWrite) -> bool {
        let attempt = {
            let Some(mut state) = parked.waiting.lock() else { return true };
            let attempt = parked.write.attempt(parked.payload.left(&parked.write), false);
            state.parked = parked.write.early_count();
            if state.is_interrupted() {
                parked.payload.discard(&parked.write); // it ends with what was taken, which is made durable first
                Attempt::Done
            } else {
                attempt
            }
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
            Attempt::Done | Attempt::NoSpace | Attempt::WouldBlock | Attempt::NoRoom => {
                self.worker.put_back(parked);
                return false;
            }
        }
        true
    }

    /// A1: what may wait for the backend leaves this thread. False when there is no other, and it is the first of the queue
    /// again.
    fn retry_on_thread(self: &Arc<Self>, parked: ParkedWrite) -> bool {
        let (volume, one) = (Arc::clone(self), CountGuard::new(&self.worker.blocking_threads));
        // What cannot be started takes everything with it that it was given, but for what is in here.
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
        tracing::warn!(%error, "no thread for a write that must wait for the backend: it is tried again");
        let parked = place.lock().take();
        parked.into_iter().for_each(|parked| self.worker.put_back(parked));
        false
    }

    fn check_watched_callers(&self) {
        let mut watched = std::mem::take(&mut self.worker.queue.lock().watched);
        let now = self.sb.now();
        watched.retain(|caller| caller.upgrade().is_some_and(|caller| !caller.release_if_killed(now)));
        self.worker.queue.lock().watched.append(&mut watched);
    }
}

//! One thread per volume for all who wait: writes that are parked until there is room, pages of mappings that are
//! ([`super::replay`]), stores that only the kernel has ([`super::pushing`]), replies that are held until their time
//! ([`super::paused`]), and callers that were interrupted and may be killed later. It is started for the first who
//! waits, and leaves after ten seconds in which nobody did: there may be thousands of volumes, most of them idle.
//!
//! # Invariants
//! A1. Parked writes of a tenant are tried in the order in which they came: who came later could only take the room
//!     from who waits. Tenants take turns, since one may be at its limit while there is room for the others. The
//!     attendant never waits for a backend: a write that needs it goes to a thread of its own.
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
use crate::volume::blocking::Counted;
use crate::volume::callers::{Caller, Waiting, let_off};
use crate::volume::lock_order::{ATTENDANT, LEAF};
use crate::volume::nodes::Node;
use crate::volume::paused::PausedReplies;
use crate::volume::pushing::Pushes;
use crate::volume::replay::Replay;
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
const ELSEWHERE_MAX: usize = 16;
/// How often callers are looked after, and the longest that a missed wake-up can last.
const MOMENT: Duration = Duration::from_millis(100);
/// How long the thread waits for somebody before it leaves.
const IDLE: Duration = Duration::from_secs(10);

static TOTAL: AtomicUsize = AtomicUsize::new(0);

/// A write that waits for room.
struct ParkedWrite {
    waiting: Waiting,
    write: Write,
    payload: Payload,
    _turn: Turn,
}

/// A write's place behind others of its node (A2).
struct Turn(Arc<Node>);

impl Turn {
    fn new(node: &Arc<Node>) -> Self {
        node.parked.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(node))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.parked.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Bytes of a parked write, counted in both budgets.
struct Payload {
    /// Emptied when it is let go of before its write.
    bytes: Vec<u8>,
    /// What the write had taken before the first of them.
    base: usize,
    tenant: Arc<AtomicUsize>,
    volume: Arc<AtomicUsize>,
}

impl Payload {
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
    fn let_go(&mut self, write: &Write) {
        self.uncount();
        (self.bytes, self.base) = (Vec::new(), write.taken);
    }

    fn uncount(&self) {
        for counter in [&*self.tenant, &*self.volume, &TOTAL] {
            counter.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        }
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        self.uncount();
    }
}

/// Who waits on a volume.
pub(super) struct Attendant {
    pub(super) paused: PausedReplies,
    pub(super) replay: Replay,
    pub(super) pushes: Pushes,
    queue: Mutex<Queue>,
    changed: Condvar,
    parked_bytes: Arc<AtomicUsize>,
    /// Threads of writes that wait for the backend.
    elsewhere: Arc<AtomicUsize>,
}

/// The parked writes of a tenant.
#[derive(Default)]
struct OfTenant {
    writes: VecDeque<ParkedWrite>,
    bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Queue {
    /// None of them empty.
    parked: BTreeMap<MemcgId, OfTenant>,
    watched: Vec<Weak<Caller>>,
    /// Somebody in the queue was let go.
    look_again: bool,
    /// A4.
    has_thread: bool,
    stopping: bool,
}

impl Attendant {
    pub(super) fn new() -> Self {
        Self {
            paused: PausedReplies::new(),
            replay: Replay::new(),
            pushes: Pushes::new(),
            queue: Mutex::new(ATTENDANT, Queue::default()),
            changed: Condvar::new(),
            parked_bytes: Arc::default(),
            elsewhere: Arc::default(),
        }
    }

    /// Bytes of writes that are parked, and of pages from mappings.
    pub(super) fn parked_bytes(&self) -> usize {
        self.parked_bytes.load(Ordering::Relaxed) + self.replay.bytes()
    }

    /// One more thread for what has to wait for the backend, until the count is dropped.
    pub(super) fn elsewhere(&self) -> Option<Counted> {
        (self.elsewhere.load(Ordering::Relaxed) < ELSEWHERE_MAX).then(|| Counted::new(&self.elsewhere))
    }

    /// Writes that are parked; those that are being tried at this moment are not.
    pub(super) fn parked(&self) -> usize {
        self.queue.lock().parked.values().map(|of| of.writes.len()).sum()
    }

    /// Counts the payload that is parked for the tenant of `write`.
    fn bytes_of(&self, write: &Write) -> Arc<AtomicUsize> {
        let queue = self.queue.lock();
        queue.parked.get(&write.memcg.id()).map(|of| Arc::clone(&of.bytes)).unwrap_or_default()
    }

    /// Somebody was let go whose write may be parked.
    pub(super) fn look_again(&self) {
        self.queue.lock().look_again = true;
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
            let due = self.paused.first().into_iter().chain(self.pushes.due()).min().map(|due| due.since(now()));
            let is_parked = !queue.parked.is_empty() || !self.replay.is_empty();
            if !queue.stopping && (is_parked || due == Some(Duration::ZERO)) {
                return true;
            }
            // Callers to watch, and nothing that would wake the thread for them.
            let watched = (!queue.watched.is_empty()).then_some(MOMENT);
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
    fn tenants(&self) -> Vec<MemcgId> {
        let mut queue = self.queue.lock();
        if std::mem::take(&mut queue.look_again) {
            let mut all = std::mem::take(&mut queue.parked);
            drop(queue);
            all.values_mut().for_each(|of| of.writes.retain(|parked| parked.waiting.lock().is_some()));
            queue = self.queue.lock();
            for (tenant, mut earlier) in all {
                let of = queue
                    .parked
                    .entry(tenant)
                    .or_insert_with(|| OfTenant { bytes: Arc::clone(&earlier.bytes), ..OfTenant::default() });
                earlier.writes.append(&mut of.writes);
                of.writes = earlier.writes;
            }
            queue.parked.retain(|_, of| !of.writes.is_empty());
        }
        queue.parked.keys().copied().collect()
    }

    /// The write of `tenant` to be tried next.
    fn next(&self, tenant: MemcgId) -> Option<ParkedWrite> {
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
        self.queue.lock().of(&parked).writes.push_front(parked);
    }

    /// The thread could not be started. The writes that have relied on it.
    fn thread_failed(&self) -> BTreeMap<MemcgId, OfTenant> {
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
    fn of(&mut self, parked: &ParkedWrite) -> &mut OfTenant {
        let bytes = &parked.payload.tenant;
        let of = || OfTenant { bytes: Arc::clone(bytes), ..OfTenant::default() };
        self.parked.entry(parked.write.memcg.id()).or_insert_with(of)
    }
}

impl Volume {
    /// Lets a write wait for room, with the bytes that are left of it.
    pub(super) fn park(self: &Arc<Self>, waiting: Waiting, write: Write, rest: &[u8]) {
        let tenant = self.attendant.bytes_of(&write);
        let payload = Payload::keep(rest, &write, tenant, &self.attendant.parked_bytes);
        let turn = Turn::new(&write.open.node);
        let Some(waiting) = self.let_off_from_here(waiting, &write) else { return };
        let parked = ParkedWrite { _turn: turn, waiting, write, payload };
        self.call_attendant(|queue| queue.of(&parked).writes.push_back(parked));
    }

    /// Watches an interrupted caller.
    pub(super) fn watch(self: &Arc<Self>, caller: Weak<Caller>) {
        self.call_attendant(|queue| queue.watched.push(caller));
    }

    /// A reply is due earlier than any before, a page of a mapping waits, or stores are to be asked for.
    pub(super) fn attend_to_others(self: &Arc<Self>) {
        self.call_attendant(|_| {});
    }

    /// Somebody waits, whom `add` adds to the queue. A thread hears of it (A4).
    fn call_attendant(self: &Arc<Self>, add: impl FnOnce(&mut Queue)) {
        let has_thread = {
            // The others too: who is about to sleep for longer looks when the first is due under this lock.
            let mut queue = self.attendant.queue.lock();
            add(&mut queue);
            std::mem::replace(&mut queue.has_thread, true)
        };
        if has_thread {
            self.attendant.changed.notify_one();
            return;
        }
        let volume = Arc::clone(self);
        if let Err(error) = thread::Builder::new().name("sw-attendant".to_owned()).spawn(move || volume.attend()) {
            tracing::warn!(%error, "no thread for writes that have to wait: their programs are to try again");
            for parked in self.attendant.thread_failed().into_values().flat_map(|of| of.writes) {
                let ParkedWrite { waiting, write, payload, _turn } = parked;
                drop((payload, _turn));
                self.finish(waiting, let_off(write.may_end_with().unwrap_or(0)));
            }
            self.send_paused(true);
        }
    }

    /// The thread, from when it is started until nobody waits or the volume ends.
    fn attend(self: &Arc<Self>) {
        while self.attendant.wait_for_work(|| self.sb.now()) {
            self.send_paused(self.is_refusing());
            self.push_if_due();
            let seen = self.sb.room_given();
            let mut is_short = false;
            for tenant in self.attendant.tenants() {
                let mut has_room = true;
                while has_room && let Some(parked) = self.attendant.next(tenant) {
                    has_room = self.go_on(parked);
                }
                is_short |= !has_room;
            }
            let again = self.replay(MOMENT).or(is_short.then_some(MOMENT));
            if let Some(again) = again {
                let moment = self.sb.now() + again;
                let until = self.attendant.paused.first().map_or(moment, |due| due.min(moment));
                self.sb.wait_for_room(seen, Some(until));
            }
            self.look_after_callers();
        }
        if self.attendant.is_stopping() {
            self.send_paused(true);
            self.attendant.fail_parked();
            self.attendant.replay.fail();
        }
    }

    /// Tries a parked write. False when there is no room, and it is the first of the queue again.
    fn go_on(self: &Arc<Self>, mut parked: ParkedWrite) -> bool {
        let attempt = {
            let Some(mut state) = parked.waiting.lock() else { return true };
            let attempt = parked.write.attempt(parked.payload.left(&parked.write), false);
            state.parked = parked.write.may_end_with();
            if state.is_interrupted() {
                parked.payload.let_go(&parked.write); // it ends with what was taken, which is made durable first
                Attempt::Done
            } else {
                attempt
            }
        };
        match attempt {
            Attempt::Done if parked.write.is_lazy() => {
                let ParkedWrite { waiting, write, payload, _turn } = parked;
                drop((payload, _turn));
                self.finish_write(waiting, write);
            }
            Attempt::Failed(failure) => {
                self.finish(parked.waiting, Err(failure));
            }
            Attempt::Done | Attempt::NoSpace | Attempt::WouldBlock
                if self.attendant.elsewhere.load(Ordering::Relaxed) < ELSEWHERE_MAX =>
            {
                return self.go_on_elsewhere(parked);
            }
            Attempt::Done | Attempt::NoSpace | Attempt::WouldBlock | Attempt::NoRoom => {
                self.attendant.put_back(parked);
                return false;
            }
        }
        true
    }

    /// A1: what may wait for the backend leaves this thread. False when there is no other, and it is the first of the queue
    /// again.
    fn go_on_elsewhere(self: &Arc<Self>, parked: ParkedWrite) -> bool {
        let (volume, one) = (Arc::clone(self), Counted::new(&self.attendant.elsewhere));
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
                volume.write_slowly(waiting, write, left);
                drop(one);
            }
        };
        let Err(error) = thread::Builder::new().name("sw-parked".to_owned()).spawn(slowly) else { return true };
        tracing::warn!(%error, "no thread for a write that must wait for the backend: it is tried again");
        let parked = place.lock().take();
        parked.into_iter().for_each(|parked| self.attendant.put_back(parked));
        false
    }

    fn look_after_callers(&self) {
        let mut watched = std::mem::take(&mut self.attendant.queue.lock().watched);
        let now = self.sb.now();
        watched.retain(|caller| caller.upgrade().is_some_and(|caller| !caller.let_go_if_killed(now)));
        self.attendant.queue.lock().watched.append(&mut watched);
    }
}

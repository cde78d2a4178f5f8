//! The flusher pool runs the [`BdiWriteback`]s and background reclaim: a few threads for all volumes, a caller of a sync
//! for its own volume, or a test by hand.
//!
//! # Invariants
//! F1. At most one thread runs a wb at a time, so the wb's pass state and `Io` list are private to that thread.
//! F2. A wake-up during a run leads to another run.
//! F3. Every wb with dirty inodes on a waiting list is queued, is running, is blocked on a slot or gate that will wake
//!     it, or has a timer.
//! F4. After `forget`, neither the pool nor the bdi's slots keep a lasting reference to the wb, although a wake-up
//!     still runs it. A reference to a wb keeps its backend alive.
//!
//! # Lock order
//! The pool's lock is a leaf: no function is called under it.
//!
//! # Kernel counterpart
//! The `writeback` workqueue. Differs: submission never blocks, so one thread serves any number of devices.

use std::collections::{BTreeMap, VecDeque};

use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::rcu::{Domain, Options};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};
use slackwater_sync::shim::thread;

use crate::clock::Clock;
use crate::lock_order::LEAVES;
use crate::reclaim::Reclaim;
use crate::tunables::Tunables;
use crate::units::Tick;
use crate::writeback::balance::GlobalDomain;
use crate::writeback::flusher::Next;
use crate::writeback::wb::BdiWriteback;

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
const AGAIN: u8 = 3;

#[derive(Default)]
struct PoolState {
    queue: VecDeque<Arc<BdiWriteback>>,
    /// Timers by due time, then by order of arming.
    timers: BTreeMap<(Tick, u64), Arc<BdiWriteback>>,
    timers_made: u64,
    /// Reclaim is requested. Cleared by the thread that starts it.
    reclaim: bool,
    stop: bool,
}

impl PoolState {
    fn first_timer(&self) -> Option<Tick> {
        self.timers.first_key_value().map(|((at, _), _)| *at)
    }
}

/// Runs wbs, on its threads or by hand. One per engine.
pub(crate) struct FlusherPool {
    state: Mutex<PoolState>,
    changed: Condvar,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tunables: Tunables,
    pub(crate) global: GlobalDomain,
    /// RCU domain of everything that the engine reads without a lock.
    pub(crate) rcu: Arc<Domain>,
    wbs_made: AtomicU64,
}

impl FlusherPool {
    pub(crate) fn new(clock: Arc<dyn Clock>, tunables: Tunables, arena_frames: u64, rcu: Options) -> Arc<Self> {
        let global = GlobalDomain::new(&tunables, arena_frames);
        Arc::new(Self {
            state: Mutex::new(LEAVES, PoolState::default()),
            changed: Condvar::new(),
            clock,
            tunables,
            global,
            rcu: Arc::new(Domain::with(rcu)),
            wbs_made: AtomicU64::new(0),
        })
    }

    /// A unique number for a wb. Two list locks are taken in the order of these numbers.
    pub(crate) fn number_wb(&self) -> u64 {
        self.wbs_made.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts `tunables.flusher_threads` threads. They end after [`FlusherPool::stop`].
    pub(crate) fn start(self: &Arc<Self>, reclaim: &Arc<Reclaim>) -> Vec<thread::JoinHandle<()>> {
        let run = |number| {
            let (pool, reclaim) = (Arc::clone(self), Arc::clone(reclaim));
            thread::spawn_named(&format!("sw-flush-{number}"), move || pool.run(&reclaim))
        };
        (0..self.tunables.flusher_threads).map(run).collect()
    }

    /// Ends the threads and drops everything queued.
    pub(crate) fn stop(&self) {
        let due = std::mem::replace(&mut *self.state.lock(), PoolState { stop: true, ..PoolState::default() });
        self.changed.notify_all();
        drop(due);
    }

    /// Whether enough is dirty to start write-back unasked. Approximate.
    pub(crate) fn over_background(&self) -> bool {
        self.global.nr_dirty.read() > self.global.thresholds.background_pages
    }

    /// Queues `wb` to run. If it is running, it runs again (F2).
    pub(crate) fn queue(&self, wb: &Arc<BdiWriteback>) {
        let mut state = self.state.lock();
        if state.stop {
            return;
        }
        match wb.run.load(Ordering::Relaxed) {
            IDLE => {
                wb.run.store(QUEUED, Ordering::Relaxed);
                state.queue.push_back(Arc::clone(wb));
                drop(state);
                self.changed.notify_one();
            }
            RUNNING => wb.run.store(AGAIN, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Runs an idle `wb` on the calling thread, which is going to wait for the result. Any other is queued, as by
    /// [`queue`](Self::queue).
    pub(crate) fn run_here(&self, wb: &Arc<BdiWriteback>) {
        {
            let state = self.state.lock();
            if state.stop || wb.run.load(Ordering::Relaxed) != IDLE {
                drop(state);
                return self.queue(wb);
            }
            wb.run.store(RUNNING, Ordering::Relaxed);
        }
        if self.run_one(wb, self.clock.now()) {
            self.changed.notify_one();
        }
    }

    /// Requests a reclaim pass.
    pub(crate) fn want_reclaim(&self) {
        self.state.lock().reclaim = true;
        self.changed.notify_one();
    }

    /// Forgets a `wb` that was released or whose volume has ended (F4).
    pub(crate) fn forget(&self, wb: &Arc<BdiWriteback>) {
        let mut state = self.state.lock();
        wb.is_forgotten.store(true, Ordering::Relaxed);
        state.queue.retain(|queued| !Arc::ptr_eq(queued, wb));
        if wb.run.load(Ordering::Relaxed) == QUEUED {
            wb.run.store(IDLE, Ordering::Relaxed);
        }
        state.timers.retain(|_, due| !Arc::ptr_eq(due, wb));
        wb.timer_at.store(u64::MAX, Ordering::Relaxed);
    }

    /// Arms a timer that runs `wb` at `at`, unless an earlier one is armed.
    pub(crate) fn arm(&self, wb: &Arc<BdiWriteback>, at: Tick) {
        let mut state = self.state.lock();
        if state.stop || wb.is_forgotten.load(Ordering::Relaxed) {
            return;
        }
        let armed = wb.timer_at.load(Ordering::Relaxed);
        if armed <= at.0 {
            return;
        }
        wb.timer_at.store(at.0, Ordering::Relaxed);
        let first = state.first_timer().is_none_or(|first| at < first);
        state.timers_made += 1;
        let number = state.timers_made;
        state.timers.insert((at, number), Arc::clone(wb));
        drop(state);
        if first {
            self.changed.notify_one();
        }
    }

    /// Runs everything that is due until nothing is. Returns when the next timer is due.
    pub(crate) fn run_due(&self, reclaim: &Reclaim) -> Option<Tick> {
        loop {
            let now = self.clock.now();
            let mut state = self.state.lock();
            if std::mem::take(&mut state.reclaim) {
                drop(state);
                self.reclaim(reclaim);
                continue;
            }
            let Some(wb) = take_due(&mut state, now) else {
                return state.first_timer();
            };
            drop(state);
            self.run_one(&wb, now);
        }
    }

    fn run(&self, reclaim: &Reclaim) {
        let mut state = self.state.lock();
        while !state.stop {
            let now = self.clock.now();
            if std::mem::take(&mut state.reclaim) {
                drop(state);
                self.reclaim(reclaim);
                state = self.state.lock();
                continue;
            }
            if let Some(wb) = take_due(&mut state, now) {
                drop(state);
                self.run_one(&wb, now);
                // May be the last reference to a volume that has ended; dropping it closes the backend.
                drop(wb);
                state = self.state.lock();
                continue;
            }
            match state.first_timer() {
                None => self.changed.wait(&mut state),
                Some(at) => {
                    let _ = self.changed.wait_timeout(&mut state, at.since(now));
                }
            }
        }
    }

    fn reclaim(&self, reclaim: &Reclaim) {
        if reclaim.run_background() {
            self.want_reclaim();
        }
    }

    /// Returns whether the wb is queued once more.
    fn run_one(&self, wb: &Arc<BdiWriteback>, now: Tick) -> bool {
        let next = wb.step(now);
        let mut state = self.state.lock();
        let again = (wb.run.load(Ordering::Relaxed) == AGAIN || next == Next::Again) && !state.stop;
        if again {
            wb.run.store(QUEUED, Ordering::Relaxed);
            state.queue.push_back(Arc::clone(wb));
        } else {
            wb.run.store(IDLE, Ordering::Relaxed);
        }
        let is_forgotten = wb.is_forgotten.load(Ordering::Relaxed);
        drop(state);
        if is_forgotten {
            wb.bdi.slots.note_running(wb); // F4: this run may have queued it for a slot
        }
        if let Next::At(at) = next {
            self.arm(wb, at);
        }
        again
    }
}

/// Takes the next wb to run and marks it running. Due timers join the queue first.
fn take_due(state: &mut PoolState, now: Tick) -> Option<Arc<BdiWriteback>> {
    while let Some(timer) = state.timers.first_entry().filter(|timer| timer.key().0 <= now) {
        let ((at, _), wb) = timer.remove_entry();
        if wb.timer_at.load(Ordering::Relaxed) == at.0 {
            wb.timer_at.store(u64::MAX, Ordering::Relaxed);
        }
        match wb.run.load(Ordering::Relaxed) {
            IDLE => {
                wb.run.store(QUEUED, Ordering::Relaxed);
                state.queue.push_back(wb);
            }
            RUNNING => wb.run.store(AGAIN, Ordering::Relaxed),
            _ => {}
        }
    }
    let wb = state.queue.pop_front()?;
    wb.run.store(RUNNING, Ordering::Relaxed);
    Some(wb)
}

//! Switches an inode to another wb: requested, prepared, queued, and executed a grace period later.
//!
//! # Invariants
//! S1. A context holds references to its inodes and one to the target wb until it has been executed.
//! S2. `Inode::is_switching` is set from *prepare* to the end of the execution. The form ([`Drain`]) decides how the
//!     volume is pinned meanwhile. The pin is taken before ACTIVE is checked and dropped after the inode.
//! S3. A batch is taken off `pending` before its grace period begins, so the inodes of every context in it were marked
//!     before that (W2 of `inode::owner`).
//! S4. A switch may be dropped at any step before it is executed: correctness never depends on one. Dropping it needs
//!     no grace period, because the inode keeps its wb. Code that counts pages, with the state's lock or without it,
//!     therefore counts on the same wb.
//!
//! # Lock order
//! Both wbs' `LIST_LOCK`s, then the inode's state. No lock is held when an inode reference is dropped.
//!
//! # Kernel counterpart
//! `inode_switch_wbs`, `inode_prepare_wbs_switch`, `inode_switch_wbs_work_fn`. Differs: an inode
//! keeps its place by age. A sync iterates over inodes, not wbs, so it cannot miss an inode that is switching, and no
//! `wb_switch_rwsem` is needed to exclude switches from syncs.

use slackwater_sync::lock::{Condvar, Mutex, lock_two};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU32, AtomicU64, Ordering};
use slackwater_sync::{gate, might_sleep};

use crate::engine::Shared;
use crate::inode::Inode;
use crate::lock_order::LEAVES;
use crate::super_block::SuperBlock;
use crate::writeback::BdiWriteback;
use crate::writeback::cgwb::Foreign;
use crate::writeback::cgwb::drain::{Drain, DrainCosts, UmountForm};
use crate::writeback::io_lists::ListName;

/// No foreign switch is begun while more contexts than this are in flight. Kernel: `WB_FRN_MAX_IN_FLIGHT`.
const MAX_IN_FLIGHT: u32 = 1024;

/// Inodes being switched to one wb.
pub(crate) struct Context {
    inodes: Vec<Arc<Inode>>,
    target: Arc<BdiWriteback>,
    phase: usize,
}

/// State of all switches of an engine.
pub(crate) struct SwitchQueue {
    /// Contexts from their creation to the end of their execution. Kernel: `isw_nr_in_flight`.
    in_flight: AtomicU32,
    queued: Mutex<Queued>,
    ended: Condvar,
    form: &'static dyn Drain,
    pub(crate) costs: DrainCosts,
    switched: AtomicU64,
    /// Switches that found their volume evicted.
    dead_uses: AtomicU64,
}

/// Numbers of contexts queued before and after the last flush began.
#[derive(Default)]
struct Queued {
    phase: usize,
    count: [u32; 2],
    is_flushing: bool,
}

impl SwitchQueue {
    pub(crate) fn new(form: UmountForm) -> Self {
        Self {
            in_flight: AtomicU32::new(0),
            queued: Mutex::new(LEAVES, Queued::default()),
            ended: Condvar::new(),
            form: form.drain(),
            costs: DrainCosts::default(),
            switched: AtomicU64::new(0),
            dead_uses: AtomicU64::new(0),
        }
    }

    pub(crate) fn form(&self) -> &'static dyn Drain {
        self.form
    }

    /// Switches in flight, of all volumes.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub(crate) fn switched(&self) -> u64 {
        self.switched.load(Ordering::Relaxed)
    }

    pub(crate) fn dead_uses(&self) -> u64 {
        self.dead_uses.load(Ordering::Relaxed)
    }

    fn enter(&self) -> usize {
        let mut queued = self.queued.lock();
        let phase = queued.phase;
        queued.count[phase] += 1;
        phase
    }

    fn leave(&self, phase: usize) {
        let mut queued = self.queued.lock();
        queued.count[phase] -= 1;
        if queued.count[phase] == 0 {
            self.ended.notify_all();
        }
    }

    /// Waits until every context queued before the call has been executed. Kernel: `flush_workqueue`.
    ///
    /// # Blocking
    /// Waits for the grace periods and the execution of contexts of all volumes, and for other flushes.
    pub(super) fn flush(&self, engine: &Shared) {
        might_sleep();
        let mut queued = self.queued.lock();
        while queued.is_flushing {
            self.ended.wait(&mut queued);
        }
        let before = queued.phase;
        (queued.is_flushing, queued.phase) = (true, 1 - before);
        while queued.count[before] != 0 {
            if engine.tunables.flusher_threads == 0 {
                drop(queued);
                engine.run_by_hand();
                slackwater_sync::shim::thread::yield_now();
                queued = self.queued.lock();
            } else {
                self.ended.wait(&mut queued);
            }
        }
        queued.is_flushing = false;
        self.ended.notify_all();
    }
}

/// A switch that has been counted and has a target wb, but no inodes yet.
pub(super) struct Switch<'a> {
    sb: &'a SuperBlock,
    target: Arc<BdiWriteback>,
}

impl<'a> Switch<'a> {
    /// Takes over the caller's reference to `target`, a wb of `sb`.
    pub(super) fn begin(sb: &'a SuperBlock, target: Arc<BdiWriteback>) -> Self {
        sb.engine().switches.in_flight.fetch_add(1, Ordering::SeqCst);
        Self { sb, target }
    }

    /// Prepares as many of `inodes` as possible, and queues them.
    pub(super) fn start(self, mut inodes: Vec<Arc<Inode>>) {
        let engine = self.sb.engine();
        let queue = &engine.switches;
        let section = queue.form.section(&engine.pool.rcu);
        inodes.retain(|inode| prepare(inode, &self.target, queue.form));
        let prepared = inodes.len();
        gate::pass("switch.prepared");
        if prepared == 0 {
            drop(section);
            self.target.put();
            queue.in_flight.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        tracing::trace!(target: "slackwater::writeback", new = %self.target.memcg.id(), count = prepared, "inode_switch_wbs_queue");
        let target = Arc::clone(&self.target);
        let context = Context { inodes, target: self.target, phase: queue.enter() };
        let refused = {
            let mut switches = target.switches.lock();
            if queue.form.may_queue(self.sb) {
                switches.add(context);
                None
            } else {
                Some(context) // Q2 of `pending`
            }
        };
        drop(section);
        if let Some(context) = refused {
            context.cancel(engine);
        } else {
            target.wake();
        }
    }
}

/// S2. Kernel: `inode_prepare_wbs_switch`.
fn prepare(inode: &Arc<Inode>, target: &Arc<BdiWriteback>, form: &dyn Drain) -> bool {
    let sb = inode.super_block();
    if !form.pin(sb) {
        trace_refused(inode, "unmounted");
        return false;
    }
    let state = inode.state.lock();
    let obstacle = if sb.alive().is_err() {
        Some("unmounted")
    } else if state.doomed {
        Some("deleted")
    } else if inode.is_switching() {
        Some("switching")
    } else if inode.belongs_to(target) {
        Some("there")
    } else {
        None
    };
    if obstacle.is_none() {
        inode.set_switching(true);
    }
    drop(state);
    let Some(cause) = obstacle else { return true };
    form.unpin(sb);
    trace_refused(inode, cause);
    false
}

fn trace_refused(inode: &Inode, cause: &str) {
    let sb = inode.super_block();
    tracing::trace!(target: "slackwater::writeback", volume = sb.name(), ino = inode.id().ino, cause,
        "inode_switch_wbs_refused");
}

impl Inode {
    /// Moves the inode to the wb of the tenant in `slot`, unless something prevents it. Kernel: `inode_switch_wbs`.
    pub(super) fn switch_wbs(self: &Arc<Self>, slot: u32) {
        let engine = self.super_block().engine();
        if self.is_switching() || engine.switches.in_flight() > MAX_IN_FLIGHT {
            return;
        }
        let Some(memcg) = engine.tenants.at(slot).filter(|memcg| memcg.is_root() || memcg.is_online()) else { return };
        let target = self.super_block().wb_get_create(&memcg);
        Switch::begin(self.super_block(), target).start(vec![Arc::clone(self)]);
    }
}

impl BdiWriteback {
    /// Executes the switches to this wb that are ready, and starts the grace period of those that are pending (S3).
    pub(in crate::writeback) fn run_switches(self: &Arc<Self>, engine: &Shared) {
        let (ready, contexts) = {
            let mut switches = self.switches.lock();
            (switches.take_ready(), switches.begin_grace())
        };
        if contexts != 0 {
            let wb = Arc::clone(self);
            tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
                contexts, "grace_period_begin");
            self.pool.rcu.call(move || {
                gate::pass("switch.grace");
                let contexts = wb.switches.lock().end_grace();
                tracing::trace!(target: "slackwater::writeback", volume = wb.bdi.name(), cgroup = %wb.memcg.id(),
                    contexts, "grace_period_end");
                wb.wake();
            });
        }
        for context in ready {
            context.run(engine);
        }
    }

    /// Drops all switches when the engine is dropped: no thread will execute them.
    pub(crate) fn forget_switches(&self) {
        let forgotten = self.switches.lock().take_all();
        drop(forgotten);
    }
}

impl Context {
    /// Executes one context.
    fn run(self, engine: &Shared) {
        let queue = &engine.switches;
        let moved = self.inodes.iter().filter(|inode| move_inode(inode, &self.target)).count();
        if moved != 0 {
            self.target.bdi.note_switched(moved as u64);
            queue.switched.fetch_add(moved as u64, Ordering::Relaxed);
            self.target.wake();
        }
        self.end(engine);
    }

    /// Leaves the inodes on their current wb (S4).
    pub(super) fn cancel(self, engine: &Shared) {
        for inode in &self.inodes {
            let state = inode.state.lock();
            inode.set_switching(false);
            drop(state);
            trace_refused(inode, "unmounted");
        }
        self.end(engine);
    }

    /// Drops the inodes, then the pins of their volume (S2).
    fn end(self, engine: &Shared) {
        let queue = &engine.switches;
        for inode in self.inodes {
            let sb = Arc::clone(inode.super_block());
            if sb.is_evicted() {
                queue.dead_uses.fetch_add(1, Ordering::Relaxed);
                tracing::error!(target: "slackwater::umount", volume = sb.name(), "a switch ended after its volume");
            }
            sb.forget_if_unused(&inode);
            drop(inode);
            gate::pass("switch.iput");
            queue.form.unpin(&sb);
        }
        self.target.put();
        queue.in_flight.fetch_sub(1, Ordering::SeqCst);
        queue.leave(self.phase);
    }
}

/// Moves one inode, with its counts and its place by age. False if it was freed or is on `new` already.
fn move_inode(inode: &Arc<Inode>, new: &Arc<BdiWriteback>) -> bool {
    loop {
        let old = inode.wb();
        if Arc::ptr_eq(&old, new) {
            let _state = inode.state.lock();
            inode.set_switching(false);
            return false;
        }
        let (mut from, mut to) = lock_two(&old.lists, &new.lists);
        let mut state = inode.state.lock();
        if !inode.belongs_to(&old) {
            continue;
        }
        if state.doomed {
            inode.set_switching(false);
            return false;
        }
        tracing::trace!(target: "slackwater::writeback", ino = inode.id().ino, old = %old.memcg.id(), new = %new.memcg.id(),
            "inode_switch_wbs");
        let list = from.list_of(inode);
        let when = from.when(inode).unwrap_or_default();
        from.remove(inode);
        new.get();
        inode.move_to(&old, new);
        match list {
            Some(ListName::Dirty | ListName::Io | ListName::MoreIo) => {
                to.place(inode, ListName::Dirty, state.dirtied_when.unwrap_or(when));
            }
            Some(list @ (ListName::Retry | ListName::Busy)) => to.place(inode, list, when),
            Some(ListName::Attached) | None if !new.is_root() => to.place(inode, ListName::Attached, when),
            Some(ListName::Attached) | None => {}
        }
        state.foreign = Foreign::default();
        inode.set_switching(false);
        drop(state);
        let is_last = list.is_some_and(|list| list != ListName::Attached) && old.is_dying() && !from.has_unclean();
        drop((from, to));
        if is_last {
            old.wake(); // its flusher moves its clean inodes away, and nothing else would wake it
        }
        old.put();
        return true;
    }
}

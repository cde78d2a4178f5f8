//! One unit of dirty lists, flusher work and counting: a [`BdiWriteback`].
//!
//! A volume has one root wb for now. Inodes reach their wb through `Inode::wb` only and a bdi knows slots,
//! not lists, so several wbs can share a bdi when tenants get their own.
//!
//! # Lock order
//! `pass` (rank 35: held by the one thread that runs the wb, across submissions) before `lists`
//! (`LIST_LOCK`) before `Inode::state`. `work` is a leaf.
//!
//! # Kernel counterpart
//! `struct bdi_writeback`; sem. 1.5.

use std::collections::VecDeque;

use slackwater_sync::PercpuCounter;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use slackwater_sync::shim::{Arc, Weak};

use crate::inode::{Inode, InodeState};
use crate::lock_order::{LEAVES, LIST_LOCK, WB_PASS};
use crate::page_cache::Mark;
use crate::super_block::SuperBlock;
use crate::units::Tick;
use crate::writeback::bdi::BackingDevInfo;
use crate::writeback::flusher::{FlusherPool, PassState};
use crate::writeback::io_lists::{IoLists, ListName};
use crate::writeback::work::WbWork;

/// Page counts of a wb; sem. 2.4.
pub(crate) struct WbStat {
    /// Dirty and not under write-back.
    pub(crate) reclaimable: PercpuCounter,
    /// Under write-back.
    pub(crate) writeback: PercpuCounter,
    /// Written, and not known to be durable.
    pub(crate) unstable: PercpuCounter,
}

/// See the [module documentation](self).
pub(crate) struct BdiWriteback {
    pub(crate) bdi: Arc<BackingDevInfo>,
    pub(crate) pool: Arc<FlusherPool>,
    pub(crate) lists: Mutex<IoLists>,
    pub(crate) work: Mutex<VecDeque<WbWork>>,
    pub(crate) stat: WbStat,
    pub(crate) pass: Mutex<PassState>,
    /// The last step ended because slots or the gate were closed, which will wake this wb.
    pub(crate) blocked: AtomicBool,
    /// `run` and `timer_at` belong to the pool, under its lock.
    pub(crate) run: AtomicU8,
    pub(crate) timer_at: AtomicU64,
    sb: Mutex<Weak<SuperBlock>>,
}

/// What an inode needs after its I/O ended or a flusher let go of it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Settled {
    /// Nothing: it waits on a list, or its I/O is in flight.
    Waiting,
    /// Its data is written and its metadata is due: submit it.
    WriteMeta,
    /// Nothing of it is dirty.
    Clean,
}

impl BdiWriteback {
    pub(crate) fn new(bdi: Arc<BackingDevInfo>, pool: Arc<FlusherPool>) -> Arc<Self> {
        let stat = WbStat {
            reclaimable: PercpuCounter::new(),
            writeback: PercpuCounter::new(),
            unstable: PercpuCounter::new(),
        };
        let now = pool.clock.now();
        Arc::new(Self {
            bdi,
            pool,
            lists: Mutex::new(LIST_LOCK, IoLists::new()),
            work: Mutex::new(LEAVES, VecDeque::new()),
            stat,
            pass: Mutex::new(WB_PASS, PassState::new(now)),
            blocked: AtomicBool::new(false),
            run: AtomicU8::new(0),
            timer_at: AtomicU64::new(u64::MAX),
            sb: Mutex::new(LEAVES, Weak::new()),
        })
    }

    /// The volume it belongs to, while that is alive.
    pub(crate) fn super_block(&self) -> Option<Arc<SuperBlock>> {
        self.sb.lock().upgrade()
    }

    pub(crate) fn set_super_block(&self, sb: &Arc<SuperBlock>) {
        *self.sb.lock() = Arc::downgrade(sb);
    }

    /// The volume is gone, or the engine goes away with dirty inodes: breaks the references between inodes,
    /// lists and pool.
    pub(crate) fn abandon(self: &Arc<Self>) {
        self.pool.forget(self);
        let inodes = self.lists.lock().clear();
        let work = std::mem::take(&mut *self.work.lock());
        self.bdi.unblock();
        drop((inodes, work));
    }

    /// Arms the timer of a wb that has dirty inodes since `when`.
    fn arm_periodic(self: &Arc<Self>, when: Tick) {
        let period = self.pool.tunables.dirty_writeback;
        if !period.is_zero() {
            self.pool.arm(self, when + period);
        }
    }

    /// Has the flusher look whether too much is dirty, unless it is about to, or cannot do anything now.
    pub(crate) fn start_background(self: &Arc<Self>) {
        if !self.blocked.load(Ordering::Acquire) && self.run.load(Ordering::Relaxed) == 0 {
            self.wake();
        }
    }

    /// Has a flusher run this wb soon.
    pub(crate) fn wake(self: &Arc<Self>) {
        self.pool.queue(self);
    }

    /// Queues work and wakes the flusher.
    pub(crate) fn queue_work(self: &Arc<Self>, work: WbWork) {
        tracing::trace!(target: "slackwater::writeback", reason = %work.reason, "writeback_queue");
        self.work.lock().push_back(work);
        self.wake();
    }

    /// Notes that pages or metadata of `inode` became dirty; its age starts now unless it was dirty.
    ///
    /// Called after the pages carry their mark, so whoever finds the inode clean afterwards has looked
    /// before and finds it on a list.
    pub(crate) fn mark_inode_dirty(self: &Arc<Self>, inode: &Arc<Inode>, meta: u8) {
        let when = {
            let mut state = inode.state.lock();
            if state.doomed {
                return;
            }
            state.meta |= meta;
            if state.dirtied_when.is_some() {
                return;
            }
            *state.dirtied_when.insert(self.pool.clock.now())
        };
        let mut lists = self.lists.lock();
        if lists.list_of(inode).is_some() || inode.super_block().alive().is_err() {
            return;
        }
        let idle = !lists.has_dirty_io();
        lists.place(inode, ListName::Dirty, when);
        drop(lists);
        if idle {
            self.arm_periodic(when);
        } else if self.blocked.load(Ordering::Acquire) && self.pool.over_background() {
            // Blocked for others: this one may have a slot.
            self.wake();
        }
    }

    /// Puts an inode where it belongs after its I/O ended, or after the flusher submitted what it could.
    /// `flusher`: the caller is the flusher and holds the inode on `Busy`.
    pub(crate) fn settle(self: &Arc<Self>, inode: &Arc<Inode>, now: Tick, flusher: bool) -> Settled {
        let mut lists = self.lists.lock();
        let mut state = inode.state.lock();
        let list = lists.list_of(inode);
        if !flusher && matches!(list, Some(ListName::Io | ListName::MoreIo)) {
            return Settled::Waiting; // I3: the flusher looks at it soon.
        }
        if inode.has_io(&state) || inode.is_being_cut() {
            return Settled::Waiting; // whoever ends it settles
        }
        let dirty = inode.mapping.count(Mark::Dirty) != 0;
        self.note_failure(&mut state, now);
        let dead = state.doomed || inode.super_block().alive().is_err();
        if dead || (!dirty && state.meta == 0) {
            (state.dirtied_when, state.failures, state.retry_at) = (None, 0, None);
            drop(state);
            lists.remove(inode);
            return Settled::Clean;
        }
        if let Some(due) = state.retry_at.filter(|due| *due > now) {
            drop(state);
            lists.place(inode, ListName::Retry, due);
            drop(lists);
            self.pool.arm(self, due);
            return Settled::Waiting;
        }
        if !dirty {
            state.dirtied_when = None;
            drop(state);
            lists.place(inode, ListName::Busy, now);
            return Settled::WriteMeta;
        }
        let when = *state.dirtied_when.get_or_insert(now);
        drop(state);
        let idle = !lists.has_dirty_io();
        lists.place(inode, ListName::Dirty, when);
        drop(lists);
        if idle {
            self.arm_periodic(when);
        }
        Settled::Waiting
    }

    /// Backs off after a failed attempt: each in a row doubles the wait.
    fn note_failure(&self, state: &mut InodeState, now: Tick) {
        if !std::mem::take(&mut state.failed) {
            return;
        }
        let tunables = &self.pool.tunables;
        let wait = tunables.retry_min.saturating_mul(1 << state.failures.min(20)).min(tunables.retry_max);
        state.failures += 1;
        state.retry_at = Some(now + wait);
    }
}

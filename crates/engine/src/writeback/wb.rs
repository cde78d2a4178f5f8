//! The unit of dirty lists, flusher work and counting: a [`BdiWriteback`].
//!
//! A volume has a root wb and one more for each tenant that writes to it. An inode finds its wb through `inode::Owner`,
//! and its wb may change. Slots belong to the bdi, lists to the wb.
//!
//! # References
//! An `Arc` keeps the memory. `refcnt` counts the life as a wb; the root wb has none. It holds one reference for each
//! inode of the wb, one for each context of a switch to it, and an initial one until the wb is killed. When the last
//! one is put, the flusher releases the wb ([`super::cgwb`]).
//!
//! # Lock order
//! `pass` (rank 35, held across submissions by the one thread that runs the wb), then `lists` (`LIST_LOCK`), then
//! `Inode::state`. `work` and `switches` are leaves.
//!
//! # Kernel counterpart
//! `struct bdi_writeback`.

use std::collections::VecDeque;

use slackwater_sync::lock::{Mutex, MutexGuard};
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use slackwater_sync::shim::{Arc, Weak};
use slackwater_sync::{Kick, PercpuCounter, PercpuRef};

use crate::cgroup::Memcg;
use crate::inode::{Inode, InodeState};
use crate::lock_order::{LEAVES, LIST_LOCK, WB_PASS};
use crate::page_cache::Mark;
use crate::super_block::SuperBlock;
use crate::throttle::ms_of;
use crate::units::Tick;
use crate::writeback::balance::WbThrottle;
use crate::writeback::bdi::BackingDevInfo;
use crate::writeback::cgwb::Switches;
use crate::writeback::flusher::PassState;
use crate::writeback::io_lists::{IoLists, ListName};
use crate::writeback::pool::FlusherPool;
use crate::writeback::work::WbWork;

/// Page counts of a wb. Only `Inode::account` changes them, which keeps them exact while inodes move.
pub(crate) struct WbStat {
    /// Dirty and not under write-back.
    pub(crate) reclaimable: PercpuCounter,
    /// Under write-back.
    pub(crate) writeback: PercpuCounter,
    /// Written but not yet durable.
    pub(crate) unstable: PercpuCounter,
    /// Pages of `reclaimable` that leave the cache once clean. Kernel: `WB_DONTCACHE_DIRTY`.
    pub(crate) dontcache_dirty: PercpuCounter,
}

impl WbStat {
    fn new() -> Self {
        Self {
            reclaimable: PercpuCounter::new(),
            writeback: PercpuCounter::new(),
            unstable: PercpuCounter::new(),
            dontcache_dirty: PercpuCounter::new(),
        }
    }

    pub(crate) fn add(&self, pages: Pages) {
        let Pages { reclaimable, writeback, unstable, dontcache_dirty } = pages;
        for (counter, pages) in [
            (&self.reclaimable, reclaimable),
            (&self.writeback, writeback),
            (&self.unstable, unstable),
            (&self.dontcache_dirty, dontcache_dirty),
        ] {
            if pages != 0 {
                counter.add(pages);
            }
        }
    }

    /// Exact when there are no concurrent changes.
    pub(crate) fn sum(&self) -> Pages {
        let sum = |counter: &PercpuCounter| counter.sum() as i64;
        Pages {
            reclaimable: sum(&self.reclaimable),
            writeback: sum(&self.writeback),
            unstable: sum(&self.unstable),
            dontcache_dirty: sum(&self.dontcache_dirty),
        }
    }
}

/// A change to the counts of a wb, or an inode's contribution to them.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub(crate) struct Pages {
    pub(crate) reclaimable: i64,
    pub(crate) writeback: i64,
    pub(crate) unstable: i64,
    pub(crate) dontcache_dirty: i64,
}

impl Pages {
    pub(crate) fn is_zero(self) -> bool {
        self == Self::default()
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            reclaimable: self.reclaimable + other.reclaimable,
            writeback: self.writeback + other.writeback,
            unstable: self.unstable + other.unstable,
            dontcache_dirty: self.dontcache_dirty + other.dontcache_dirty,
        }
    }

    pub(crate) fn negated(self) -> Self {
        Self {
            reclaimable: -self.reclaimable,
            writeback: -self.writeback,
            unstable: -self.unstable,
            dontcache_dirty: -self.dontcache_dirty,
        }
    }
}

/// See the [module documentation](self).
pub(crate) struct BdiWriteback {
    pub(crate) bdi: Arc<BackingDevInfo>,
    pub(crate) pool: Arc<FlusherPool>,
    pub(crate) memcg: Arc<Memcg>,
    /// `None` for the root wb.
    refcnt: Option<PercpuRef>,
    /// The last reference was put; the flusher shuts the wb down.
    is_released: AtomicBool,
    pub(crate) lists: Mutex<IoLists>,
    pub(crate) work: Mutex<VecDeque<WbWork>>,
    pub(crate) stat: WbStat,
    pub(crate) switches: Mutex<Switches>,
    pub(crate) throttle: WbThrottle,
    /// Another tenant that dirtied pages of this wb waits for them to be written. Kernel: a work item of reason
    /// `foreign_flush`.
    pub(crate) foreign_flush: AtomicBool,
    /// That tenant also waits for a commit.
    foreign_commit: AtomicBool,
    /// A DONTCACHE write has ended. Kernel: `WB_start_dontcache`.
    pub(crate) start_dontcache: Kick,
    pub(crate) pass: Mutex<PassState>,
    /// The last step stopped at used-up slots or a closed gate. Either will wake this wb.
    pub(crate) blocked: AtomicBool,
    /// Background slots of the bdi held by units of this wb; changes under the slots' lock.
    pub(super) slots_held: AtomicU32,
    /// The next two belong to the pool and are protected by its lock.
    pub(crate) run: AtomicU8,
    pub(crate) timer_at: AtomicU64,
    pub(crate) is_forgotten: AtomicBool,
    sb: Mutex<Weak<SuperBlock>>,
}

/// The next step for an inode whose I/O has ended or that a flusher has returned.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Settled {
    /// Nothing: it is on a list, or its I/O is in flight.
    Waiting,
    /// The inode's data is written and its metadata is due: the caller submits it.
    WriteMeta,
    /// The inode is clean.
    Clean,
}

impl BdiWriteback {
    /// The root wb of a bdi. Its super block is set later.
    pub(crate) fn root(bdi: Arc<BackingDevInfo>, pool: Arc<FlusherPool>, memcg: Arc<Memcg>) -> Arc<Self> {
        Arc::new(Self::build(bdi, pool, memcg, None, Weak::new()))
    }

    /// A wb of `memcg` on the volume of `sb`, with its initial reference.
    pub(crate) fn for_memcg(sb: &Arc<SuperBlock>, memcg: &Arc<Memcg>) -> Arc<Self> {
        let pool = &sb.engine().pool;
        Arc::new_cyclic(|this: &Weak<Self>| {
            let this = this.clone();
            let release = move || {
                if let Some(wb) = this.upgrade() {
                    wb.is_released.store(true, Ordering::Release);
                    wb.wake();
                }
            };
            let refcnt = PercpuRef::new(Arc::clone(&pool.rcu), release);
            let (bdi, sb) = (Arc::clone(sb.bdi()), Arc::downgrade(sb));
            Self::build(bdi, Arc::clone(pool), Arc::clone(memcg), Some(refcnt), sb)
        })
    }

    fn build(
        bdi: Arc<BackingDevInfo>,
        pool: Arc<FlusherPool>,
        memcg: Arc<Memcg>,
        refcnt: Option<PercpuRef>,
        sb: Weak<SuperBlock>,
    ) -> Self {
        let now = pool.clock.now();
        Self {
            lists: Mutex::keyed(LIST_LOCK, pool.number_wb(), IoLists::new()),
            bdi,
            pool,
            memcg,
            refcnt,
            is_released: AtomicBool::new(false),
            work: Mutex::new(LEAVES, VecDeque::new()),
            stat: WbStat::new(),
            switches: Mutex::new(LEAVES, Switches::default()),
            throttle: WbThrottle::new(now),
            foreign_flush: AtomicBool::new(false),
            foreign_commit: AtomicBool::new(false),
            start_dontcache: Kick::new(),
            pass: Mutex::new(WB_PASS, PassState::new(now)),
            blocked: AtomicBool::new(false),
            slots_held: AtomicU32::new(0),
            run: AtomicU8::new(0),
            timer_at: AtomicU64::new(u64::MAX),
            is_forgotten: AtomicBool::new(false),
            sb: Mutex::new(LEAVES, sb),
        }
    }

    /// The volume of this wb, while it exists.
    pub(crate) fn super_block(&self) -> Option<Arc<SuperBlock>> {
        self.sb.lock().upgrade()
    }

    pub(crate) fn set_super_block(&self, sb: &Arc<SuperBlock>) {
        *self.sb.lock() = Arc::downgrade(sb);
    }

    pub(crate) fn is_root(&self) -> bool {
        self.refcnt.is_none()
    }

    /// Takes another reference. The caller must already hold one.
    pub(crate) fn get(&self) {
        self.refcnt.iter().for_each(PercpuRef::get);
    }

    /// Takes a reference, unless the wb has been released.
    pub(crate) fn tryget(&self) -> bool {
        self.refcnt.as_ref().is_none_or(PercpuRef::tryget)
    }

    /// Takes a reference, unless the wb has been killed.
    pub(crate) fn tryget_live(&self) -> bool {
        self.refcnt.as_ref().is_none_or(PercpuRef::tryget_live)
    }

    pub(crate) fn put(&self) {
        self.put_many(1);
    }

    pub(crate) fn put_many(&self, references: u64) {
        self.refcnt.iter().for_each(|refcnt| refcnt.put_many(references));
    }

    /// Drops the initial reference. Returns false if that was already done, and for the root wb.
    pub(crate) fn kill_ref(&self) -> bool {
        self.refcnt.as_ref().is_some_and(PercpuRef::kill)
    }

    /// Whether it was killed: no more inodes are assigned to it.
    pub(crate) fn is_dying(&self) -> bool {
        self.refcnt.as_ref().is_some_and(PercpuRef::is_dying)
    }

    /// Whether the last reference has been put.
    pub(crate) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Acquire)
    }

    /// Breaks the reference cycles between inodes, lists and pool. Called when the wb is released, when its volume has
    /// ended, and when the engine is dropped with dirty inodes.
    pub(crate) fn abandon(self: &Arc<Self>) {
        self.pool.forget(self);
        let inodes = self.lists.lock().clear();
        let work = std::mem::take(&mut *self.work.lock());
        self.bdi.slots.note_running(self);
        drop((inodes, work));
    }

    /// Arms the periodic timer of a wb whose oldest dirty inode dates from `when`.
    fn arm_periodic(self: &Arc<Self>, when: Tick) {
        let period = self.bdi.ages.writeback(&self.pool.tunables);
        if !period.is_zero() {
            self.pool.arm(self, when + period);
        }
    }

    /// Makes the flusher look for old data now: data of a dead engine is old already, and this engine may not live for a
    /// period.
    pub(crate) fn start_periodic(self: &Arc<Self>) {
        self.pass.lock().note_old();
        self.wake();
    }

    /// Makes the flusher check the background threshold, unless it is queued, running or blocked.
    pub(crate) fn start_background(self: &Arc<Self>) {
        if !self.blocked.load(Ordering::Acquire) && self.run.load(Ordering::Relaxed) == 0 {
            tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
                "writeback_wake_background");
            self.wake();
        }
    }

    /// Writes back all dirty inodes for a tenant that has pages here and is short of frames.
    pub(crate) fn start_foreign_flush(self: &Arc<Self>) {
        self.foreign_commit.store(true, Ordering::Release);
        self.foreign_flush.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether the last unit that another tenant waits for has ended: true once per flush.
    pub(crate) fn foreign_flush_has_ended(&self) -> bool {
        self.foreign_commit.load(Ordering::Acquire)
            && !self.foreign_flush.load(Ordering::Acquire)
            && self.stat.writeback.sum() == 0
            && self.foreign_commit.swap(false, Ordering::AcqRel)
    }

    /// Has a flusher run this wb soon.
    pub(crate) fn wake(self: &Arc<Self>) {
        self.pool.queue(self);
    }

    /// Queues work. The caller then [wakes](Self::wake) the flusher, or runs the wb itself.
    pub(crate) fn queue_work(&self, work: WbWork) {
        tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
            reason = %work.reason, older_ms = ms_of(work.dirtied_before), "writeback_queue");
        self.work.lock().push_back(work);
    }
}

/// An inode's wb and that wb's lists, locked; neither changes while this is held.
pub(crate) struct LockedWb<'a> {
    pub(crate) wb: &'a Arc<BdiWriteback>,
    pub(crate) lists: MutexGuard<'a, IoLists>,
}

impl Inode {
    /// Runs `f` with the lists of the wb that this inode belongs to. Kernel: `locked_inode_to_wb_and_lock_list`.
    pub(crate) fn with_lists<R>(&self, f: impl FnOnce(LockedWb<'_>) -> R) -> R {
        loop {
            let wb = self.wb();
            let lists = wb.lists.lock();
            // It changes only under both locks.
            if self.belongs_to(&wb) {
                return f(LockedWb { wb: &wb, lists });
            }
        }
    }

    /// Records that pages or metadata became dirty. The inode's age starts now unless it was dirty already.
    ///
    /// The pages must carry their mark before the call. A thread that finds the inode clean after the call therefore
    /// looked before it, and finds the inode on a list. Kernel: `__mark_inode_dirty`.
    pub(crate) fn mark_dirty(self: &Arc<Self>, meta: u8) {
        self.mark_dirty_since(meta, None);
    }

    /// Marks as [`mark_dirty`](Self::mark_dirty) does; an inode that was clean is dirty since `since`, or since now.
    pub(crate) fn mark_dirty_since(self: &Arc<Self>, meta: u8, since: Option<Tick>) {
        let clock = &self.super_block().engine().clock;
        let when = {
            let mut state = self.state.lock();
            if state.doomed {
                return;
            }
            state.meta |= meta;
            if state.dirtied_when.is_some() {
                return;
            }
            let when = *state.dirtied_when.insert(since.unwrap_or_else(|| clock.now()));
            self.record_dirtied(when);
            when
        };
        tracing::trace!(target: "slackwater::writeback", volume = self.super_block().name(), ino = self.id().ino, flags = meta,
            "writeback_mark_inode_dirty");
        self.with_lists(|LockedWb { wb, mut lists }| {
            let waits = lists.list_of(self).is_some_and(|list| list != ListName::Attached);
            if waits || self.super_block().alive().is_err() {
                return;
            }
            let idle = !lists.has_dirty_io();
            lists.place(self, ListName::Dirty, when);
            drop(lists);
            tracing::trace!(target: "slackwater::writeback", volume = wb.bdi.name(), cgroup = %wb.memcg.id(),
                ino = self.id().ino, dirtied_when_ms = ms_of(when), "writeback_dirty_inode_enqueue");
            if idle {
                wb.arm_periodic(clock.now());
            } else if wb.blocked.load(Ordering::Acquire) && wb.is_over_background() {
                // Blocked by other inodes' units: this inode may still have a slot.
                wb.wake();
            }
            wb.note_listed();
        });
    }

    /// Puts the inode on the right list after its I/O has ended, or after the flusher has submitted what it could.
    /// `flusher`: the caller is the flusher and holds the inode on `Busy`. Kernel: `requeue_inode`.
    pub(crate) fn settle(self: &Arc<Self>, now: Tick, flusher: bool) -> Settled {
        self.with_lists(|locked| settle_locked(self, locked, now, flusher))
    }
}

fn settle_locked(inode: &Arc<Inode>, locked: LockedWb<'_>, now: Tick, flusher: bool) -> Settled {
    let LockedWb { wb, mut lists } = locked;
    let mut state = inode.state.lock();
    let list = lists.list_of(inode);
    if !flusher && matches!(list, Some(ListName::Io | ListName::MoreIo)) {
        return Settled::Waiting; // I3: the flusher looks at it soon.
    }
    if inode.has_io(&state) || inode.is_truncating() {
        return Settled::Waiting; // The completion of the last I/O settles it.
    }
    let dirty = inode.mapping.count(Mark::Dirty) != 0;
    wb.note_failure(&mut state, now);
    let dead = state.doomed || inode.super_block().alive().is_err();
    if dead || (!dirty && state.meta == 0) {
        (state.dirtied_when, state.failures, state.retry_at) = (None, 0, None);
        drop(state);
        if wb.is_root() {
            lists.remove(inode);
        } else {
            lists.place(inode, ListName::Attached, now);
            let moves_away = wb.is_dying() && !lists.has_unclean();
            drop(lists);
            if moves_away {
                wb.wake(); // to the nearest ancestor that is online
            }
        }
        return Settled::Clean;
    }
    if let Some(due) = state.retry_at.filter(|due| *due > now) {
        drop(state);
        lists.place(inode, ListName::Retry, due);
        drop(lists);
        wb.pool.arm(wb, due);
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
        wb.arm_periodic(when);
    }
    if !flusher && inode.counted().dontcache_dirty > 0 {
        inode.super_block().engine().dontcache.inode_relisted(wb);
    }
    wb.note_listed();
    Settled::Waiting
}

impl BdiWriteback {
    /// Backs off after a failed attempt: the delay doubles with each consecutive failure.
    fn note_failure(&self, state: &mut InodeState, now: Tick) {
        if !std::mem::take(&mut state.failed) {
            return;
        }
        state.retry_at = Some(now + self.pool.tunables.retry_after(state.failures));
        state.failures += 1;
    }
}

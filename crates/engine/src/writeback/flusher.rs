//! A run of a flusher. [`BdiWriteback::step`] is the whole policy and never waits: it submits what it may and returns
//! when it wants to run again. Work that it could not submit continues when a slot becomes free. A wb with nothing
//! dirty has no timer. [`super::pool`] calls it.
//!
//! # Lock order
//! `pass`, then the locks of the functions it calls.
//!
//! # Kernel counterpart
//! `wb_workfn`, `wb_do_writeback`, `wb_writeback`. Differs: it never blocks.

use std::time::Duration;

use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::inode::{Inode, InodeState};
use crate::page_cache::Mark;
use crate::super_block::SuperBlock;
use crate::throttle::ms_of;
use crate::units::{PAGE_BYTES, PageIndex, Tick};
use crate::writeback::dontcache::DontcachePass;
use crate::writeback::gate::Pass;
use crate::writeback::io_lists::{IoLists, ListName};
use crate::writeback::wb::{BdiWriteback, LockedWb, Settled};
use crate::writeback::work::WbReason;
use crate::writeback::write_inode::submit_meta;
use crate::writeback::writepages::{Awaits, Limit, Stop, Wrote, writepages};
use crate::writeback::{Round, UnitClass, commit};

/// Inodes visited before other wbs get their turn.
const INODES_PER_STEP: usize = 64;
/// Pages of one inode submitted before the next gets its turn: the default of `s_min_writeback_pages`, 4 MiB.
const CHUNK_PAGES: u64 = 1024;

/// When a wb wants to run again.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Next {
    /// At once: there is more to do.
    Again,
    /// At this time.
    At(Tick),
    /// When it is woken.
    Idle,
}

/// Flusher state kept between two steps of a wb.
pub(crate) struct PassState {
    last_old_flush: Tick,
    /// A periodic pass is running.
    periodic: bool,
    /// A pass for other tenants is running.
    foreign: bool,
    /// A pass for DONTCACHE writes is running.
    dontcache: Option<DontcachePass>,
    /// The front work item has been begun.
    work_begun: bool,
    /// Visits left for it, so that a program that keeps dirtying a file cannot prolong it for ever. Its issuer checks
    /// every inode afterwards.
    work_visits: u64,
    /// The reason it works for, and the pages submitted for it so far.
    running: Option<WbReason>,
    wrote_pages: u64,
}

impl PassState {
    pub(crate) fn new(now: Tick) -> Self {
        Self {
            last_old_flush: now,
            periodic: false,
            foreign: false,
            dontcache: None,
            work_begun: false,
            work_visits: 0,
            running: None,
            wrote_pages: 0,
        }
    }

    /// Data is old already: looks for it at the next step.
    pub(crate) fn note_old(&mut self) {
        self.periodic = true;
    }

    /// Records that a visit for `reason` has submitted `pages`.
    fn note_submitted(&mut self, reason: WbReason, pages: u64) {
        if reason == WbReason::DontCache {
            self.dontcache = self.dontcache.take().and_then(|pass| pass.less(pages));
        }
    }
}

/// The current task of a step.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
struct Plan {
    reason: WbReason,
    /// Inodes dirtied at or before this time belong to it.
    cutoff: Tick,
}

enum Visit {
    On,
    /// The inode's share of slots is in flight; other inodes may continue.
    HadShare,
    Blocked,
    HeldUntil(Tick),
}

impl BdiWriteback {
    /// Submits what is due at `now`.
    ///
    /// # Blocking
    /// Never blocks, and takes no lock that is held while waiting for I/O.
    pub(crate) fn step(self: &Arc<Self>, now: Tick) -> Next {
        let Some(sb) = self.super_block() else { return Next::Idle };
        self.run_switches(sb.engine());
        if self.is_released() {
            self.release(&sb);
            return Next::Idle;
        }
        if self.is_dying() {
            self.cleanup_offline(&sb);
        }
        let Some(_at_work) = sb.enter_flusher() else { return Next::Idle };
        let mut pass = self.pass.lock();
        if self.blocked.swap(false, Ordering::AcqRel) {
            self.bdi.slots.note_running(self);
        }
        self.lists.lock().queue_retries(Some(now));
        let commit_at = if self.is_root() {
            sb.refresh_space(now);
            commit::start_if_due(&sb, now)
        } else {
            self.want_commit_if_last(&sb);
            None
        };
        let mut full = false;
        for _ in 0..INODES_PER_STEP {
            let plan = self.plan(&mut pass, now);
            self.trace_pass(&mut pass, plan);
            let Some(plan) = plan else {
                if self.foreign_flush_has_ended() {
                    sb.want_commit(); // pages that another tenant waits for may already have been written
                }
                return self.next(&pass, commit_at);
            };
            let visit = match self.next_inode(&mut pass, plan, full) {
                Some(inode) => self.visit(&mut pass, &inode, plan.reason, now),
                None if full && self.bdi.slots.wake_on_free(self) => {
                    self.trace_wait(plan, "share");
                    // Only the slots of inodes at their share are taken, so look again for inodes that become old
                    // meanwhile.
                    self.blocked.store(true, Ordering::Release);
                    let again = now + self.bdi.ages.writeback(&self.pool.tunables).max(Duration::from_secs(1));
                    return Next::At(commit_at.map_or(again, |commit| commit.min(again)));
                }
                None if full => {
                    full = false;
                    Visit::On
                }
                None => {
                    self.plan_done(&mut pass, plan, now);
                    continue;
                }
            };
            match visit {
                Visit::On => {}
                Visit::HadShare => full = true,
                Visit::Blocked => {
                    self.trace_wait(plan, "slots");
                    self.blocked.store(true, Ordering::Release);
                    return commit_at.map_or(Next::Idle, Next::At);
                }
                Visit::HeldUntil(at) => {
                    self.trace_wait(plan, "gate");
                    self.blocked.store(true, Ordering::Release);
                    return Next::At(commit_at.map_or(at, |commit| commit.min(at)));
                }
            }
        }
        Next::Again
    }

    /// Whether the engine or the tenant has enough dirty pages to start write-back unasked. Approximate.
    pub(crate) fn is_over_background(&self) -> bool {
        self.pool.over_background() || self.memcg.over_background() || self.bdi.over_background()
    }

    /// Starts a commit if a writer of this tenant waits for frames and nothing is left to write.
    fn want_commit_if_last(&self, sb: &SuperBlock) {
        if !self.memcg.wants_frames() {
            return;
        }
        let pages = self.stat.sum();
        if pages.unstable != 0 && pages.reclaimable + pages.writeback == 0 {
            sb.want_commit();
        }
    }

    /// Chooses the task: queued work first, then old data, then foreign flushes, then DONTCACHE writes, then data over
    /// the background threshold. A task stops as soon as one of higher priority appears and resumes after it.
    fn plan(&self, pass: &mut PassState, now: Tick) -> Option<Plan> {
        let queued = self.work.lock().front().map(|work| Plan { reason: work.reason, cutoff: work.dirtied_before });
        if let Some(plan) = queued {
            if !std::mem::replace(&mut pass.work_begun, true) {
                tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
                    reason = %plan.reason, older_ms = ms_of(plan.cutoff), "writeback_exec");
                // A sync retries at once; back-off applies only to write-back that no caller waits for.
                let mut lists = self.lists.lock();
                lists.queue_retries(None);
                let chunks = self.stat.reclaimable.sum() / CHUNK_PAGES;
                pass.work_visits = chunks + 2 * lists.unclean() + INODES_PER_STEP as u64;
            }
            return Some(plan);
        }
        let tunables = &self.pool.tunables;
        let period = self.bdi.ages.writeback(tunables);
        if period > Duration::ZERO {
            if now.since(pass.last_old_flush) >= period {
                pass.periodic = true;
            }
            if pass.periodic {
                return Some(Plan { reason: WbReason::Periodic, cutoff: now - self.bdi.ages.expire(tunables) });
            }
        }
        // Taken here rather than cleared at the end of the pass, so that a request made during the pass starts another
        // one.
        pass.foreign |= self.foreign_flush.swap(false, Ordering::AcqRel);
        let over = self.is_over_background()
            || self.is_over_bg_thresh()
            || self.bdi.wants_frames()
            || self.bdi.nodes_are_short();
        let lists = self.lists.lock();
        if pass.foreign && lists.has_untried() {
            return Some(Plan { reason: WbReason::ForeignFlush, cutoff: Tick::MAX });
        }
        pass.foreign = false;
        if pass.dontcache.is_none() && lists.has_untried() {
            pass.dontcache = self.begin_dontcache(now);
        }
        if let Some(dontcache) = &pass.dontcache
            && lists.has_untried()
        {
            return Some(Plan { reason: WbReason::DontCache, cutoff: dontcache.begun });
        }
        pass.dontcache = None;
        if over && lists.has_untried() {
            return Some(Plan { reason: WbReason::Background, cutoff: Tick::MAX });
        }
        // Inodes that a pass has chosen and left in `Io`, and retries that are due.
        (lists.len(ListName::Io) != 0).then_some(Plan { reason: WbReason::Retry, cutoff: Tick(0) })
    }

    /// The next inode of the pass. With `full`, the inodes on `MoreIo` have their share in flight and stay there.
    fn next_inode(&self, pass: &mut PassState, plan: Plan, full: bool) -> Option<Arc<Inode>> {
        if plan.reason == WbReason::Sync {
            pass.work_visits = pass.work_visits.checked_sub(1)?;
        }
        let (moved, inode) = {
            let mut lists = self.lists.lock();
            let moved = (lists.len(ListName::Io) == 0).then(|| match plan.reason {
                WbReason::DontCache => lists.queue_oldest(plan.cutoff, !full),
                WbReason::Background
                | WbReason::Sync
                | WbReason::Periodic
                | WbReason::Retry
                | WbReason::ForeignFlush => lists.queue_io(plan.cutoff, !full),
            });
            (moved, lists.take_io())
        };
        if let Some(moved) = moved {
            tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
                reason = %plan.reason, older_ms = ms_of(plan.cutoff), age_ms = age_ms(self, plan.cutoff), moved,
                "writeback_queue_io");
        }
        inode
    }

    fn plan_done(&self, pass: &mut PassState, plan: Plan, now: Tick) {
        match plan.reason {
            WbReason::Periodic => {
                pass.periodic = false;
                pass.last_old_flush = now;
            }
            WbReason::ForeignFlush => pass.foreign = false,
            WbReason::DontCache => pass.dontcache = None,
            WbReason::Background | WbReason::Retry => {}
            WbReason::Sync => {
                pass.work_begun = false;
                let done = self.work.lock().pop_front();
                // Dropping the token wakes the waiter: do it outside the queue's lock.
                drop(done);
            }
        }
        self.trace_pass(pass, None);
    }

    /// Traces where a pass begins and ends; from here on the flusher works on `plan`.
    fn trace_pass(&self, pass: &mut PassState, plan: Option<Plan>) {
        let reason = plan.map(|plan| plan.reason);
        if pass.running == reason {
            return;
        }
        let wrote = std::mem::take(&mut pass.wrote_pages);
        if let Some(ended) = std::mem::replace(&mut pass.running, reason) {
            tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
                reason = %ended, wrote, "writeback_written");
        }
        if let Some(begun) = reason {
            tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
                reason = %begun, nr_pages = self.stat.reclaimable.read(), "writeback_start");
        }
    }

    fn trace_wait(&self, plan: Plan, wants: &str) {
        tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
            reason = %plan.reason, wants, "writeback_wait");
    }

    fn next(&self, pass: &PassState, commit_at: Option<Tick>) -> Next {
        let lists = self.lists.lock();
        let period = self.bdi.ages.writeback(&self.pool.tunables);
        let old = (period > Duration::ZERO && lists.has_dirty_io()).then(|| pass.last_old_flush + period);
        let retry = lists.first(ListName::Retry);
        [old, retry, commit_at].into_iter().flatten().min().map_or(Next::Idle, Next::At)
    }

    /// Submits one chunk of `inode`, which the flusher holds on `Busy`.
    fn visit(self: &Arc<Self>, pass: &mut PassState, inode: &Arc<Inode>, reason: WbReason, now: Tick) -> Visit {
        let unit_bytes = self.bdi.limits().unit_bytes;
        let gate = match reason {
            // A caller waits: the gate holds background units only.
            WbReason::Sync => Pass::unlimited(unit_bytes),
            WbReason::Background
            | WbReason::Periodic
            | WbReason::Retry
            | WbReason::ForeignFlush
            | WbReason::DontCache => self.bdi.gate.pass(self, now, self.pool.tunables.gate_hold, unit_bytes),
        };
        let (unit_bytes, bytes, flushing) = match gate {
            Pass::Open { unit_bytes, bytes, flushing } => (unit_bytes, bytes, flushing),
            Pass::Held(until) => {
                self.put_back(inode, now);
                return Visit::HeldUntil(until);
            }
        };
        let age = {
            let mut state = inode.state.lock();
            state.dirtied_when.take()
        };
        self.note_write_starts();
        let class = UnitClass::Background(Arc::clone(self));
        let (pages, gated) = (CHUNK_PAGES.min(bytes / PAGE_BYTES), reason != WbReason::Sync);
        let limit = Limit { pages, unit_bytes, class: &class, gated, flushing, awaits: Awaits::Nothing };
        let mut whole = PageIndex(0)..PageIndex(u64::MAX);
        let mut round = Round::begin(inode);
        tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
            ino = inode.id().ino, age_ms = age_ms(self, age.unwrap_or(now)), nr_to_write = limit.pages,
            "writeback_single_inode_start");
        let Wrote { pages: wrote, stop } = writepages(inode, Mark::Dirty, &mut whole, limit, &mut round);
        // Nothing was submitted of an inode that will be listed again at once: a writer is copying to its pages and
        // will kick the flusher afterwards. It must count, or the pass would revisit it until the copy is done.
        let (dirty, writeback) = (inode.mapping.count(Mark::Dirty), inode.mapping.count(Mark::Writeback));
        let is_stalled = stop == Stop::End && dirty != 0 && writeback == 0;
        pass.note_submitted(reason, wrote.max(u64::from(is_stalled)));
        round.end(inode);
        pass.wrote_pages += wrote;
        tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
            ino = inode.id().ino, dirtied_when_ms = ms_of(age.unwrap_or(now)), writeback_index = whole.start.0, wrote, ?stop,
            "writeback_single_inode");
        if stop == Stop::End && inode.mapping.count(Mark::Dirty) != 0 {
            // Keep its age, in case it waits for a truncation or for older units to end.
            note_age(&mut inode.state.lock(), age.unwrap_or(now));
        }
        if stop != Stop::End && inode.mapping.count(Mark::Dirty) != 0 {
            let age = age.unwrap_or(now);
            return match stop {
                Stop::Slots => {
                    self.put_back(inode, age);
                    Visit::Blocked
                }
                Stop::Gate => {
                    self.put_back(inode, age);
                    Visit::HeldUntil(now + self.pool.tunables.gate_hold)
                }
                Stop::Share | Stop::Pages | Stop::End => {
                    self.return_to(inode, age, |lists| lists.place(inode, ListName::MoreIo, now));
                    if stop == Stop::Share { Visit::HadShare } else { Visit::On }
                }
            };
        }
        match inode.settle(now, true) {
            Settled::WriteMeta => {
                let _ = submit_meta(inode, false);
            }
            Settled::Clean => inode.release_if_clean(),
            Settled::Waiting => {}
        }
        Visit::On
    }

    /// Puts back an inode, dirty since `age`, that this wb took from `Io` and could not submit.
    fn put_back(self: &Arc<Self>, inode: &Arc<Inode>, age: Tick) {
        self.return_to(inode, age, |lists| lists.put_back(inode));
    }

    /// Returns an inode that this wb took from `Io` to one of its lists. An inode that has been switched to another wb
    /// meanwhile is placed on that wb's `Dirty` list instead. If it is no longer on `Busy`, the completion of its I/O
    /// has settled it and it stays where it is. On `Dirty` it then gets its older age. A clean one gets no age, because
    /// that would keep the next writer from listing it.
    fn return_to(self: &Arc<Self>, inode: &Arc<Inode>, age: Tick, place: impl FnOnce(&mut IoLists)) {
        let requeued = inode.with_lists(|LockedWb { wb, mut lists }| {
            let list = lists.list_of(inode);
            if !matches!(list, Some(ListName::Busy | ListName::Dirty)) {
                return None;
            }
            let when = note_age(&mut inode.state.lock(), age);
            if list == Some(ListName::Dirty) {
                lists.place(inode, ListName::Dirty, when);
                return Some(when);
            }
            if Arc::ptr_eq(wb, self) {
                place(&mut lists);
                return Some(when);
            }
            lists.place(inode, ListName::Dirty, when);
            drop(lists);
            wb.wake();
            Some(when)
        });
        if let Some(when) = requeued {
            tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
                ino = inode.id().ino, dirtied_when_ms = ms_of(when), age_ms = age_ms(self, when),
                "writeback_sb_inodes_requeue");
        }
    }
}

/// Keeps the older age: a part of what was dirty since `age` is still dirty, whatever happened to the rest.
fn note_age(state: &mut InodeState, age: Tick) -> Tick {
    let when = state.dirtied_when.map_or(age, |when| when.min(age));
    *state.dirtied_when.insert(when)
}

/// Time since `when`, in milliseconds, for a trace.
fn age_ms(wb: &BdiWriteback, when: Tick) -> u64 {
    ms_of(Tick(wb.pool.clock.now().0.saturating_sub(when.0)))
}

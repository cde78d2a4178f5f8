//! Connects writers to the throttle: collects the counters and decides whether a writer that dirtied pages must pause.
//!
//! These domains count: the arena, the writer's tenant and those above it that have a limit. As in the kernel, the decision
//! concerns the writer's own wb on the volume, whichever wb the inode belongs to.
//!
//! # Lock order
//! The writer's account (`F_LOCK`), then the wb's rates, a leaf. The domains' locks are leaves too and are never held
//! together.
//!
//! # Kernel counterpart
//! `balance_dirty_pages_ratelimited`, `wb_over_bg_thresh`.

use slackwater_sync::PercpuCounter;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cgroup::Memcg;
use crate::lock_order::{F_LOCK, LEAVES};
use crate::super_block::SuperBlock;
use crate::throttle::{
    Dirtier, DirtyRatios, DomainKind, DomainSample, FpropLocal, Input, LEVELS_MAX, LimitMode, Pause, Thresholds,
    WbDomain, WbRates, balance, ms_of, needs_exact_sum,
};
use crate::tunables::Tunables;
use crate::units::{PAGE_BYTES, Tick};
use crate::writeback::wb::BdiWriteback;

/// The global dirty domain: the whole arena.
pub(crate) struct GlobalDomain {
    domain: WbDomain,
    pub(crate) thresholds: Thresholds,
    mode: LimitMode,
    /// Dirty pages of all volumes, excluding those under write-back.
    pub(crate) nr_dirty: PercpuCounter,
    /// Pages under write-back, or written and not yet durable.
    pub(crate) nr_writeback: PercpuCounter,
}

impl GlobalDomain {
    pub(crate) fn new(tunables: &Tunables, frames: u64) -> Self {
        Self {
            domain: WbDomain::new(),
            thresholds: Thresholds::of_available(frames, DirtyRatios::of(tunables)),
            mode: if tunables.strict_limit { LimitMode::Strict } else { LimitMode::Shared },
            nr_dirty: PercpuCounter::new(),
            nr_writeback: PercpuCounter::new(),
        }
    }
}

/// `pages` in KiB.
fn kib(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_BYTES / 1024)
}

/// Throttling state of a wb.
pub(crate) struct WbThrottle {
    rates: Mutex<WbRates>,
    completions: FpropLocal,
    /// Those in the domains of the tenant and of its ancestors, by their level.
    memcg_completions: [FpropLocal; LEVELS_MAX],
    /// Pages dirtied and written since the wb was created. Kernel: `WB_DIRTIED`, `WB_WRITTEN`.
    dirtied_pages: AtomicU64,
    written_pages: AtomicU64,
    /// Pages dirtied by writers that ended before they balanced. Kernel: `dirty_throttle_leaks`.
    leaked_pages: AtomicU64,
    dirty_exceeded: AtomicBool,
}

impl WbThrottle {
    pub(crate) fn new(now: Tick) -> Self {
        Self {
            rates: Mutex::new(LEAVES, WbRates::new(ms_of(now))),
            completions: FpropLocal::new(),
            memcg_completions: std::array::from_fn(|_| FpropLocal::new()),
            dirtied_pages: AtomicU64::new(0),
            written_pages: AtomicU64::new(0),
            leaked_pages: AtomicU64::new(0),
            dirty_exceeded: AtomicBool::new(false),
        }
    }

    pub(crate) fn note_dirtied(&self, pages: u64) {
        self.dirtied_pages.fetch_add(pages, Ordering::Relaxed);
    }
}

/// The account of a writer: one per open description, shared by all processes that write through it.
pub(crate) struct WriterAccount {
    /// Pages dirtied since the last balance.
    nr_dirtied: AtomicU64,
    /// The last pause asked the writer to balance again before it continues.
    must_retry: AtomicBool,
    dirtier: Mutex<Dirtier>,
}

impl WriterAccount {
    pub(crate) fn new() -> Self {
        Self {
            nr_dirtied: AtomicU64::new(0),
            must_retry: AtomicBool::new(false),
            dirtier: Mutex::new(F_LOCK, Dirtier::new()),
        }
    }

    pub(crate) fn note_dirtied(&self, pages: u64) {
        self.nr_dirtied.fetch_add(pages, Ordering::Relaxed);
    }

    /// Balances the account if it is time to. Kernel: `balance_dirty_pages_ratelimited`.
    pub(crate) fn balance(&self, sb: &Arc<SuperBlock>, memcg: &Arc<Memcg>) -> Pause {
        let must_retry = self.must_retry.load(Ordering::Relaxed);
        if !must_retry && self.nr_dirtied.load(Ordering::Relaxed) == 0 {
            return Pause::None;
        }
        let Some(mut dirtier) = self.dirtier.try_lock() else { return Pause::None };
        let wb = sb.wb_get_create(memcg);
        let throttle = &wb.throttle;
        let mut pages = self.nr_dirtied.swap(0, Ordering::Relaxed);
        if throttle.leaked_pages.load(Ordering::Relaxed) != 0 {
            pages += throttle.leaked_pages.swap(0, Ordering::Relaxed);
        }
        let pause = if dirtier.dirtied(pages, throttle.dirty_exceeded.load(Ordering::Relaxed)) || must_retry {
            wb.balance_dirty_pages(&mut dirtier)
        } else {
            Pause::None
        };
        wb.put();
        self.must_retry.store(matches!(pause, Pause::RetryAfter(_)), Ordering::Relaxed);
        pause
    }

    /// Called when the writer ends: the pages it still owes are charged to the next writer.
    pub(crate) fn detach(&mut self, wb: &BdiWriteback) {
        let dirtier = std::mem::replace(self.dirtier.get_mut(), Dirtier::new());
        let left = dirtier.close() + *self.nr_dirtied.get_mut();
        if left != 0 {
            wb.throttle.leaked_pages.fetch_add(left, Ordering::Relaxed);
        }
    }
}

impl BdiWriteback {
    /// Smoothed write bandwidth of the device for this wb, in pages per second; at least 1.
    pub(crate) fn avg_write_bandwidth(&self) -> u64 {
        self.throttle.rates.lock().bandwidth.avg_pages_per_s()
    }

    /// Last measured write bandwidth of the device for this wb, in pages per second.
    fn write_bandwidth(&self) -> u64 {
        self.throttle.rates.lock().bandwidth.pages_per_s()
    }

    /// Pages written back since the wb was created.
    pub(crate) fn written_pages(&self) -> u64 {
        self.throttle.written_pages.load(Ordering::Relaxed)
    }

    /// Records that write-back begins, perhaps after an idle time.
    pub(crate) fn note_write_starts(&self) {
        if self.stat.writeback.read() == 0 {
            let written = self.throttle.written_pages.load(Ordering::Relaxed);
            self.throttle.rates.lock().bandwidth.write_starts(written, ms_of(self.pool.clock.now()));
        }
    }

    /// Records that `pages` of this wb were written.
    pub(crate) fn note_written(&self, pages: u64) {
        let throttle = &self.throttle;
        let now_ms = ms_of(self.pool.clock.now());
        let written = throttle.written_pages.fetch_add(pages, Ordering::Relaxed) + pages;
        self.pool.global.domain.completed(&throttle.completions, pages, now_ms);
        for (level, memcg, _) in self.memcg.limited() {
            memcg.domain().completed(&throttle.memcg_completions[level], pages, now_ms);
        }
        throttle.rates.lock().bandwidth.update(written, now_ms);
    }

    /// Whether it writes back unasked: a domain has more dirty pages than its background level, or this wb more than
    /// its share of that. Pages under write-back do not count. Kernel: `wb_over_bg_thresh`.
    pub(crate) fn is_over_bg_thresh(&self) -> bool {
        let (global, throttle) = (&self.pool.global, &self.throttle);
        let now_ms = ms_of(self.pool.clock.now());
        let wb_dirty = self.stat.reclaimable.read();
        let over = |domain: &WbDomain, local: &FpropLocal, thresholds: Thresholds, dirty: u64| {
            domain.is_over_background(local, thresholds, dirty, wb_dirty, global.mode, now_ms)
        };
        over(&global.domain, &throttle.completions, global.thresholds, global.nr_dirty.read())
            || self.memcg.limited().any(|(level, memcg, thresholds)| {
                let local = &throttle.memcg_completions[level];
                over(memcg.domain(), local, thresholds, memcg.charged_pages().min(wb_dirty))
            })
    }

    fn balance_dirty_pages(self: &Arc<Self>, dirtier: &mut Dirtier) -> Pause {
        let now_ms = ms_of(self.pool.clock.now());
        let input = self.sample(now_ms);
        let verdict = balance(&input, &mut self.throttle.rates.lock(), dirtier, now_ms);
        if verdict.dirty_exceeded != self.throttle.dirty_exceeded.load(Ordering::Relaxed) {
            self.throttle.dirty_exceeded.store(verdict.dirty_exceeded, Ordering::Relaxed);
        }
        if let Some(rates) = verdict.rate_update {
            tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
                write_bw_kib_s = kib(self.write_bandwidth()), avg_write_bw_kib_s = kib(self.avg_write_bandwidth()),
                dirty_rate_kib_s = kib(rates.dirty_pages_per_s), dirty_ratelimit_kib_s = kib(rates.pages_per_s),
                task_ratelimit_kib_s = kib(rates.task_pages_per_s),
                balanced_dirty_ratelimit_kib_s = kib(rates.balanced_pages_per_s), "bdi_dirty_ratelimit");
        }
        if verdict.start_background {
            self.start_background();
        }
        let pause = verdict.decision;
        let (Pause::For(time) | Pause::RetryAfter(time)) = pause else { return pause };
        self.want_commit_if_unstable();
        self.memcg.note_pause(time);
        self.bdi.note_pause(time);
        let by_tenant = verdict.governed_by == Some(DomainKind::Memcg);
        tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
            dirty = input.global.dirty_pages, writeback = input.global.writeback_pages,
            bg_thresh = input.global.thresholds.background_pages, thresh = input.global.thresholds.thresh_pages,
            limit = input.global.dirty_limit_pages, "global_dirty_state");
        tracing::trace!(target: "slackwater::writeback", volume = self.bdi.name(), cgroup = %self.memcg.id(),
            wb_dirty = input.global.wb_dirty_pages, by_tenant, pause = time.as_millis() as u64, "balance_dirty_pages");
        self.memcg.flush_foreign(self.pool.clock.now(), &self.pool.tunables);
        pause
    }

    /// Requests a commit if writers wait and half of this wb's pages are written but not yet durable: only a commit
    /// frees them.
    fn want_commit_if_unstable(&self) {
        let unstable = self.stat.unstable.read();
        if unstable != 0
            && 2 * unstable >= self.held_pages(false)
            && let Some(sb) = self.super_block()
        {
            sb.want_commit();
        }
    }

    fn sample(&self, now_ms: u64) -> Input {
        let global = &self.pool.global;
        let stat_error_pages = self.stat.reclaimable.max_error();
        let sample = |domain: &WbDomain, local: &FpropLocal, thresholds: Thresholds, dirty: u64, writeback: u64| {
            let limits = domain.wb_limits(local, thresholds, dirty + writeback, global.mode, now_ms);
            DomainSample {
                thresholds,
                dirty_pages: dirty,
                writeback_pages: writeback,
                dirty_limit_pages: limits.dirty_limit_pages,
                share: limits.share,
                wb_dirty_pages: self.held_pages(needs_exact_sum(limits.share.thresh_pages, stat_error_pages)),
            }
        };
        let throttle = &self.throttle;
        let mut memcgs = [None; LEVELS_MAX];
        for (level, memcg, thresholds) in self.memcg.limited() {
            let local = &throttle.memcg_completions[level];
            memcgs[level] = Some(sample(memcg.domain(), local, thresholds, memcg.charged_pages(), 0));
        }
        let (dirty, writeback) = (global.nr_dirty.read(), global.nr_writeback.read());
        Input {
            global: sample(&global.domain, &throttle.completions, global.thresholds, dirty, writeback),
            memcgs,
            mode: global.mode,
            dirtied_pages: throttle.dirtied_pages.load(Ordering::Relaxed),
            written_pages: throttle.written_pages.load(Ordering::Relaxed),
            stat_error_pages,
        }
    }

    /// Pages of this wb that are dirty, under write-back or not yet durable.
    fn held_pages(&self, exact: bool) -> u64 {
        let counters = [&self.stat.reclaimable, &self.stat.writeback, &self.stat.unstable];
        counters.iter().map(|counter| if exact { counter.sum() } else { counter.read() }).sum()
    }
}

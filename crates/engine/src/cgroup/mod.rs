//! Tenants: who owns dirty data, and how much of it they may have.
//!
//! A [`Memcg`] stands for both a cgroup's memory and its io controller. Frames record the tenant that dirtied them last
//! ([`FrameOwners`]). Inodes belong to a wb of the tenant that writes most of them (`writeback::cgwb`).
//!
//! # Parts
//! - `tenants` and `owners`: the table of tenants, and the tenant that each frame is charged to.
//! - `foreign`: wbs of other tenants with pages that a tenant has dirtied.
//! - `held_nodes`: backend nodes that stay open for a tenant.
//! - `finder`: finding tenants again after a crash.
//!
//! # States
//! | state | meaning | left by |
//! |---|---|---|
//! | `Online` | new wbs are created for it | `Engine::memcg_offline` |
//! | `Dying` | no new wbs; its wbs are being killed | the same call |
//! | `Offline` | all its wbs are killed; its inodes move to the nearest online ancestor as they become clean | the release of its last frame and wb |
//! | `Released` | nothing is charged to it and it has no wbs: its slot in the table is free | - |
//!
//! # Invariants
//! T1. `charged_pages` counts the frames that cannot be dropped (dirty, under write-back, replaced meanwhile, not yet
//!     durable) and whose owner is this tenant or a descendant. The root counts none: its count would equal the bdi's.
//! T2. A slot is reused for another tenant only after the last frame that names it was uncharged.
//! T3. `cgwbs` is `None` from `Dying` on. It is checked under its lock before a wb is added.
//! T4. A writer is refused only after it has set `want_frames` of the tenants that are full, and has then found them
//!     still full. A thread that uncharges a tenant checks `want_frames` afterwards and wakes the waiters. So no writer
//!     waits for frames that are free.
//!
//! # Memory ordering
//! T4 is the barrier pair of [`Demand`]. All other atomics stand alone.
//!
//! # Lock order
//! `cgwbs` (`CGROUP`) comes before a wb's lists; only leaves are taken under it. The table is a leaf.
//!
//! # Kernel counterpart
//! `struct mem_cgroup` with `cgwb_list` and `memcg_cgwb_domain`. Differs: a frame belongs to the tenant that
//! dirtied it last, not to the one that touched it first.

mod finder;
mod foreign;
mod held_nodes;
mod owners;
mod tenants;

pub(crate) use finder::TenantFinder;
pub(crate) use held_nodes::{HeldCount, HeldNodes, Hold};
pub(crate) use owners::{FrameOwners, Uncharges};
pub(crate) use tenants::Tenants;

use std::fmt;
use std::time::Duration;

use slackwater_sync::Demand;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};

use crate::cgroup::foreign::ForeignWbs;
use crate::lock_order::{CGROUP, LEAVES};
use crate::reclaim::Lruvec;
use crate::super_block::{ReadCounts, SuperBlock};
use crate::throttle::{DirtyRatios, LEVELS_MAX, Thresholds, WbDomain};
use crate::tunables::Tunables;
use crate::units::{PAGE_BYTES, Tick};
use crate::wait::Progress;
use crate::writeback::BdiWriteback;

/// Number of a tenant, never reused in the life of an engine. Kernel: `css->id`.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct MemcgId(pub(crate) u64);

impl MemcgId {
    /// The tenant charged for whatever no other tenant is charged for.
    pub const ROOT: MemcgId = MemcgId(0);

    /// The number itself.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for MemcgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// State of a tenant's life cycle.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
#[repr(u8)]
pub enum MemcgState {
    /// In use.
    Online = 0,
    /// Being taken offline.
    Dying = 1,
    /// No process writes for it any more; some of its data is left.
    Offline = 2,
    /// Nothing of it is left.
    Released = 3,
}

const NO_LIMIT: u64 = u64::MAX;

/// A tenant. Kernel: `struct mem_cgroup`.
pub struct Memcg {
    id: MemcgId,
    /// The tenant's index in the table, which frames record.
    slot: u32,
    name: String,
    /// See [`Memcg::set_key`].
    key: AtomicU64,
    /// `None` for the root and for its direct children.
    parent: Option<Arc<Memcg>>,
    state: AtomicU8,
    limit_pages: AtomicU64,
    charged_pages: AtomicI64,
    /// A writer is waiting for frames: its wbs write back whatever the thresholds are (T4).
    want_frames: Demand,
    /// Total length of the pauses imposed on its writers.
    paused_ns: AtomicU64,
    /// Where its writers wait for frames.
    progress: Arc<Progress>,
    /// The ratio of its background level to its limit is that of these two percentages.
    ratios: DirtyRatios,
    /// The tenant's dirty limit, divided among its wbs. Kernel: `cgwb_domain`.
    domain: WbDomain,
    foreign: Mutex<ForeignWbs>,
    /// The queues of clean pages cached for it.
    pub(crate) lruvec: Lruvec,
    /// Hits and misses of its reads.
    pub(crate) reads: ReadCounts,
    /// Nodes held open for it.
    pub(crate) held: HeldCount,
    /// T3.
    cgwbs: Mutex<Option<Vec<Arc<BdiWriteback>>>>,
}

impl Memcg {
    /// The most tenants, one above the other, whose limits slow writers down. The limits of those further above still
    /// refuse writes.
    pub const LEVELS_MAX: usize = LEVELS_MAX;

    fn new(
        id: MemcgId,
        slot: u32,
        name: &str,
        parent: Option<Arc<Memcg>>,
        limit_bytes: Option<u64>,
        ratios: DirtyRatios,
        progress: &Arc<Progress>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            slot,
            name: name.into(),
            key: AtomicU64::new(0),
            parent: parent.filter(|parent| !parent.is_root()),
            state: AtomicU8::new(MemcgState::Online as u8),
            limit_pages: AtomicU64::new(pages_of(limit_bytes)),
            charged_pages: AtomicI64::new(0),
            want_frames: Demand::new(),
            paused_ns: AtomicU64::new(0),
            progress: Arc::clone(progress),
            ratios,
            domain: WbDomain::new(),
            foreign: Mutex::new(LEAVES, ForeignWbs::default()),
            lruvec: Lruvec::new(),
            reads: ReadCounts::default(),
            held: HeldCount::default(),
            cgwbs: Mutex::keyed(CGROUP, id.0, Some(Vec::new())),
        })
    }

    /// The tenant's number.
    pub fn id(&self) -> MemcgId {
        self.id
    }

    /// The name it was created with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives it a number by which it is found again after the death of this process: see [`Engine::find_tenants_by`].
    /// Called before anything is charged to it. The root needs none.
    ///
    /// [`Engine::find_tenants_by`]: crate::Engine::find_tenants_by
    pub fn set_key(&self, key: u64) {
        self.key.store(key, Ordering::Relaxed);
    }

    /// The number by which it is found again; 0 if there is none.
    pub(crate) fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// The tenant's parent, unless that is the root.
    pub fn parent(&self) -> Option<&Arc<Memcg>> {
        self.parent.as_ref()
    }

    /// The state of its life cycle.
    pub fn state(&self) -> MemcgState {
        match self.state.load(Ordering::Acquire) {
            0 => MemcgState::Online,
            1 => MemcgState::Dying,
            2 => MemcgState::Offline,
            _ => MemcgState::Released,
        }
    }

    /// The most bytes that may be dirty for it and its descendants, rounded to pages; `None` if only the volumes'
    /// shares limit it.
    pub fn limit_bytes(&self) -> Option<u64> {
        match self.limit_pages.load(Ordering::Relaxed) {
            NO_LIMIT => None,
            pages => Some(pages * PAGE_BYTES),
        }
    }

    /// Sets how much may be dirty for it from now on. Dirty data above the new limit is written back first. With a
    /// limit smaller than one write, each write proceeds once the one before it is durable.
    pub fn set_limit_bytes(&self, limit_bytes: Option<u64>) {
        if !self.is_root() {
            self.limit_pages.store(pages_of(limit_bytes), Ordering::Relaxed);
            self.domain.resized();
            self.progress.note();
        }
    }

    /// Bytes of frames that cannot be dropped and belong to it or a descendant (T1). Zero for the root.
    pub fn charged_bytes(&self) -> u64 {
        self.charged_pages() * PAGE_BYTES
    }

    pub(crate) fn charged_pages(&self) -> u64 {
        self.charged_pages.load(Ordering::Relaxed).max(0) as u64
    }

    pub(crate) fn is_root(&self) -> bool {
        self.id == MemcgId::ROOT
    }

    pub(crate) fn is_online(&self) -> bool {
        self.state() == MemcgState::Online
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// The limit in pages; more than any arena has if it has no limit.
    pub(crate) fn limit_pages(&self) -> u64 {
        self.limit_pages.load(Ordering::Relaxed)
    }

    /// The tenant, its ancestors and `root`, in the order in which they inherit its cached pages when those before are
    /// offline.
    pub(crate) fn self_and_heirs<'a>(&'a self, root: &'a Memcg) -> impl Iterator<Item = &'a Memcg> {
        self.lineage().chain([root])
    }

    /// The tenant and its ancestors, without the root.
    pub(crate) fn lineage(&self) -> impl Iterator<Item = &Memcg> {
        std::iter::successors(Some(self), |memcg| memcg.parent.as_deref()).filter(|memcg| !memcg.is_root())
    }

    /// Whether its charges also count for `other`.
    pub(crate) fn is_self_or_descendant_of(&self, other: &Memcg) -> bool {
        self.lineage().any(|memcg| memcg.id == other.id)
    }

    /// Whether it may dirty another write: it and its ancestors are below their limits or have nothing dirty. If not,
    /// its waiters are woken as soon as that may have changed (T4).
    pub(crate) fn may_dirty(&self) -> bool {
        self.lineage().all(|memcg| {
            memcg.is_below_limit() || {
                memcg.want_frames.raise(); // T4
                memcg.is_below_limit()
            }
        })
    }

    fn is_below_limit(&self) -> bool {
        let charged = self.charged_pages();
        charged == 0 || charged < self.limit_pages.load(Ordering::Relaxed)
    }

    /// Whether it has enough dirty pages for its wbs to write back unasked, or one of its writers is waiting.
    pub(crate) fn over_background(&self) -> bool {
        let over =
            |memcg: &Memcg| memcg.thresholds().is_some_and(|levels| memcg.charged_pages() > levels.background_pages);
        self.wants_frames() || self.lineage().any(over)
    }

    /// Whether one of its writers waits for frames.
    pub(crate) fn wants_frames(&self) -> bool {
        self.lineage().any(Memcg::wants_frames_itself)
    }

    /// The same for itself alone, without its ancestors.
    pub(crate) fn wants_frames_itself(&self) -> bool {
        self.want_frames.is_set()
    }

    /// Records a pause imposed on one of its writers.
    pub(crate) fn note_pause(&self, time: Duration) {
        self.paused_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn paused(&self) -> Duration {
        Duration::from_nanos(self.paused_ns.load(Ordering::Relaxed))
    }

    /// Whether the `unstable_pages` of one of its wbs block its writers, so that a commit is due.
    pub(crate) fn wants_commit(&self, unstable_pages: u64) -> bool {
        unstable_pages != 0
            && self.lineage().any(|memcg| {
                let limit = memcg.limit_pages.load(Ordering::Relaxed);
                let charged = memcg.charged_pages();
                limit != NO_LIMIT && charged > limit - limit / 4 && unstable_pages >= charged.min(limit / 4)
            })
    }

    /// Those of the tenant and its ancestors that have a limit, each with its level and the thresholds set by it. The tenant
    /// itself is level 0. Of more than [`LEVELS_MAX`], the nearest count.
    pub(crate) fn limited(&self) -> impl Iterator<Item = (usize, &Memcg, Thresholds)> {
        let levels = self.lineage().take(LEVELS_MAX).enumerate();
        levels.filter_map(|(level, memcg)| Some((level, memcg, memcg.thresholds()?)))
    }

    /// The levels set by its limit, if it has one.
    fn thresholds(&self) -> Option<Thresholds> {
        let limit = self.limit_pages.load(Ordering::Relaxed);
        (limit != NO_LIMIT).then(|| Thresholds::of_limit(limit, self.ratios))
    }

    pub(crate) fn domain(&self) -> &WbDomain {
        &self.domain
    }

    /// Records that it dirtied pages of `wb`, which belongs to another tenant.
    pub(crate) fn note_foreign(&self, wb: &Arc<BdiWriteback>, now: Tick) {
        tracing::trace!(target: "slackwater::writeback", cgroup = %self.id, owner = %wb.memcg.id(), "track_foreign_dirty");
        self.foreign.lock().note(wb, now);
    }

    /// Starts write-back of other tenants' wbs that hold dirty pages of it. Kernel: `mem_cgroup_flush_foreign`.
    pub(crate) fn flush_foreign(&self, now: Tick, tunables: &Tunables) {
        // Periodic write-back, if there is one, takes care of older pages.
        let expire = if tunables.dirty_writeback.is_zero() { Duration::MAX } else { tunables.dirty_expire };
        let foreign = self.foreign.lock().take(now, expire);
        for wb in &foreign {
            tracing::trace!(target: "slackwater::writeback", cgroup = %wb.memcg.id(), "flush_foreign");
            wb.start_foreign_flush();
        }
    }

    /// Called when one of its writers finds no free frame. Of the tenant and its ancestors, the full ones and their
    /// descendants start writing back. `volumes`: where their wbs may be.
    pub(crate) fn request_frames(&self, volumes: &[Arc<SuperBlock>]) {
        self.lineage().filter(|memcg| !memcg.is_below_limit()).for_each(|memcg| memcg.want_frames.raise());
        let Some(full) = self.outermost_full() else { return };
        // Does not use `cgwbs`: a descendant may be what fills it, and a tenant going offline has no list any more.
        let wake = |wb: &Arc<BdiWriteback>| {
            if wb.memcg.is_self_or_descendant_of(full) {
                wb.wake();
            }
        };
        volumes.iter().for_each(|sb| sb.for_each_wb(wake));
    }

    /// Of the tenant and its ancestors, the outermost one that is at its limit.
    fn outermost_full(&self) -> Option<&Memcg> {
        self.lineage().filter(|memcg| !memcg.is_below_limit()).last()
    }

    /// Those of `all` whose pages count for the outermost limit that this tenant waits for.
    pub(crate) fn all_below_full<'a>(&'a self, all: &'a [Arc<Memcg>]) -> impl Iterator<Item = &'a Arc<Memcg>> {
        let full = self.outermost_full();
        all.iter().filter(move |memcg| full.is_some_and(|full| memcg.is_self_or_descendant_of(full)))
    }

    /// Charges frames of it that can no longer be dropped.
    pub(crate) fn charge(&self, pages: i64) {
        for memcg in self.lineage() {
            memcg.charged_pages.fetch_add(pages, Ordering::Relaxed);
        }
    }

    fn uncharge(&self, pages: i64) {
        let mut is_wanted = false;
        for memcg in self.lineage() {
            let left = memcg.charged_pages.fetch_sub(pages, Ordering::Relaxed) - pages;
            if memcg.want_frames.is_raised() {
                is_wanted = true;
                if memcg.thresholds().is_none_or(|levels| left.max(0) as u64 <= levels.background_pages) {
                    memcg.want_frames.lower();
                }
            }
        }
        if is_wanted {
            self.progress.note(); // after `want_frames` was cleared, so that a writer that has just set it is woken
        }
    }

    /// Adds a wb that [`crate::writeback`] created for it. Fails from `Dying` on (T3).
    pub(crate) fn add_wb(&self, wb: &Arc<BdiWriteback>) -> bool {
        let mut cgwbs = self.cgwbs.lock();
        let Some(list) = cgwbs.as_mut() else { return false };
        list.push(Arc::clone(wb));
        true
    }

    /// Called when the volume of one of its wbs has ended.
    pub(crate) fn remove_wb(&self, wb: &Arc<BdiWriteback>) {
        if let Some(list) = self.cgwbs.lock().as_mut() {
            list.retain(|other| !Arc::ptr_eq(other, wb));
        }
    }

    /// Changes `Online` to `Dying`: no more wbs are created for it. Returns its wbs; `None` if it was not online.
    pub(crate) fn begin_offline(&self) -> Option<Vec<Arc<BdiWriteback>>> {
        if self.is_root() {
            return None;
        }
        let mut cgwbs = self.cgwbs.lock();
        let wbs = cgwbs.take()?;
        self.state.store(MemcgState::Dying as u8, Ordering::Release);
        Some(wbs)
    }

    pub(crate) fn set_offline(&self) {
        self.state.store(MemcgState::Offline as u8, Ordering::Release);
    }
}

impl fmt::Debug for Memcg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memcg({} {:?} {:?})", self.id, self.name, self.state())
    }
}

fn pages_of(limit_bytes: Option<u64>) -> u64 {
    limit_bytes.map_or(NO_LIMIT, |bytes| bytes / PAGE_BYTES)
}

//! Tenants: whose data is dirty, and how much of it there may be.
//!
//! One [`Memcg`] stands for a cgroup's memory and its io controller at once. Frames remember who dirtied them last
//! ([`FrameOwners`]), inodes belong to a wb of the tenant that writes most of them (`writeback::cgwb`).
//!
//! # States
//! | state | what holds | who leaves it |
//! |---|---|---|
//! | `Online` | new wbs are made for it | `Engine::memcg_offline` |
//! | `Dying` | no new wbs; its wbs are being killed | the same call |
//! | `Offline` | every wb of it has been killed; its inodes move to the nearest ancestor that is online as they become clean | the last of its frames and wbs |
//! | `Released` | nothing is charged to it and no wb has it: its slot in the table is free | - |
//!
//! # Invariants
//! T1. `charged_pages` counts the frames that cannot be dropped (dirty, under write-back, replaced meanwhile, not yet
//!     durable) whose owner is this tenant or a descendant. The root counts none: what it would be is the bdi's.
//! T2. A slot is given to another tenant only after the last frame that names it was uncharged.
//! T3. `cgwbs` is `None` from `Dying` on: who makes a wb looks under its lock.
//! T4. Who is refused has set `want_room` of the tenants that are full, and has then seen that they still are. Who uncharges
//!     one looks at it afterwards, and gives room: so nobody waits for what is there.
//!
//! # Memory ordering
//! T4 is the barrier pair of [`Demand`]. All else stands alone.
//!
//! # Lock order
//! `cgwbs` (`CGROUP`) is taken before a wb's lists, and nothing but leaves under it. The table is a leaf.
//!
//! # Kernel counterpart
//! `struct mem_cgroup` with `cgwb_list` and `memcg_cgwb_domain`; sem. 1.9. Differs: a frame belongs to the tenant that
//! dirtied it last, not to the one that touched it first.

mod foreign;
mod held_nodes;
mod owners;

pub(crate) use held_nodes::{HeldCount, HeldNodes, Hold};
pub(crate) use owners::{FrameOwners, Uncharges};

use std::fmt;
use std::time::Duration;

use slackwater_sync::Demand;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};

use crate::cgroup::foreign::ForeignWbs;
use crate::engine::Room;
use crate::lock_order::{CGROUP, LEAVES};
use crate::reclaim::Lruvec;
use crate::super_block::{ReadCounts, SuperBlock};
use crate::throttle::{DirtyRatios, Thresholds, WbDomain};
use crate::tunables::Tunables;
use crate::units::{PAGE_BYTES, Tick};
use crate::writeback::BdiWriteback;

/// Number of a tenant; never given twice in the life of an engine. Kernel: `css->id`.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct MemcgId(pub(crate) u64);

impl MemcgId {
    /// The tenant of what no other is asked to pay for.
    pub const ROOT: MemcgId = MemcgId(0);

    /// As a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for MemcgId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a tenant is in its life.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
#[repr(u8)]
pub enum MemcgState {
    /// In use.
    Online = 0,
    /// Being taken offline.
    Dying = 1,
    /// Nobody writes for it any more; some of its data is left.
    Offline = 2,
    /// Nothing of it is left.
    Released = 3,
}

const NO_LIMIT: u64 = u64::MAX;

/// A tenant. Kernel: `struct mem_cgroup`.
pub struct Memcg {
    id: MemcgId,
    /// Its place in the table, which is what frames remember.
    slot: u32,
    name: String,
    /// `None` for the root, and for who has no parent but it.
    parent: Option<Arc<Memcg>>,
    state: AtomicU8,
    limit_pages: AtomicU64,
    charged_pages: AtomicI64,
    /// A writer found no room: its wbs write back whatever the thresholds say (T4).
    want_room: Demand,
    /// How long its writers were told to pause.
    paused_ns: AtomicU64,
    /// Where its writers wait.
    room: Arc<Room>,
    /// Its background level is the part of its limit that the one is of the other.
    ratios: DirtyRatios,
    /// Its dirty limit, shared out among its wbs. Kernel: `cgwb_domain`.
    domain: WbDomain,
    foreign: Mutex<ForeignWbs>,
    /// Clean pages that it has in the cache.
    pub(crate) lruvec: Lruvec,
    /// What its readers found there.
    pub(crate) reads: ReadCounts,
    /// Nodes that stay open for it.
    pub(crate) held: HeldCount,
    /// T3.
    cgwbs: Mutex<Option<Vec<Arc<BdiWriteback>>>>,
}

impl Memcg {
    fn new(
        id: MemcgId,
        slot: u32,
        name: &str,
        parent: Option<Arc<Memcg>>,
        limit_bytes: Option<u64>,
        ratios: DirtyRatios,
        room: &Arc<Room>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            slot,
            name: name.into(),
            parent: parent.filter(|parent| !parent.is_root()),
            state: AtomicU8::new(MemcgState::Online as u8),
            limit_pages: AtomicU64::new(pages_of(limit_bytes)),
            charged_pages: AtomicI64::new(0),
            want_room: Demand::new(),
            paused_ns: AtomicU64::new(0),
            room: Arc::clone(room),
            ratios,
            domain: WbDomain::new(),
            foreign: Mutex::new(LEAVES, ForeignWbs::default()),
            lruvec: Lruvec::new(),
            reads: ReadCounts::default(),
            held: HeldCount::default(),
            cgwbs: Mutex::keyed(CGROUP, id.0, Some(Vec::new())),
        })
    }

    /// Its number.
    pub fn id(&self) -> MemcgId {
        self.id
    }

    /// The name it was made with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tenant above it, unless that is the root.
    pub fn parent(&self) -> Option<&Arc<Memcg>> {
        self.parent.as_ref()
    }

    /// Where it is in its life.
    pub fn state(&self) -> MemcgState {
        match self.state.load(Ordering::Acquire) {
            0 => MemcgState::Online,
            1 => MemcgState::Dying,
            2 => MemcgState::Offline,
            _ => MemcgState::Released,
        }
    }

    /// Bytes that may be dirty for it and its descendants, in whole pages; `None`: as much as the volume may.
    pub fn limit_bytes(&self) -> Option<u64> {
        match self.limit_pages.load(Ordering::Relaxed) {
            NO_LIMIT => None,
            pages => Some(pages * PAGE_BYTES),
        }
    }

    /// Sets what may be dirty for it from now on. What is dirty beyond that goes first; a limit smaller than a write
    /// lets one write after the other through, each once the one before is durable.
    pub fn set_limit_bytes(&self, limit_bytes: Option<u64>) {
        if !self.is_root() {
            self.limit_pages.store(pages_of(limit_bytes), Ordering::Relaxed);
            self.domain.resized();
            self.room.give();
        }
    }

    /// Bytes of frames that cannot be dropped and are its own or a descendant's (T1). None for the root.
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

    /// As many as may be dirty for it; more than any arena has, where it has no limit.
    pub(crate) fn limit_pages(&self) -> u64 {
        self.limit_pages.load(Ordering::Relaxed)
    }

    /// It, the tenants above it, and `root`: who has what was cached for it, once the ones before are offline.
    pub(crate) fn and_heirs<'a>(&'a self, root: &'a Memcg) -> impl Iterator<Item = &'a Memcg> {
        self.lineage().chain([root])
    }

    /// It and the tenants above it, without the root.
    fn lineage(&self) -> impl Iterator<Item = &Memcg> {
        std::iter::successors(Some(self), |memcg| memcg.parent.as_deref()).filter(|memcg| !memcg.is_root())
    }

    /// Whether what is charged to it is charged to `other` too.
    pub(crate) fn is_below_or_is(&self, other: &Memcg) -> bool {
        self.lineage().any(|memcg| memcg.id == other.id)
    }

    /// Whether it may dirty a further write: it and those above it are below their limits, or have nothing dirty. If not,
    /// room is given as soon as that may have changed (T4).
    pub(crate) fn may_dirty(&self) -> bool {
        self.lineage().all(|memcg| {
            memcg.has_room() || {
                memcg.want_room.raise(); // T4
                memcg.has_room()
            }
        })
    }

    fn has_room(&self) -> bool {
        let charged = self.charged_pages();
        charged == 0 || charged < self.limit_pages.load(Ordering::Relaxed)
    }

    /// Whether so much of it is dirty that its wbs write back without being asked, or a writer of it waits.
    pub(crate) fn over_background(&self) -> bool {
        let over =
            |memcg: &Memcg| memcg.thresholds().is_some_and(|levels| memcg.charged_pages() > levels.background_pages);
        self.wants_room() || self.lineage().any(over)
    }

    /// Whether a writer of it waits for room.
    pub(crate) fn wants_room(&self) -> bool {
        self.lineage().any(Memcg::wants_room_itself)
    }

    /// The same for itself alone.
    pub(crate) fn wants_room_itself(&self) -> bool {
        self.want_room.is_set()
    }

    /// A writer of it was told to pause.
    pub(crate) fn note_pause(&self, time: Duration) {
        self.paused_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn paused(&self) -> Duration {
        Duration::from_nanos(self.paused_ns.load(Ordering::Relaxed))
    }

    /// Whether `unstable_pages` of one of its wbs are what stands in its writers' way: a commit is due.
    pub(crate) fn wants_commit(&self, unstable_pages: u64) -> bool {
        unstable_pages != 0
            && self.lineage().any(|memcg| {
                let limit = memcg.limit_pages.load(Ordering::Relaxed);
                let charged = memcg.charged_pages();
                limit != NO_LIMIT && charged > limit - limit / 4 && unstable_pages >= charged.min(limit / 4)
            })
    }

    /// The nearest of it and those above that has a limit of its own, and the levels that this sets.
    pub(crate) fn nearest_limited(&self) -> Option<(&Memcg, Thresholds)> {
        self.lineage().find_map(|memcg| Some((memcg, memcg.thresholds()?)))
    }

    /// The levels that its limit sets, if it has one.
    fn thresholds(&self) -> Option<Thresholds> {
        let limit = self.limit_pages.load(Ordering::Relaxed);
        (limit != NO_LIMIT).then(|| Thresholds::of_limit(limit, self.ratios))
    }

    pub(crate) fn domain(&self) -> &WbDomain {
        &self.domain
    }

    /// It dirtied pages of `wb`, which is another tenant's.
    pub(crate) fn note_foreign(&self, wb: &Arc<BdiWriteback>, now: Tick) {
        tracing::trace!(target: "slackwater::writeback", cgroup = %self.id, owner = %wb.memcg.id(), "track_foreign_dirty");
        self.foreign.lock().note(wb, now);
    }

    /// Has the wbs of others written back that hold dirty pages of it. Kernel: `mem_cgroup_flush_foreign`.
    pub(crate) fn flush_foreign(&self, now: Tick, tunables: &Tunables) {
        // What is older is periodic write-back's, where there is one.
        let expire = if tunables.dirty_writeback.is_zero() { Duration::MAX } else { tunables.dirty_expire };
        let foreign = self.foreign.lock().take(now, expire);
        for wb in &foreign {
            tracing::trace!(target: "slackwater::writeback", cgroup = %wb.memcg.id(), "flush_foreign");
            wb.start_foreign_flush();
        }
    }

    /// A writer of it found no room: all wbs of the full ones among it and those above, and of all below these, are to
    /// write back. `volumes`: where such wbs may be.
    pub(crate) fn ask_for_room(&self, volumes: &[Arc<SuperBlock>]) {
        let full = self.lineage().filter(|memcg| !memcg.has_room());
        let Some(full) = full.inspect(|memcg| memcg.want_room.raise()).last() else { return };
        // Not by `cgwbs`: what fills it may be a descendant's, and a tenant that goes offline has none any more.
        let wake = |wb: &Arc<BdiWriteback>| {
            if wb.memcg.is_below_or_is(full) {
                wb.wake();
            }
        };
        volumes.iter().for_each(|sb| sb.for_each_wb(wake));
    }

    /// One more frame of it cannot be dropped.
    pub(crate) fn charge(&self, pages: i64) {
        for memcg in self.lineage() {
            memcg.charged_pages.fetch_add(pages, Ordering::Relaxed);
        }
    }

    fn uncharge(&self, pages: i64) {
        let mut is_wanted = false;
        for memcg in self.lineage() {
            let left = memcg.charged_pages.fetch_sub(pages, Ordering::Relaxed) - pages;
            if memcg.want_room.is_raised() {
                is_wanted = true;
                if memcg.thresholds().is_none_or(|levels| left.max(0) as u64 <= levels.background_pages) {
                    memcg.want_room.lower();
                }
            }
        }
        if is_wanted {
            self.room.give(); // after `want_room` was cleared: who has set it just before hears of it
        }
    }

    /// Adds a wb that [`crate::writeback`] made for it; false, and `wb` stays alone, from `Dying` on (T3).
    pub(crate) fn add_wb(&self, wb: &Arc<BdiWriteback>) -> bool {
        let mut cgwbs = self.cgwbs.lock();
        let Some(list) = cgwbs.as_mut() else { return false };
        list.push(Arc::clone(wb));
        true
    }

    /// The volume of a wb of it is gone.
    pub(crate) fn remove_wb(&self, wb: &Arc<BdiWriteback>) {
        if let Some(list) = self.cgwbs.lock().as_mut() {
            list.retain(|other| !Arc::ptr_eq(other, wb));
        }
    }

    /// `Online` to `Dying`: no wb is made for it from here on. Returns those that it has; `None` if it was not online.
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

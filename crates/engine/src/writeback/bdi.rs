//! Write-back state of the device behind a volume.
//!
//! # Invariants
//! B1. `pinned_frames` counts the frames of this volume that cannot be dropped: dirty, under write-back, replaced while
//!     under write-back, or not yet durable. It never exceeds the volume's share (P6), except by frames adopted from a
//!     dead engine, and until they are written after the share was lowered.
//!
//! # Memory ordering
//! `pinned_frames`, `failed` and `limit_frames` stand alone: no other data depends on their values.
//!
//! # Kernel counterpart
//! `struct backing_dev_info`.

use std::time::Duration;

use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::backend::{Backend, Call, Limits, MAX_UNIT_BYTES, NodeSupply};
use crate::error::ErrorKind;
use crate::tunables::Tunables;
use crate::units::{PAGE_BYTES, Tick};
use crate::writeback::ages::Ages;
use crate::writeback::gate::DeviceGate;
use crate::writeback::refusal::Refusal;
use crate::writeback::slots::Slots;

/// Kinds of write-back attempts.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(u8)]
pub(crate) enum Attempt {
    /// A unit.
    Write = 1,
    /// Times and mode.
    Meta = 2,
    /// Making written pages durable.
    Commit = 4,
}

/// A commit starts when this many drop-behind pages wait for it: 8 MiB. Together with the pages that arrive while the
/// commit runs, a DONTCACHE stream keeps less than 16 MiB in the cache. A device that writes 1 GiB/s makes at most 128
/// commits per second, one at a time.
const DROPBEHIND_COMMIT_PAGES: i64 = 2048;
/// In place of a limit.
const NO_LIMIT: u64 = u64::MAX;
/// A commit starts when 1/`NODES_PART` of the nodes that may be pinned wait for it.
const NODES_PART: u32 = 4;
/// Nodes that a volume may always pin, even if its backend is almost out of node space. Nodes pinned by other volumes
/// on a hung backend therefore block no volume.
const SCARCE_NODES: u32 = 16;

/// Write-back state of the device behind a volume. Kernel: `struct backing_dev_info`.
pub struct BackingDevInfo {
    name: String,
    pub(crate) backend: Arc<dyn Backend>,
    limits: Limits,
    pub(crate) gate: Arc<DeviceGate>,
    pub(crate) slots: Slots,
    pinned_frames: AtomicU64,
    share_frames: u64,
    failed_share_frames: u64,
    /// A limit of this volume; [`NO_LIMIT`] if it has none. The share is not larger.
    limit_frames: AtomicU64,
    pub(crate) ages: Ages,
    /// A bit for each kind of [`Attempt`] whose most recent attempt failed.
    failed: AtomicU8,
    /// Failed attempts to write data, or to make it durable.
    pub(super) refusal: Refusal,
    pinned_nodes: AtomicU32,
    max_pinned_nodes: u32,
    /// Nodes pinned by all volumes of the engine; the next field is their limit.
    pinned_nodes_of_all: Arc<AtomicU32>,
    max_pinned_nodes_of_all: u32,
    /// A writer is waiting for frames: flush and commit whatever the thresholds are.
    want_frames: AtomicBool,
    written_bytes: AtomicU64,
    /// Unstable pages that will leave the cache once durable and that no commit covers yet. Briefly negative when a
    /// commit overtakes the completion that made the pages unstable.
    dropbehind_unstable: AtomicI64,
    /// Flusher passes for DONTCACHE writes.
    dontcache_passes: AtomicU64,
    /// DONTCACHE writes that requested a pass while none was pending.
    dontcache_kicks: AtomicU64,
    /// Total length of the pauses imposed on writers.
    paused_ns: AtomicU64,
    /// Inodes moved to another wb.
    switched: AtomicU64,
}

impl BackingDevInfo {
    /// The bdi of the volume `name`.
    pub(crate) fn new(
        name: &str,
        backend: Arc<dyn Backend>,
        gate: Arc<DeviceGate>,
        tunables: &Tunables,
        arena_frames: u64,
        pinned_nodes_of_all: Arc<AtomicU32>,
    ) -> Self {
        let mut limits = backend.limits();
        limits.unit_bytes = limits.unit_bytes.clamp(PAGE_BYTES as u32, MAX_UNIT_BYTES) & !(PAGE_BYTES as u32 - 1);
        limits.units_in_flight = limits.units_in_flight.max(1);
        let share_frames = Tunables::frames_of(tunables.volume_share_percent, arena_frames);
        Self {
            name: name.into(),
            backend,
            slots: Slots::new(limits.units_in_flight),
            limits,
            gate,
            pinned_frames: AtomicU64::new(0),
            share_frames,
            failed_share_frames: Tunables::frames_of(tunables.failed_share_percent, arena_frames).min(share_frames),
            limit_frames: AtomicU64::new(NO_LIMIT),
            ages: Ages::new(),
            failed: AtomicU8::new(0),
            refusal: Refusal::new(),
            pinned_nodes: AtomicU32::new(0),
            max_pinned_nodes: tunables.pinned_nodes.max(2),
            pinned_nodes_of_all,
            max_pinned_nodes_of_all: tunables.pinned_nodes_of_all,
            want_frames: AtomicBool::new(false),
            written_bytes: AtomicU64::new(0),
            dropbehind_unstable: AtomicI64::new(0),
            dontcache_passes: AtomicU64::new(0),
            dontcache_kicks: AtomicU64::new(0),
            paused_ns: AtomicU64::new(0),
            switched: AtomicU64::new(0),
        }
    }

    /// Starts a call. If the caller waits for the answer, however long it takes, the call may run on its thread.
    ///
    /// # Blocking
    /// Never, unless the caller `waits`.
    pub(crate) fn submit(&self, call: Call, waits: bool) {
        match waits {
            true => self.backend.submit_and_wait(call),
            false => self.backend.submit(call),
        }
    }

    /// The name under which the volume was mounted.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Limits of the backend.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Frames of this volume that cannot be dropped (B1).
    pub fn pinned_frames(&self) -> u64 {
        self.pinned_frames.load(Ordering::Relaxed)
    }

    /// The most frames this volume may pin now: its share or its limit, or less if its last write-back failed.
    pub fn share_frames(&self) -> u64 {
        let share = if self.has_failed() { self.failed_share_frames } else { self.share_frames };
        share.min(self.limit_frames.load(Ordering::Relaxed))
    }

    /// Limits how many bytes of this volume may be dirty, under write-back or not yet durable, from now on; at least one
    /// page. Background write-back starts at half of it. `None`: the share of the arena is the only limit. Kernel:
    /// `max_bytes` of a bdi.
    ///
    /// If more is dirty already, writers wait until enough is durable.
    pub fn set_dirty_limit(&self, bytes: Option<u64>) {
        let frames = bytes.map_or(NO_LIMIT, |bytes| (bytes / PAGE_BYTES).max(1));
        self.limit_frames.store(frames, Ordering::Relaxed);
    }

    /// The limit that was set, in whole pages.
    pub fn dirty_limit(&self) -> Option<u64> {
        let frames = self.limit_frames.load(Ordering::Relaxed);
        (frames != NO_LIMIT).then(|| frames.saturating_mul(PAGE_BYTES))
    }

    /// Writes back dirty data of this volume once it is this old, instead of at the engine's
    /// [age](Tunables::dirty_expire). `None`: at the engine's. It takes effect when the engine next looks for old data,
    /// at most [`Tunables::dirty_writeback`] later.
    pub fn set_dirty_expire(&self, age: Option<Duration>) {
        self.ages.set_expire(age);
    }

    /// Whether more than half of its limit is pinned, if it has one.
    pub(crate) fn over_background(&self) -> bool {
        self.dirty_limit().is_some() && self.pinned_frames() > self.share_frames() / 2
    }

    /// Bytes written back since the volume was mounted.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Whether the last attempt of any kind failed: writing data, writing metadata, or a commit.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) != 0
    }

    /// Pins one more frame, unless the share is used up.
    pub(crate) fn try_pin(&self) -> bool {
        let share = self.share_frames();
        let mut pinned = self.pinned_frames.load(Ordering::Relaxed);
        while pinned < share {
            match self.pinned_frames.compare_exchange_weak(pinned, pinned + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => pinned = now,
            }
        }
        false
    }

    /// Pins frames adopted from the arena, regardless of the share.
    pub(crate) fn pin_adopted(&self, frames: u64) {
        self.pinned_frames.fetch_add(frames, Ordering::Relaxed);
    }

    pub(crate) fn unpin(&self, frames: u64) {
        let before = self.pinned_frames.fetch_sub(frames, Ordering::Relaxed);
        debug_assert!(before >= frames, "B1");
    }

    /// Pins one more node unless the limit is reached. The limit is [`SCARCE_NODES`] while all volumes together have
    /// too many pinned, or the backend is almost out of node space.
    pub(crate) fn try_pin_node(&self) -> bool {
        let of_all = self.pinned_nodes_of_all.fetch_add(1, Ordering::Relaxed);
        let is_scarce = of_all >= self.max_pinned_nodes_of_all || self.backend.node_supply() == NodeSupply::Scarce;
        let max = if is_scarce { self.max_pinned_nodes.min(SCARCE_NODES) } else { self.max_pinned_nodes };
        if self.pinned_nodes.fetch_add(1, Ordering::Relaxed) < max {
            return true;
        }
        self.node_unpinned();
        false
    }

    /// Pins the node of an inode adopted from the arena, regardless of the limit.
    pub(crate) fn pin_adopted_node(&self) {
        self.pinned_nodes_of_all.fetch_add(1, Ordering::Relaxed);
        self.pinned_nodes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn node_unpinned(&self) {
        self.pinned_nodes.fetch_sub(1, Ordering::Relaxed);
        self.pinned_nodes_of_all.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether enough nodes are pinned for write-back and commit to start.
    pub(crate) fn nodes_are_short(&self) -> bool {
        self.pinned_nodes.load(Ordering::Relaxed) > self.max_pinned_nodes / 2
    }

    /// Whether no node can be pinned.
    pub(crate) fn nodes_are_used_up(&self) -> bool {
        self.pinned_nodes.load(Ordering::Relaxed) >= self.max_pinned_nodes
    }

    /// Whether nodes are short and enough of them wait for a commit to make one worthwhile. Without the threshold, a
    /// commit would run for every few files written.
    pub(crate) fn nodes_want_commit(&self, waiting: usize) -> bool {
        self.nodes_are_short() && waiting >= (self.max_pinned_nodes / NODES_PART) as usize
    }

    /// Requests frames. True for the first request since frames were last freed.
    pub(crate) fn request_frames(&self) -> bool {
        !self.want_frames.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn wants_frames(&self) -> bool {
        self.want_frames.load(Ordering::Acquire)
    }

    pub(crate) fn frames_freed(&self) {
        self.want_frames.store(false, Ordering::Release);
    }

    /// Adjusts the count of unstable pages that leave the cache once durable.
    pub(crate) fn add_dropbehind_unstable(&self, pages: i64) {
        if pages != 0 {
            self.dropbehind_unstable.fetch_add(pages, Ordering::Relaxed);
        }
    }

    pub(crate) fn dropbehind_unstable(&self) -> i64 {
        self.dropbehind_unstable.load(Ordering::Relaxed)
    }

    /// Whether enough drop-behind pages wait for a commit to make one worthwhile.
    pub(crate) fn dropbehind_wants_commit(&self) -> bool {
        self.dropbehind_unstable() >= DROPBEHIND_COMMIT_PAGES
    }

    pub(crate) fn note_dontcache_pass(&self) {
        self.dontcache_passes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dontcache_passes(&self) -> u64 {
        self.dontcache_passes.load(Ordering::Relaxed)
    }

    pub(crate) fn note_dontcache_kick(&self) {
        self.dontcache_kicks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dontcache_kicks(&self) -> u64 {
        self.dontcache_kicks.load(Ordering::Relaxed)
    }

    /// Records a pause imposed on a writer of the volume.
    pub(crate) fn note_pause(&self, time: Duration) {
        self.paused_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn paused(&self) -> Duration {
        Duration::from_nanos(self.paused_ns.load(Ordering::Relaxed))
    }

    /// Records that inodes of the volume moved to another wb.
    pub(crate) fn note_switched(&self, inodes: u64) {
        self.switched.fetch_add(inodes, Ordering::Relaxed);
    }

    pub(crate) fn switched(&self) -> u64 {
        self.switched.load(Ordering::Relaxed)
    }

    /// Records how many bytes of a unit were written.
    pub(crate) fn unit_ended(&self, written_bytes: u64) {
        self.written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
    }

    /// Records the outcome of an attempt that ended at `now`; the share depends on it, and what becomes of pages from
    /// mappings. `failing_since` gets a change of the time since when such attempts fail.
    pub(super) fn note_attempt(
        &self,
        attempt: Attempt,
        error: Option<ErrorKind>,
        now: Tick,
        failing_since: impl FnOnce(Option<Tick>),
    ) {
        const OF_DATA: u8 = Attempt::Write as u8 | Attempt::Commit as u8;
        let bit = attempt as u8;
        match error {
            None if self.failed.load(Ordering::Relaxed) & bit == 0 => {}
            None => {
                if self.failed.fetch_and(!bit, Ordering::Relaxed) & OF_DATA == bit {
                    self.refusal.ended(failing_since);
                }
            }
            Some(kind) => {
                self.failed.fetch_or(bit, Ordering::Relaxed);
                if bit & OF_DATA != 0 {
                    self.refusal.failed(kind, now, failing_since);
                }
            }
        }
    }

    /// Continues after the attempts of an earlier process, which fail since then.
    pub(super) fn inherit_failing(&self, since: Tick) {
        self.failed.fetch_or(Attempt::Write as u8, Ordering::Relaxed);
        self.refusal.inherit(since);
    }
}

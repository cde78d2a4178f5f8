//! Page reclaim: when no frame is free, clean pages are dropped, starting with those that were not used again.
//!
//! A page is *listed* when it becomes clean, by a fill or by a commit, for the tenant that brought it in: the reader,
//! or the last writer. Dirty pages are in no queue, so a search for frames never passes over them and finds at once if
//! there is nothing to drop. A listed page that is written to keeps its place. If its entry is reached before the page
//! is clean again, the page is listed anew later.
//!
//! [`policy`] decides which pages are evicted and from which tenant, [`lruvec`] contains a tenant's queues, [`shrink`]
//! takes pages from them, and [`background`] does so before a writer has to.
//!
//! # Invariants
//! V1. A listed clean page has the mark [`Mark::Listed`](crate::page_cache::Mark), and an entry in one of the queues or
//!     in use by the one thread that works on them (`busy`). Entries may be stale. They are swept out when they may be
//!     half of all.
//! V2. Frames freed by one thread are available to all. A thread that finds nothing to drop while another is working
//!     tries again.
//!
//! # Lock order
//! A tenant's queues are under a leaf lock: a page is listed under its leaf's lock, and no queue is locked while a leaf
//! is examined. Frames are only try-locked.
//!
//! # Kernel counterpart
//! `mm/vmscan.c`: `shrink_lruvec`, `kswapd`. Differs: a tenant's share of the cache follows from the number of tenants.

mod background;
mod lruvec;
mod policy;
mod shrink;
#[cfg(test)]
mod tests;

pub(crate) use lruvec::Lruvec;

use slackwater_arena::{Arena, FrameId, Pool, RUN_FRAMES};
use slackwater_sync::Kick;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicUsize};

use crate::cgroup::Tenants;
use crate::reclaim::policy::Ghost;
use crate::reclaim::shrink::Evicted;
use crate::super_block::SuperBlock;
use crate::writeback::FlusherPool;

/// Frames freed at a time: 1/`BATCH_PART` of the arena, within bounds. Frames freed a few at a time would be reused in
/// equally small pieces, and little would join these again.
const BATCH_PART: u64 = 64;
const BATCH_MIN: u64 = 128;
/// Upper bound, because the writer that finds no free frame frees a batch for all.
const BATCH_MAX: u64 = 4096;

/// Every this many allocations, one checks whether few frames are free.
const CHECK_EVERY: u32 = 64;

/// State of eviction for an engine, besides the queues of its tenants.
pub(crate) struct Reclaim {
    arena: Arc<Arena>,
    tenants: Arc<Tenants>,
    /// The flusher threads, which run [`Reclaim::run_background`].
    pool: Arc<FlusherPool>,
    ghost: Ghost,
    /// A thread works on the queues (V1).
    busy: AtomicBool,
    /// Few frames are free, or there is something to sweep.
    kick: Kick,
    /// The last pass in the background found nothing to drop, and nothing was listed since.
    stalled: AtomicBool,
    /// Stale entries of unmounted volumes since the last sweep.
    stale_entries: AtomicUsize,
}

impl Reclaim {
    pub(crate) fn new(arena: Arc<Arena>, tenants: Arc<Tenants>, pool: Arc<FlusherPool>) -> Arc<Self> {
        let ghost = Ghost::new(arena.frames().into());
        Arc::new(Self {
            arena,
            tenants,
            pool,
            ghost,
            busy: AtomicBool::new(false),
            kick: Kick::new(),
            stalled: AtomicBool::new(false),
            stale_entries: AtomicUsize::new(0),
        })
    }

    /// Allocates a frame, dropping clean pages if none is free. `None`: every page is pinned.
    ///
    /// # Blocking
    /// Never.
    pub(crate) fn alloc_frame(&self, pool: Pool) -> Option<FrameId> {
        loop {
            if let Some(frame) = self.arena.alloc(pool) {
                if frame.as_u32().is_multiple_of(CHECK_EVERY) {
                    self.wake_if_low();
                }
                return Some(frame);
            }
            if self.evict(self.batch()) == Evicted::Nothing {
                return self.arena.alloc(pool);
            }
        }
    }

    /// Allocates up to `count` frames, in runs where possible, and appends them to `out`. Drops clean pages if
    /// necessary. Fewer are allocated only if every page is pinned.
    ///
    /// A request for a run's worth gets whole runs as a rule. Streams then stay contiguous, and frames evicted from one
    /// serve the next. Without this, after two streams had written three times the arena's size, their units were in a
    /// hundred pieces, and a disk wrote them a fifth slower.
    ///
    /// # Blocking
    /// Never.
    pub(crate) fn alloc_frames(&self, pool: Pool, count: usize, out: &mut Vec<FrameId>) {
        let full = out.len() + count;
        // Evict rather than split up the remaining runs for good, as long as few frames are free.
        while count >= RUN_FRAMES
            && !self.arena.has_whole_run()
            && self.is_below_high_watermark()
            && self.evict(self.batch()) == Evicted::Some
        {}
        loop {
            self.arena.alloc_many(pool, full - out.len(), out);
            if out.len() == full || self.evict(self.batch().max(full - out.len())) == Evicted::Nothing {
                break;
            }
        }
        self.wake_if_low();
    }

    fn batch(&self) -> usize {
        (u64::from(self.arena.frames()) / BATCH_PART).clamp(BATCH_MIN, BATCH_MAX) as usize
    }
}

impl SuperBlock {
    /// Called when a writer finds no free frame: every volume with pinned frames writes back and commits.
    pub(crate) fn wakeup_flushers(&self) {
        for sb in self.engine().super_blocks() {
            if sb.bdi().pinned_frames() != 0 && sb.bdi().request_frames() {
                sb.wake_wbs();
            }
        }
    }
}

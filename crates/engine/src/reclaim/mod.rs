//! Where frames come from when none is free: clean pages are dropped, those first that were not used again.
//!
//! A page is *listed* when it becomes clean, by a fill or by a commit, with the tenant that brought it: the reader, or who wrote to
//! it last. Dirty pages are in no queue, so looking for a frame never looks through them, and finds at once that there is
//! nothing to drop. A page that is written to while it is listed keeps its place; if that comes up before the page is clean
//! again, it is listed anew.
//!
//! [`policy`] says which pages go and which tenant gives, [`lruvec`] has a tenant's queues, [`shrink`] takes from
//! them, and [`background`] does so before a writer has to.
//!
//! # Invariants
//! V1. A page that is clean and has been listed has the mark [`Mark::Listed`](crate::page_cache::Mark), and an entry in
//!     one of the queues, or in the hands of the one thread that works on them (`busy`). Entries may stand for pages that are
//!     gone; they are swept out when they may be as many as the others.
//! V2. What one thread frees is there for all: who finds nothing to drop while another works tries again.
//!
//! # Lock order
//! A tenant's queues are a leaf lock: a page is listed under the lock of its leaf, and no queue is locked while one is examined.
//! A frame is taken by trying.
//!
//! # Kernel counterpart
//! `mm/vmscan.c`: `shrink_lruvec`, `kswapd`. Differs: a tenant's share of the cache comes from how many tenants there are.

mod background;
mod lruvec;
mod policy;
mod shrink;
#[cfg(test)]
mod tests;

pub(crate) use background::run_background;
pub(crate) use lruvec::{Lruvec, list, note_listed};

use slackwater_arena::{FrameId, Pool, RUN_FRAMES};
use slackwater_sync::Kick;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicUsize};

use crate::engine::Shared;
use crate::reclaim::policy::Ghost;
use crate::reclaim::shrink::{Evicted, evict};
use crate::super_block::SuperBlock;

/// Frames freed at a time: this part of the arena, within bounds. What is freed a little at a time is taken in as small
/// pieces by whoever comes next, and little joins them again.
const BATCH_PART: u64 = 64;
const BATCH_MIN: u64 = 128;
/// The writer that finds none free does it for all.
const BATCH_MAX: u64 = 4096;

/// One in so many allocations looks whether few frames are free.
const LOOK_EVERY: u32 = 64;

/// What an engine needs to know for eviction, beside the queues of its tenants.
pub(crate) struct Reclaim {
    ghost: Ghost,
    /// Somebody works on the queues (V1).
    busy: AtomicBool,
    /// Few frames are free, or there is something to sweep.
    kick: Kick,
    /// The last pass in the background found nothing to drop, and nothing was listed since.
    stalled: AtomicBool,
    /// Of volumes that are gone, since the last sweep.
    stale_entries: AtomicUsize,
}

impl Reclaim {
    /// For an arena of `frames`.
    pub(crate) fn new(frames: u32) -> Self {
        Self {
            ghost: Ghost::new(frames.into()),
            busy: AtomicBool::new(false),
            kick: Kick::new(),
            stalled: AtomicBool::new(false),
            stale_entries: AtomicUsize::new(0),
        }
    }
}

fn batch(engine: &Shared) -> usize {
    (u64::from(engine.arena.frames()) / BATCH_PART).clamp(BATCH_MIN, BATCH_MAX) as usize
}

/// A frame, for which clean pages are dropped if none is free. `None`: every page is pinned.
///
/// # Blocking
/// Never.
pub(crate) fn alloc_frame(engine: &Shared, pool: Pool) -> Option<FrameId> {
    loop {
        if let Some(frame) = engine.arena.alloc(pool) {
            if frame.as_u32().is_multiple_of(LOOK_EVERY) {
                background::wake_if_low(engine);
            }
            return Some(frame);
        }
        if evict(engine, batch(engine)) == Evicted::Nothing {
            return engine.arena.alloc(pool);
        }
    }
}

/// Takes up to `count` frames, in runs where possible, and adds them to `out`. Clean pages are dropped for them if
/// need be; fewer, if every page is pinned.
///
/// Who wants a run's worth gets whole runs for it, as a rule: streams then keep to themselves, and what goes of them makes room
/// for the next. Three times the arena's size of two streams without that, and their units were in a hundred pieces; a disk
/// took them a fifth slower.
///
/// # Blocking
/// Never.
pub(crate) fn alloc_frames(engine: &Shared, pool: Pool, count: usize, out: &mut Vec<FrameId>) {
    let full = out.len() + count;
    // Rather than take to pieces what is left of others, which would be pieces for good: as long as that is not much.
    while count >= RUN_FRAMES
        && !engine.arena.has_whole_run()
        && background::is_not_plenty(engine)
        && evict(engine, batch(engine)) == Evicted::Some
    {}
    loop {
        engine.arena.alloc_many(pool, full - out.len(), out);
        if out.len() == full || evict(engine, batch(engine).max(full - out.len())) == Evicted::Nothing {
            break;
        }
    }
    background::wake_if_low(engine);
}

impl SuperBlock {
    /// A writer found no room: every volume that has something to give writes back and commits.
    pub(crate) fn make_room(&self) {
        for sb in self.engine().super_blocks() {
            if sb.bdi().pinned_frames() != 0 && sb.bdi().ask_for_room() {
                sb.wake_wbs();
            }
        }
    }
}

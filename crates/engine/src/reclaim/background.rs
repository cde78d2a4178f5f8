//! Background reclaim: frees frames before a writer needs them.
//!
//! When fewer than 1/64 of the frames are free beyond the reserve, a thread of the flusher pool frees frames up to
//! twice that number, a batch at a time between other work. If it finds nothing to drop, because all cached pages are
//! unclean or being read, it is not started again until a page is listed. A writer that is faster drops pages itself.
//!
//! # Memory ordering
//! O1. The kick is taken before the free frames are counted. No kick is lost: a thread that finds few frames free after
//!     that kicks again.
//!
//! # Kernel counterpart
//! `kswapd` with its watermarks, `wakeup_kswapd`.

use slackwater_arena::Pool;
use slackwater_sync::shim::atomic::Ordering;

use crate::engine::Shared;
use crate::reclaim::batch;
use crate::reclaim::policy::SWEEP_SLACK;
use crate::reclaim::shrink::{Busy, Evicted, evict};

/// Low watermark: 1/`LOW_PART` of the arena should be free.
const LOW_PART: u64 = 64;
/// High watermark: frees up to this multiple of the low one.
const HIGH: u64 = 2;

fn low_frames(engine: &Shared) -> u64 {
    u64::from(engine.arena.frames()) / LOW_PART
}

/// Whether the free frames do not exceed the high watermark.
pub(super) fn is_below_high_watermark(engine: &Shared) -> bool {
    engine.arena.free_frames_in(Pool::Normal) <= HIGH * low_frames(engine)
}

/// Starts background reclaim if few frames are free and there may be something to drop.
pub(super) fn wake_if_low(engine: &Shared) {
    let reclaim = &engine.reclaim;
    if !reclaim.stalled.load(Ordering::Relaxed)
        && engine.arena.free_frames_in(Pool::Normal) < low_frames(engine)
        && reclaim.kick.kick()
    {
        engine.pool.want_reclaim();
    }
}

impl Shared {
    /// Records that a volume with pages in `leaves` leaves was unmounted. Its stale entries are swept out in the
    /// background, but only when there are many: a queue is swept as a whole, and sweeping for a small volume would
    /// cost more than mounting it.
    pub(crate) fn note_stale_entries(&self, leaves: usize) {
        let before = self.reclaim.stale_entries.fetch_add(leaves, Ordering::Relaxed);
        if before + leaves > SWEEP_SLACK && self.reclaim.kick.kick() {
            self.pool.want_reclaim();
        }
    }
}

/// Does a part of the pending work. True if there is more to do.
pub(crate) fn run_background(engine: &Shared) -> bool {
    let reclaim = &engine.reclaim;
    let _ = reclaim.kick.take(); // O1
    if reclaim.stale_entries.load(Ordering::Relaxed) > SWEEP_SLACK {
        reclaim.stale_entries.store(0, Ordering::Relaxed); // before the sweep, which covers the earlier ones
        sweep_all(engine);
    }
    let high = HIGH * low_frames(engine);
    let free = || engine.arena.free_frames_in(Pool::Normal);
    let missing = high.saturating_sub(free());
    if missing == 0 {
        return false;
    }
    reclaim.stalled.store(true, Ordering::Relaxed); // before the check: listing after it clears the flag
    if evict(engine, batch(engine).min(missing as usize)) == Evicted::Nothing {
        return false;
    }
    reclaim.stalled.store(false, Ordering::Relaxed);
    free() < high
}

/// Leaves short queues alone.
fn sweep_all(engine: &Shared) {
    for memcg in engine.owners.all() {
        if memcg.lruvec.entries() > SWEEP_SLACK
            && let Some(busy) = Busy::begin(engine)
        {
            memcg.lruvec.sweep(&busy);
        }
    }
}

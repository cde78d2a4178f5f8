//! Freeing frames before a writer has to.
//!
//! When fewer than 1/64 of the frames are free beyond the reserve, a thread of the flushers' pool frees them up to twice as
//! many, a batch at a time and between other work. When it finds nothing to drop, since all that is cached is unclean or
//! being read, it is not asked again before something is listed. A writer that is faster drops pages for itself.
//!
//! # Memory ordering
//! O1. The kick is taken before the free frames are counted. It may be lost to nobody: who finds few of them free
//!     after that kicks again.
//!
//! # Kernel counterpart
//! `kswapd` with its watermarks, `wakeup_kswapd`.

use slackwater_arena::Pool;
use slackwater_sync::shim::atomic::Ordering;

use crate::engine::Shared;
use crate::reclaim::batch;
use crate::reclaim::policy::SWEEP_SLACK;
use crate::reclaim::shrink::{Busy, Evicted, evict};

/// Frames that should be free, as a part of the arena.
const LOW_PART: u64 = 64;
/// Up to so many times as many are freed.
const HIGH: u64 = 2;

fn low_frames(engine: &Shared) -> u64 {
    u64::from(engine.arena.frames()) / LOW_PART
}

/// Whether no more frames are free than are freed in the background.
pub(super) fn is_not_plenty(engine: &Shared) -> bool {
    engine.arena.free_frames_in(Pool::Normal) <= HIGH * low_frames(engine)
}

/// Has frames freed if few are free, and there may be something to drop.
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
    /// A volume is gone that had pages in so many leaves, whose entries are taken out of the queues in the background. Only
    /// when there are many: a queue is swept as a whole, and a small volume would cost more to forget than to mount.
    pub(crate) fn note_stale_entries(&self, leaves: usize) {
        let before = self.reclaim.stale_entries.fetch_add(leaves, Ordering::Relaxed);
        if before + leaves > SWEEP_SLACK && self.reclaim.kick.kick() {
            self.pool.want_reclaim();
        }
    }
}

/// Does some of what was asked for. True if there is more to do.
pub(crate) fn run_background(engine: &Shared) -> bool {
    let reclaim = &engine.reclaim;
    let _ = reclaim.kick.take(); // O1
    if reclaim.stale_entries.load(Ordering::Relaxed) > SWEEP_SLACK {
        reclaim.stale_entries.store(0, Ordering::Relaxed); // before the sweep, which has what was noted until here
        sweep_all(engine);
    }
    let high = HIGH * low_frames(engine);
    let free = || engine.arena.free_frames_in(Pool::Normal);
    let missing = high.saturating_sub(free());
    if missing == 0 {
        return false;
    }
    reclaim.stalled.store(true, Ordering::Relaxed); // before the look: who lists something after it takes it back
    if evict(engine, batch(engine).min(missing as usize)) == Evicted::Nothing {
        return false;
    }
    reclaim.stalled.store(false, Ordering::Relaxed);
    free() < high
}

/// Short queues are left as they are.
fn sweep_all(engine: &Shared) {
    for memcg in engine.owners.all() {
        if memcg.lruvec.entries() > SWEEP_SLACK
            && let Some(busy) = Busy::begin(engine)
        {
            memcg.lruvec.sweep(&busy);
        }
    }
}

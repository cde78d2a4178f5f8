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

use crate::reclaim::Reclaim;
use crate::reclaim::policy::SWEEP_SLACK;
use crate::reclaim::shrink::{Busy, Evicted};

/// Low watermark: 1/`LOW_PART` of the arena should be free.
const LOW_PART: u64 = 64;
/// High watermark: frees up to this multiple of the low one.
const HIGH: u64 = 2;

impl Reclaim {
    fn low_frames(&self) -> u64 {
        u64::from(self.arena.frames()) / LOW_PART
    }

    /// Whether the free frames do not exceed the high watermark.
    pub(super) fn is_below_high_watermark(&self) -> bool {
        self.arena.free_frames_in(Pool::Normal) <= HIGH * self.low_frames()
    }

    /// Starts background reclaim if few frames are free and there may be something to drop.
    pub(super) fn wake_if_low(&self) {
        if !self.stalled.load(Ordering::Relaxed)
            && self.arena.free_frames_in(Pool::Normal) < self.low_frames()
            && self.kick.kick()
        {
            self.pool.want_reclaim();
        }
    }

    /// Records that a volume with pages in `leaves` leaves was unmounted. Its stale entries are swept out in the
    /// background, but only when there are many: a queue is swept as a whole, and sweeping for a small volume would
    /// cost more than mounting it.
    pub(crate) fn note_stale_entries(&self, leaves: usize) {
        let before = self.stale_entries.fetch_add(leaves, Ordering::Relaxed);
        if before + leaves > SWEEP_SLACK && self.kick.kick() {
            self.pool.want_reclaim();
        }
    }

    /// Does a part of the pending work. True if there is more to do.
    pub(crate) fn run_background(&self) -> bool {
        let _ = self.kick.take(); // O1
        if self.stale_entries.load(Ordering::Relaxed) > SWEEP_SLACK {
            self.stale_entries.store(0, Ordering::Relaxed); // before the sweep, which covers the earlier ones
            self.sweep_all();
        }
        let high = HIGH * self.low_frames();
        let free = || self.arena.free_frames_in(Pool::Normal);
        let missing = high.saturating_sub(free());
        if missing == 0 {
            return false;
        }
        self.stalled.store(true, Ordering::Relaxed); // before the check: listing after it clears the flag
        if self.evict(self.batch().min(missing as usize)) == Evicted::Nothing {
            return false;
        }
        self.stalled.store(false, Ordering::Relaxed);
        free() < high
    }

    /// Leaves short queues alone.
    fn sweep_all(&self) {
        for memcg in self.tenants.all() {
            if memcg.lruvec.entries() > SWEEP_SLACK
                && let Some(busy) = Busy::begin(&self.busy)
            {
                memcg.lruvec.sweep(&busy);
            }
        }
    }
}

#[cfg(all(test, not(slackwater_shuttle)))]
mod tests {
    use slackwater_arena::{Arena, ArenaConfig};
    use slackwater_sync::rcu::Options;
    use slackwater_sync::shim::Arc;

    use super::*;
    use crate::cgroup::Tenants;
    use crate::clock::{Clock, ManualClock};
    use crate::tunables::Tunables;
    use crate::units::Timestamp;
    use crate::wait::Progress;
    use crate::writeback::FlusherPool;

    #[test]
    fn a_pass_that_finds_nothing_to_drop_is_not_started_again_before_a_page_is_listed() {
        let arena = Arena::create(&ArenaConfig::memfd(2 << 20)).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp(0)));
        let tunables = Tunables { flusher_threads: 0, ..Tunables::default() };
        let tenants = Arc::new(Tenants::new(&tunables, Arc::new(Progress::new(Arc::clone(&clock)))));
        let pool = FlusherPool::new(clock, tunables, arena.frames().into(), Options::default());
        let reclaim = Reclaim::new(Arc::clone(&arena), Arc::clone(&tenants), pool);
        while let Some(_frame) = reclaim.alloc_frame(Pool::Normal) {}
        reclaim.wake_if_low();
        assert!(reclaim.kick.is_set(), "few frames are free");
        assert!(!reclaim.run_background(), "there is nothing to drop");
        reclaim.wake_if_low();
        assert!(!reclaim.kick.is_set());
        reclaim.note_listed(tenants.root());
        assert!(reclaim.kick.is_set());
    }
}

//! The frames that payloads are received into, for all volumes: their number, and those not in use at the moment.
//!
//! # Invariants
//! N1. `count` is at least the number of frames in `kept` and in use, and at most the limit passed by the caller that
//!     took them.
//! N2. Frames in `kept` are locked exclusively and belong to no page, and their records are FREE.
//!
//! # Lock order
//! A leaf, taken once per batch of requests that a thread reads.

use slackwater_arena::{FrameId, Scatter};
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};

use crate::lock_order::LEAVES;

/// See the [module documentation](self).
pub(crate) struct LandingStock {
    count: AtomicUsize,
    /// Each with the empty list for fresh frames that its last user had.
    kept: Mutex<Vec<(Scatter, Vec<FrameId>)>>,
}

impl LandingStock {
    pub(crate) fn new() -> Self {
        Self { count: AtomicUsize::new(0), kept: Mutex::new(LEAVES, Vec::new()) }
    }

    /// Adds `count`, unless the total would exceed `most`.
    pub(crate) fn try_add(&self, count: usize, most: usize) -> bool {
        let more = |now: usize| now.checked_add(count).filter(|then| *then <= most);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Subtracts frames that were counted but could not be allocated.
    pub(crate) fn sub(&self, count: usize) {
        self.count.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> Option<(Scatter, Vec<FrameId>)> {
        self.kept.lock().pop()
    }

    pub(crate) fn keep(&self, frames: Scatter, list: Vec<FrameId>) {
        self.kept.lock().push((frames, list));
    }

    /// Returns the unused frames to the arena.
    pub(crate) fn free_kept(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        kept.into_iter().for_each(|(frames, _)| self.free(frames));
    }

    pub(crate) fn free(&self, mut frames: Scatter) {
        let (arena, list) = (Arc::clone(frames.arena()), frames.frames().to_vec());
        frames.clear();
        list.iter().for_each(|frame| arena.free(*frame));
        self.sub(list.len());
    }
}

//! The two pools of frames: the normal one, and the reserve at the end.
//!
//! # Invariants
//! P1. The reserve is a fixed range of frames. A freed frame returns to the pool that its number belongs to, so the
//!     normal pool never takes frames from the reserve.

use crate::filling::Free;
use crate::ids::FrameId;
use crate::layout::Counts;
use crate::run_allocator::RunAllocator;

/// The frames that an allocation may take.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Pool {
    /// All but the reserve.
    Normal,
    /// The normal pool first, then the reserve: for work that ends with more free frames than before.
    Reserve,
}

pub(crate) struct FramePools {
    normal: RunAllocator,
    reserve: RunAllocator,
}

impl FramePools {
    pub(crate) fn new(counts: Counts, cpus: usize, is_free: impl Fn(u32) -> bool) -> Self {
        let normal = counts.frames - counts.reserve_frames;
        Self {
            normal: RunAllocator::new(normal, cpus, &is_free),
            reserve: RunAllocator::new(counts.reserve_frames, cpus, |frame| is_free(normal + frame)),
        }
    }

    /// The pools of a new arena: of each, the first ones are free.
    pub(crate) fn with_first(counts: Counts, cpus: usize, free: Free) -> Self {
        Self {
            normal: RunAllocator::with_first(counts.frames - counts.reserve_frames, cpus, free.frames),
            reserve: RunAllocator::with_first(counts.reserve_frames, cpus, free.reserve),
        }
    }

    pub(crate) fn alloc(&self, pool: Pool) -> Option<FrameId> {
        let normal = self.normal.alloc();
        let number = match pool {
            Pool::Normal => normal?,
            Pool::Reserve => normal.or_else(|| self.reserve.alloc().map(|frame| self.normal.len() + frame))?,
        };
        Some(FrameId::new(number))
    }

    pub(crate) fn alloc_many(&self, pool: Pool, want: u32, out: &mut Vec<FrameId>) -> u32 {
        let have = self.normal.alloc_many(want, |frame| out.push(FrameId::new(frame)));
        match pool {
            Pool::Normal => have,
            Pool::Reserve => {
                let first = self.normal.len();
                have + self.reserve.alloc_many(want - have, |frame| out.push(FrameId::new(first + frame)))
            }
        }
    }

    /// Whether a run of [`RUN_FRAMES`](crate::RUN_FRAMES) is free in the normal pool, as far as is known.
    pub(crate) fn has_whole_run(&self) -> bool {
        self.normal.has_whole()
    }

    pub(crate) fn free(&self, frame: FrameId) {
        match frame.as_u32().checked_sub(self.normal.len()) {
            None => self.normal.free(frame.as_u32()),
            Some(in_reserve) => self.reserve.free(in_reserve), // P1
        }
    }

    /// Frames that an allocation from `pool` could take.
    pub(crate) fn free_count(&self, pool: Pool) -> u64 {
        match pool {
            Pool::Normal => self.normal.free_count(),
            Pool::Reserve => self.normal.free_count() + self.reserve.free_count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FramePools, Pool};
    use crate::layout::Counts;

    const COUNTS: Counts = Counts { frames: 600, reserve_frames: 100, inodes: 1, volumes: 1 };

    #[test]
    fn normal_allocations_leave_the_reserve_alone() {
        let pools = FramePools::new(COUNTS, 1, |_| true);
        let mut frames = Vec::new();
        assert_eq!(pools.alloc_many(Pool::Normal, 1000, &mut frames), 500);
        assert!(frames.iter().all(|frame| frame.as_u32() < 500));
        assert_eq!(pools.alloc(Pool::Normal), None);
        assert_eq!((pools.free_count(Pool::Normal), pools.free_count(Pool::Reserve)), (0, 100));
        assert_eq!(pools.alloc_many(Pool::Reserve, 100, &mut frames), 100);
        assert_eq!(pools.alloc(Pool::Reserve), None);
    }

    #[test]
    fn a_frame_returns_to_its_own_pool() {
        let pools = FramePools::new(COUNTS, 1, |_| true);
        let mut frames = Vec::new();
        pools.alloc_many(Pool::Reserve, 600, &mut frames);
        for frame in frames {
            pools.free(frame);
        }
        assert_eq!((pools.free_count(Pool::Normal), pools.free_count(Pool::Reserve)), (500, 600));
    }
}

//! Frames held together for one I/O.
//!
//! A flusher gathers dirty frames, passes them to a backend and releases them when the backend has answered, perhaps on
//! another thread. So a bundle owns its holds: it borrows nothing, keeps the arena alive, and is bound to no thread.
//!
//! # Lock order
//! Both bundles only try a frame's lock, so they may be filled in any order, under any lock.

use slackwater_sync::shim::Arc;

use crate::arena::Arena;
use crate::ids::FrameId;
use crate::layout::FRAME_BYTES;
use crate::mapping::{Exclusive, FrameWrite, LockedFrames, Shared};

/// Frames to read from: the source of a write to the backend. Other threads may read them at the same time.
pub struct Gather(LockedFrames<Shared>);

/// Frames to fill: the target of a read from the backend. No other thread can read them meanwhile.
pub struct Scatter(LockedFrames<Exclusive>);

impl Gather {
    /// An empty bundle that takes up to `capacity` frames.
    #[must_use]
    pub fn new(arena: Arc<Arena>, capacity: usize) -> Self {
        Self(LockedFrames::new(arena, capacity))
    }

    /// Adds a frame. False if a writer holds it or waits for it, or if the capacity is used up; then the bundle is
    /// unchanged.
    ///
    /// # Panics
    /// If the frame is of a larger arena.
    pub fn push(&mut self, frame: FrameId) -> bool {
        self.0.push(frame)
    }

    /// The frames in the order in which they were added.
    #[must_use]
    pub fn frames(&self) -> &[FrameId] {
        self.0.frames()
    }

    /// The arena of the frames.
    #[must_use]
    pub fn arena(&self) -> &Arc<Arena> {
        self.0.arena()
    }

    /// The first `len_bytes` bytes. Neighbouring frames that follow one another in the bundle make one slice.
    ///
    /// # Panics
    /// If the frames hold fewer bytes.
    pub fn slices(&self, len_bytes: usize) -> impl Iterator<Item = &[u8]> {
        self.0.slices(len_bytes)
    }

    /// Releases all frames and keeps the memory of the list.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl Scatter {
    /// An empty bundle that takes up to `capacity` frames.
    #[must_use]
    pub fn new(arena: Arc<Arena>, capacity: usize) -> Self {
        Self(LockedFrames::new(arena, capacity))
    }

    /// Adds a frame. False if it is held, also by this bundle, or if the capacity is used up; then the bundle is
    /// unchanged.
    ///
    /// # Panics
    /// If the frame is of a larger arena.
    pub fn push(&mut self, frame: FrameId) -> bool {
        self.0.push(frame)
    }

    /// The frames in the order in which they were added.
    #[must_use]
    pub fn frames(&self) -> &[FrameId] {
        self.0.frames()
    }

    /// The arena of the frames.
    #[must_use]
    pub fn arena(&self) -> &Arc<Arena> {
        self.0.arena()
    }

    /// The first `len_bytes` bytes. Neighbouring frames that follow one another in the bundle make one slice.
    ///
    /// # Panics
    /// If the frames hold fewer bytes.
    pub fn slices(&self, len_bytes: usize) -> impl Iterator<Item = &[u8]> {
        self.0.slices(len_bytes)
    }

    /// The slices of [`slices`](Self::slices), to be filled.
    ///
    /// # Panics
    /// If the frames hold fewer bytes.
    pub fn slices_mut(&mut self, len_bytes: usize) -> impl Iterator<Item = &mut [u8]> {
        self.0.slices_mut(len_bytes)
    }

    /// Zeroes all bytes from `from` on, which lie past the end of a file.
    pub fn zero_from(&mut self, from: usize) {
        let len_bytes = self.frames().len() * FRAME_BYTES;
        let mut skip = from;
        for slice in self.slices_mut(len_bytes) {
            let kept = skip.min(slice.len());
            skip -= kept;
            slice[kept..].fill(0);
        }
    }

    /// The bytes of the `nth` frame.
    ///
    /// # Panics
    /// If there are fewer frames.
    #[must_use]
    pub fn frame_bytes(&self, nth: usize) -> &[u8] {
        self.0.frame_bytes(nth)
    }

    /// Replaces the `nth` frame by that of `hold`, and releases the old one.
    ///
    /// # Panics
    /// If there are fewer frames, or the frame is of another arena.
    pub fn exchange(&mut self, nth: usize, hold: FrameWrite<'_>) -> FrameId {
        self.0.exchange(nth, hold)
    }

    /// Releases all frames and keeps the memory of the list.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use slackwater_sync::shim::Arc;

    use super::{Gather, Scatter};
    use crate::{Arena, ArenaConfig, FRAME_BYTES, FrameId, Pool};

    fn arena_and_frames(count: usize) -> (Arc<Arena>, Vec<FrameId>) {
        let arena = Arena::create(&ArenaConfig::memfd(8 << 20)).unwrap();
        let mut frames = Vec::new();
        assert_eq!(arena.alloc_many(Pool::Normal, count, &mut frames), count);
        (arena, frames)
    }

    #[test]
    fn scattered_bytes_are_gathered_in_order() {
        let (arena, frames) = arena_and_frames(5);
        let order = [frames[0], frames[1], frames[4], frames[2], frames[3]];
        let len_bytes = 5 * FRAME_BYTES - 100;
        let mut scatter = Scatter::new(Arc::clone(&arena), 5);
        assert!(order.iter().all(|frame| scatter.push(*frame)));
        let mut value = 0_u64;
        for slice in scatter.slices_mut(5 * FRAME_BYTES) {
            for byte in slice {
                *byte = (value % 251) as u8;
                value += 1;
            }
        }
        scatter.zero_from(len_bytes);
        drop(scatter);
        let mut gather = Gather::new(arena, 5);
        assert!(order.iter().all(|frame| gather.push(*frame)));
        assert_eq!(gather.slices(len_bytes).map(<[u8]>::len).collect::<Vec<_>>(), [8192, 4096, 8092]);
        let all = gather.slices(5 * FRAME_BYTES).flatten().copied().collect::<Vec<_>>();
        let expected = (0..5 * FRAME_BYTES).map(|at| if at < len_bytes { (at % 251) as u8 } else { 0 });
        assert!(all.into_iter().eq(expected));
    }

    #[test]
    fn zero_from_keeps_the_bytes_before() {
        let (arena, frames) = arena_and_frames(3);
        for from in [0, 1, FRAME_BYTES, 2 * FRAME_BYTES + 5, 3 * FRAME_BYTES, usize::MAX] {
            let mut scatter = Scatter::new(Arc::clone(&arena), 3);
            assert!([frames[2], frames[0], frames[1]].iter().all(|frame| scatter.push(*frame)));
            scatter.slices_mut(3 * FRAME_BYTES).for_each(|slice| slice.fill(1));
            scatter.zero_from(from);
            let ones = scatter.slices(3 * FRAME_BYTES).flatten().filter(|byte| **byte == 1).count();
            assert_eq!(ones, from.min(3 * FRAME_BYTES));
        }
    }

    #[test]
    fn holds_exclude_one_another_and_end_with_the_bundle() {
        let (arena, frames) = arena_and_frames(2);
        let mut gather = Gather::new(Arc::clone(&arena), 2);
        assert!(gather.push(frames[0]));
        assert!(arena.try_read(frames[0]).is_some() && arena.try_write(frames[0]).is_none());
        let mut scatter = Scatter::new(Arc::clone(&arena), 1);
        assert!(!scatter.push(frames[0]));
        assert!(scatter.push(frames[1]));
        assert!(!scatter.push(frames[1]) && !gather.push(frames[1]));
        gather.clear();
        assert!(!scatter.push(frames[0]), "its capacity is one");
        drop(scatter);
        assert!(frames.iter().all(|frame| arena.try_write(*frame).is_some()));
    }

    #[test]
    fn an_exchanged_frame_keeps_its_hold_and_its_bytes() {
        let (arena, frames) = arena_and_frames(3);
        let mut scatter = Scatter::new(Arc::clone(&arena), 2);
        assert!(scatter.push(frames[0]) && scatter.push(frames[1]));
        scatter.slices_mut(2 * FRAME_BYTES).for_each(|slice| slice.fill(1));
        let mut other = arena.try_write(frames[2]).unwrap();
        other.fill(2);
        assert_eq!(scatter.exchange(1, other), frames[1]);
        assert_eq!(scatter.frames(), [frames[0], frames[2]]);
        assert_eq!((scatter.frame_bytes(0)[7], scatter.frame_bytes(1)[7], arena.read(frames[1])[7]), (1, 2, 1));
        assert!(arena.try_read(frames[2]).is_none(), "the bundle has the hold now");
        drop(scatter);
        assert!(frames.iter().all(|frame| arena.try_write(*frame).is_some()));
    }

    #[test]
    #[should_panic(expected = "another arena")]
    fn a_frame_of_another_arena_is_refused() {
        let (arena, frames) = arena_and_frames(1);
        let mut scatter = Scatter::new(arena, 1);
        assert!(scatter.push(frames[0]));
        let (other, others) = arena_and_frames(1);
        let _ = scatter.exchange(0, other.write(others[0]));
    }

    #[test]
    fn a_bundle_moves_to_another_thread_and_outlives_the_arena_handle() {
        let (arena, frames) = arena_and_frames(1);
        arena.write(frames[0]).fill(9);
        let mut gather = Gather::new(arena, 1);
        assert!(gather.push(frames[0]));
        let sum = slackwater_sync::shim::thread::spawn(move || {
            gather.slices(10).flatten().map(|byte| u32::from(*byte)).sum::<u32>()
        });
        assert_eq!(sum.join().unwrap(), 90);
    }
}

//! The memory of a new arena: allocated part by part, most of it beside its use.
//!
//! The first parts hold what the first writes need. Then follow the other records, the reserve, and the other frames.
//!
//! # Invariants
//! G1. A frame or slot becomes free when its bytes and its record are allocated. Until then it counts as taken. So an
//!     access never waits for memory, and never fails for lack of it (S1 of [`crate::source`]).
//! G2. An allocation that finds nothing free allocates the next part by itself. `None` means that no part is left.
//! G3. If the system refuses a part, it is not asked again: the rest of the arena stays taken, and its use goes on.
//!
//! # Lock order
//! `FILLING` is a leaf. Callers may hold any lock of the engine, also one under which a thread does not sleep otherwise.
//! They wait for one part at most, and only while the arena is young.
//!
//! # Kernel counterpart
//! Deferred initialisation of `struct page`: `deferred_init_memmap` in the background, `deferred_grow_zone` for an
//! allocation that comes too early.

use std::collections::VecDeque;
use std::ops::Range;

use slackwater_sync::lock::{Mutex, Rank};
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU32, Ordering};
use slackwater_sync::shim::{Arc, Weak};

use crate::arena::Arena;
use crate::error::ArenaError;
use crate::huge_pages::HUGE_BYTES;
use crate::layout::{FRAME_BYTES, Layout};
use crate::record::{FrameEntry, InodeEntry};

const FILLING: Rank = Rank::new(90, "FILLING");

/// Frames and inode slots that are free from the start. They begin in small pages, which take less time than huge ones.
const FIRST_FRAMES: u64 = 256;
const FIRST_INODES: u64 = 256;

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Kind {
    Records,
    Reserve,
    Frames,
}

/// The order in which the bytes of a file are allocated.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Before the arena is used.
    pub(crate) first: Vec<Range<u64>>,
    rest: VecDeque<(Kind, Range<u64>)>,
    layout: Layout,
    /// Frames and inode slots that the first parts hold completely.
    first_free: Free,
}

/// How many frames outside the reserve, inode slots, and frames of the reserve are allocated. They are the first ones
/// of each.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct Free {
    pub(crate) frames: u32,
    pub(crate) inodes: u32,
    pub(crate) reserve: u32,
}

impl Free {
    pub(crate) fn all(layout: &Layout) -> Self {
        let counts = layout.counts;
        Self { frames: counts.frames - counts.reserve_frames, inodes: counts.inodes, reserve: counts.reserve_frames }
    }
}

impl Plan {
    pub(crate) fn new(layout: Layout) -> Self {
        let (huge, page, end) = (HUGE_BYTES as u64, FRAME_BYTES as u64, layout.file_bytes);
        let up = |at: u64| at.next_multiple_of(page).min(end);
        let down = |at: u64| at - at % huge;
        let all = Free::all(&layout);
        let reserve_at = layout.frames_at + u64::from(all.frames) * FRAME_BYTES as u64;
        let inodes_end = up(layout.inodes_at + FIRST_INODES * size_of::<InodeEntry>() as u64);
        let table = layout.frame_table_at.max(inodes_end);
        let table_end = up(layout.frame_table_at + FIRST_FRAMES * size_of::<FrameEntry>() as u64).max(table);
        let frames = layout.frames_at.max(table_end);
        let frames_end = up(layout.frames_at + FIRST_FRAMES * FRAME_BYTES as u64).max(frames);
        let reserve = down(reserve_at).max(frames_end);
        let within =
            |from: u64, end: u64, size: usize| (end.saturating_sub(from) / size as u64).min(u32::MAX.into()) as u32;
        let first_free = Free {
            frames: within(layout.frames_at, frames_end, FRAME_BYTES)
                .min(within(layout.frame_table_at, table_end, size_of::<FrameEntry>()))
                .min(all.frames),
            inodes: within(layout.inodes_at, inodes_end, size_of::<InodeEntry>()).min(all.inodes),
            reserve: 0,
        };
        let first = [0..inodes_end, table..table_end, frames..frames_end];
        let rest = [
            (Kind::Records, inodes_end..table),
            (Kind::Records, table_end..frames),
            (Kind::Reserve, reserve..end),
            (Kind::Frames, frames_end..reserve),
        ];
        Self {
            first: first.into_iter().filter(|range| !range.is_empty()).collect(),
            rest: rest.into_iter().filter(|(_, range)| !range.is_empty()).collect(),
            layout,
            first_free,
        }
    }

    /// The plan of a file that was partly allocated in its order, and the parts that have been allocated.
    pub(crate) fn resume(layout: Layout, is_allocated: impl Fn(&Range<u64>) -> bool) -> (Self, Vec<Range<u64>>) {
        let mut plan = Self::new(layout);
        let mut filled = plan.first.clone();
        while let Some(part) = plan.next().filter(&is_allocated) {
            plan.advance(part.end);
            match filled.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                Some(_) | None => filled.push(part),
            }
        }
        (plan, filled)
    }

    /// Everything allocated by now: the first parts, and those that are not in the rest any more.
    pub(crate) fn free(&self) -> Free {
        let all = Free::all(&self.layout);
        let left = |kind| self.rest.iter().find(|(left, _)| *left == kind).map(|(_, range)| range.start);
        if left(Kind::Records).is_some() {
            return self.first_free;
        }
        let before = |at: u64| ((at.saturating_sub(self.layout.frames_at)) / FRAME_BYTES as u64).min(all.frames.into());
        Free {
            frames: left(Kind::Frames).map_or(all.frames, |at| before(at) as u32),
            inodes: all.inodes,
            reserve: if left(Kind::Reserve).is_some() { 0 } else { all.reserve },
        }
    }

    /// The next part, if any is left: up to the end of a huge page.
    fn next(&self) -> Option<Range<u64>> {
        let (_, range) = self.rest.front()?;
        Some(range.start..range.end.min((range.start + 1).next_multiple_of(HUGE_BYTES as u64)))
    }

    /// The part that [`next`](Self::next) returned is allocated.
    fn advance(&mut self, to: u64) {
        if let Some((_, range)) = self.rest.front_mut() {
            range.start = to;
            if range.is_empty() {
                self.rest.pop_front();
            }
        }
    }
}

/// The memory that an arena in use still lacks.
pub(crate) struct Filling {
    /// True once nothing is left, or the system has refused a part (G3).
    is_over: AtomicBool,
    /// The filler is to end.
    is_stopped: AtomicBool,
    /// Frames and inode slots that will become free.
    frames: AtomicU32,
    reserve: AtomicU32,
    inodes: AtomicU32,
    state: Mutex<State>,
}

struct State {
    plan: Plan,
    makes_huge: bool,
    refused: Option<ArenaError>,
}

impl Filling {
    /// The state of an arena with all its memory.
    pub(crate) fn over(layout: Layout) -> Self {
        let plan = Plan { first: Vec::new(), rest: VecDeque::new(), layout, first_free: Free::all(&layout) };
        Self::new(plan)
    }

    /// The state of an arena with the first parts of `plan`.
    pub(crate) fn new(plan: Plan) -> Self {
        let (all, now) = (Free::all(&plan.layout), plan.free());
        Self {
            is_over: AtomicBool::new(plan.rest.is_empty()),
            is_stopped: AtomicBool::new(false),
            frames: AtomicU32::new(all.frames - now.frames),
            reserve: AtomicU32::new(all.reserve - now.reserve),
            inodes: AtomicU32::new(all.inodes - now.inodes),
            state: Mutex::new(FILLING, State { plan, makes_huge: true, refused: None }),
        }
    }

    /// Everything allocated by now.
    pub(crate) fn free(&self) -> Free {
        self.state.lock().plan.free()
    }

    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Frames outside the reserve that will become free.
    pub(crate) fn frames(&self) -> u32 {
        if self.is_over() { 0 } else { self.frames.load(Ordering::Relaxed) }
    }

    /// Frames of the reserve that will become free.
    pub(crate) fn reserve(&self) -> u32 {
        if self.is_over() { 0 } else { self.reserve.load(Ordering::Relaxed) }
    }

    /// Inode slots that will become free.
    pub(crate) fn inodes(&self) -> u32 {
        if self.is_over() { 0 } else { self.inodes.load(Ordering::Relaxed) }
    }

    /// Frames that the arena will never have (G3).
    pub(crate) fn missing(&self) -> u32 {
        let missing = || self.frames.load(Ordering::Relaxed) + self.reserve.load(Ordering::Relaxed);
        if self.is_over() { missing() } else { 0 }
    }
}

impl Arena {
    /// Ends the filler after the part that it allocates now, before the arena is given up: it would delay that. From then
    /// on parts are allocated when they are needed.
    pub fn stop_filling(&self) {
        self.filling().is_stopped.store(true, Ordering::Relaxed);
    }

    /// Allocates the next part of the memory and frees what it holds. False if none is left.
    ///
    /// # Blocking
    /// While another thread does so, and then until 2 MiB are allocated, usually some hundred microseconds.
    #[cold]
    pub(crate) fn fill_part(&self) -> bool {
        let filling = self.filling();
        let mut state = filling.state.lock();
        let State { plan, makes_huge, refused } = &mut *state;
        let Some(part) = plan.next().filter(|_| !filling.is_over()) else { return false };
        let before = plan.free();
        if let Err(error) = self.mapping().fill(self.fd(), part.clone(), makes_huge) {
            *refused = Some(error);
            filling.is_over.store(true, Ordering::Release);
            return false;
        }
        plan.advance(part.end);
        let now = plan.free();
        self.release(before, now);
        // After the release: a sum of both counts never misses one.
        let all = Free::all(self.mapping().layout());
        filling.frames.store(all.frames - now.frames, Ordering::Release);
        filling.reserve.store(all.reserve - now.reserve, Ordering::Release);
        filling.inodes.store(all.inodes - now.inodes, Ordering::Release);
        if plan.rest.is_empty() {
            filling.is_over.store(true, Ordering::Release);
        }
        true
    }

    /// The error of the system that has ended the allocation, for the first caller.
    fn take_refusal(&self) -> Option<ArenaError> {
        self.filling().state.lock().refused.take()
    }
}

/// Allocates the rest of the memory of an arena that is in use already, see [`Arena::create_unfilled`]. Without it each
/// part is allocated when it is needed.
#[must_use = "call run on a thread"]
pub struct Filler {
    arena: Weak<Arena>,
}

impl Filler {
    pub(crate) fn new(arena: &Arc<Arena>) -> Self {
        Self { arena: Arc::downgrade(arena) }
    }

    /// Allocates everything that is left. Ends early if the arena is dropped, or after [`Arena::stop_filling`].
    ///
    /// # Errors
    /// [`ArenaError::NoSpace`] and [`ArenaError::Os`]: the system refused memory that was there when the arena was
    /// created. The arena works on without it ([`Arena::missing_frames`]).
    ///
    /// # Blocking
    /// Up to a second per GiB.
    pub fn run(self) -> Result<(), ArenaError> {
        while let Some(arena) = self.arena.upgrade().filter(|arena| !arena.filling().is_stopped.load(Ordering::Relaxed))
        {
            if !arena.fill_part() {
                return arena.take_refusal().map_or(Ok(()), Err);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Free, HUGE_BYTES, Kind, Plan};
    use crate::config::ArenaConfig;

    /// Every byte of the file is in exactly one part, and what is free grows up to everything.
    #[test]
    fn parts_cover_the_file_once_and_free_everything_in_the_end() {
        for (mib, volumes, inodes) in
            [(1, 1, None), (64, 64, None), (1024, 64, None), (300, 65536, Some(4)), (4096, 1, Some(1))]
        {
            let config = ArenaConfig { inodes, ..ArenaConfig::memfd(mib << 20).with_volumes(volumes) };
            let layout = config.layout(4096).unwrap();
            let mut plan = Plan::new(layout);
            let mut parts = plan.first.clone();
            assert!(parts.iter().all(|part| !part.is_empty()));
            let mut free = plan.free();
            assert!(free.frames >= 256.min(Free::all(&layout).frames) && free.inodes >= 256.min(layout.counts.inodes));
            while let Some(part) = plan.next() {
                assert!(part.end - part.start <= HUGE_BYTES as u64 && !part.is_empty());
                plan.advance(part.end);
                let now = plan.free();
                assert!(now.frames >= free.frames && now.inodes >= free.inodes && now.reserve >= free.reserve);
                free = now;
                parts.push(part);
            }
            assert_eq!(free, Free::all(&layout), "{mib} MiB");
            parts.sort_by_key(|part| part.start);
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
            assert_eq!((parts[0].start, parts.last().unwrap().end), (0, layout.file_bytes));
        }
    }

    /// A successor goes on where the plan was left, at any part.
    #[test]
    fn a_plan_is_resumed_where_it_was_left() {
        let layout = ArenaConfig::memfd(64 << 20).layout(4096).unwrap();
        let mut plan = Plan::new(layout);
        let mut allocated = plan.first.clone();
        loop {
            let has = |part: &std::ops::Range<u64>| allocated.contains(part);
            let (resumed, filled) = Plan::resume(layout, has);
            assert_eq!((resumed.free(), resumed.next()), (plan.free(), plan.next()));
            let bytes = |parts: &[std::ops::Range<u64>]| parts.iter().map(|part| part.end - part.start).sum::<u64>();
            assert_eq!(bytes(&filled), bytes(&allocated));
            let Some(part) = plan.next() else { break };
            plan.advance(part.end);
            allocated.push(part);
        }
    }

    /// A frame is free only if its bytes and its record are in parts that are allocated.
    #[test]
    fn what_is_free_is_allocated() {
        let layout = ArenaConfig::memfd(1 << 30).layout(4096).unwrap();
        let mut plan = Plan::new(layout);
        let mut parts = plan.first.clone();
        loop {
            let has = |at: u64, bytes: u64| {
                let mut at = at..at + bytes;
                while let Some(part) = parts.iter().find(|part| part.contains(&at.start)) {
                    at.start = part.end.min(at.end);
                    if at.is_empty() {
                        return true;
                    }
                }
                false
            };
            let free = plan.free();
            let normal = u64::from(Free::all(&layout).frames);
            let reserve = normal..normal + u64::from(free.reserve);
            for frame in (0..u64::from(free.frames)).step_by(97).chain(reserve.step_by(97)) {
                assert!(
                    has(layout.frames_at + frame * 4096, 4096) && has(layout.frame_table_at + frame * 32, 32),
                    "{frame}"
                );
            }
            assert!(has(layout.inodes_at, u64::from(free.inodes) * 256));
            let Some(part) = plan.next() else { break };
            plan.advance(part.end);
            parts.push(part);
        }
    }

    #[test]
    fn records_come_before_the_reserve_and_that_before_the_frames() {
        let plan = Plan::new(ArenaConfig::memfd(1 << 30).layout(4096).unwrap());
        let kinds = plan.rest.iter().map(|(kind, _)| *kind).collect::<Vec<_>>();
        assert_eq!(kinds, [Kind::Records, Kind::Records, Kind::Reserve, Kind::Frames]);
        let first: u64 = plan.first.iter().map(|part| part.end - part.start).sum();
        assert!(first <= 2 << 20, "{first} bytes before the first write");
    }
}

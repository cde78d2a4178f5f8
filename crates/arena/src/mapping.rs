//! The mapped file: the only place that turns addresses into references.
//!
//! # Invariants
//! M1. From [`Mapping::new`] to its drop, `file_bytes` bytes from `base` are mapped readable and writable.
//!     The layout's parts lie inside (L1 of [`crate::layout`]) and start on pages.
//! M2. Header and tables are reached as records of atomic integers only (R1 of [`crate::record`]).
//! M3. The bytes of a frame are reached only by a holder of that frame's lock word: as `&[u8]` with a shared hold, as
//!     `&mut [u8]` with the exclusive one. The words are private to this file, and each hold is a value of
//!     [`FrameRead`], [`FrameWrite`] or [`LockedFrames`], which releases it on drop.
//! M4. No other process writes to the file or truncates it: it is opened by its owner only, locked against a second
//!     arena, and a memfd is sealed. A process that violates this with the owner's permissions could just as well write
//!     to `/proc/PID/mem`.
//!
//! # Lock order
//! While another frame's lock word is held, a lock word is only tried ([`LockedFrames`]).
//!
//! # Lifetime
//! References borrow from the mapping, and bundles hold the arena; the mapping is removed with the last of them.

#![allow(unsafe_code, reason = "mapped memory has no safe access; this file is the boundary")]

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{self, Advice};
use slackwater_sync::shim::Arc;
use slackwater_sync::{RwWord, zeroed_slice};

use crate::arena::Arena;
use crate::error::{ArenaError, Mismatch};
use crate::huge_pages;
use crate::ids::FrameId;
use crate::layout::{FRAME_BYTES, Layout};
use crate::prefetch::prefetch_line;
use crate::record::{FrameEntry, HeaderEntry, InodeEntry, VolumeEntry};
use crate::source;

/// The arena's memory and the lock words of its frames.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    layout: Layout,
    /// The locks of all frames, on the heap: a lock must not outlive its process.
    locks: Box<[RwWord]>,
}

// SAFETY: the mapping belongs to the process, not to a thread; shared access is M2 and M3.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// A record that may be a reference into the mapping.
///
/// # Safety
/// Any bytes are a valid value, every field is an atomic integer, and the alignment divides a page.
unsafe trait Record {}
// SAFETY: R1.
unsafe impl Record for HeaderEntry {}
// SAFETY: R1.
unsafe impl Record for VolumeEntry {}
// SAFETY: R1.
unsafe impl Record for InodeEntry {}
// SAFETY: R1.
unsafe impl Record for FrameEntry {}

impl Mapping {
    /// Maps the file and faults in all of it, so that no later access waits for memory. The process before may have died
    /// while parts of it were holes.
    pub(crate) fn new(fd: BorrowedFd<'_>, layout: Layout) -> Result<Self, ArenaError> {
        let mapping = Self::of_hole(fd, layout)?;
        mapping.populate(0..layout.file_bytes)?;
        Ok(mapping)
    }

    /// Faults in a part of the file.
    pub(crate) fn populate(&self, part: Range<u64>) -> Result<(), ArenaError> {
        match self.advise(part.start, part.end - part.start, Advice::LinuxPopulateWrite) {
            Err(ArenaError::Os { source, .. }) if is_no_space(&source) => {
                Err(ArenaError::NoSpace { needed_bytes: self.layout.file_bytes, source })
            }
            done => done,
        }
    }

    /// Maps a new file, which is one hole. Nothing may be reached before [`fill`](Self::fill) has allocated it.
    pub(crate) fn of_hole(fd: BorrowedFd<'_>, layout: Layout) -> Result<Self, ArenaError> {
        let file_bytes = rustix::fs::fstat(fd).map_err(ArenaError::os("fstat"))?.st_size.cast_unsigned();
        if file_bytes < layout.file_bytes {
            let expected = format!("at least {}", layout.file_bytes);
            return Err(ArenaError::Length(Mismatch::new("file length", file_bytes, expected)));
        }
        let locks = zeroed_slice(layout.counts.frames as usize);
        let len = layout.file_bytes as usize;
        let base = huge_pages::map(fd, len).map_err(ArenaError::os("mmap"))?;
        let mapping = Self { base, layout, locks };
        // A core dump would be as large as the cache. A forked child would keep the file in use.
        mapping.advise(0, layout.file_bytes, Advice::LinuxDontDump)?;
        mapping.advise(0, layout.file_bytes, Advice::LinuxDontFork)?;
        Ok(mapping)
    }

    /// Allocates the memory of a part of the file: huge pages while `makes_huge`, which the kernel's first refusal ends,
    /// and blocks for what they leave out.
    pub(crate) fn fill(&self, fd: BorrowedFd<'_>, part: Range<u64>, makes_huge: &mut bool) -> Result<(), ArenaError> {
        let (at, bytes) = (part.start, part.end - part.start);
        assert!(part.end <= self.layout.file_bytes, "{part:?} is not inside");
        if *makes_huge {
            // From the start of a huge page, also if another part has a piece of it already, which may be in use.
            let first = at - at % huge_pages::HUGE_BYTES as u64;
            // SAFETY: M1, and the part is inside.
            let start = unsafe { self.base.byte_add(first as usize) };
            // SAFETY: as above.
            *makes_huge = unsafe { huge_pages::collapse(start, (part.end - first) as usize) };
        }
        source::fill(fd, part, self.layout.file_bytes)?;
        self.advise(at, bytes, Advice::LinuxPopulateWrite)
    }

    fn advise(&self, at: u64, bytes: u64, advice: Advice) -> Result<(), ArenaError> {
        assert!(at + bytes <= self.layout.file_bytes, "{bytes} bytes from {at} on are not inside");
        let start = self.base.as_ptr().wrapping_add(at as usize).cast::<c_void>();
        loop {
            // SAFETY: M1, and inside of it; none of the three advices above changes the contents of the memory.
            match unsafe { mm::madvise(start, bytes as usize, advice) } {
                Err(Errno::INTR) => {}
                done => return done.map_err(ArenaError::os("madvise")),
            }
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn header(&self) -> &HeaderEntry {
        &self.table(0, 1)[0]
    }

    pub(crate) fn volumes(&self) -> &[VolumeEntry] {
        self.table(self.layout.volumes_at, self.layout.counts.volumes)
    }

    pub(crate) fn inodes(&self) -> &[InodeEntry] {
        self.table(self.layout.inodes_at, self.layout.counts.inodes)
    }

    pub(crate) fn frames(&self) -> &[FrameEntry] {
        self.table(self.layout.frame_table_at, self.layout.counts.frames)
    }

    fn table<R: Record>(&self, at: u64, count: u32) -> &[R] {
        let first = self.base.as_ptr().wrapping_add(at as usize).cast::<R>();
        // SAFETY: M1 and M2: `at` and `count` come from the layout, `R` is the type of the records there, and the
        // alignment of a page suffices for it.
        unsafe { std::slice::from_raw_parts(first, count as usize) }
    }

    /// Prefetches the frame's lock and the first line of its bytes.
    #[inline]
    pub(crate) fn prefetch(&self, frame: FrameId) {
        prefetch_line(self.lock(frame));
        prefetch_line(self.bytes(frame));
    }

    /// Takes a shared hold unless the exclusive one is taken.
    #[inline]
    pub(crate) fn try_read(&self, frame: FrameId) -> Option<FrameRead<'_>> {
        // Lazily: a guard created without a hold would release that of another owner when dropped.
        self.lock(frame).try_read().then(|| FrameRead { mapping: self, frame })
    }

    /// Takes a shared hold.
    pub(crate) fn read(&self, frame: FrameId) -> FrameRead<'_> {
        self.lock(frame).read();
        FrameRead { mapping: self, frame }
    }

    /// Takes the exclusive hold unless any hold is taken.
    #[inline]
    pub(crate) fn try_write(&self, frame: FrameId) -> Option<FrameWrite<'_>> {
        self.lock(frame).try_write().then(|| FrameWrite { mapping: self, frame })
    }

    /// Takes the exclusive hold.
    pub(crate) fn write(&self, frame: FrameId) -> FrameWrite<'_> {
        self.lock(frame).write();
        FrameWrite { mapping: self, frame }
    }

    /// The one check of a frame number: an id of a larger arena panics here.
    #[inline]
    fn lock(&self, frame: FrameId) -> &RwWord {
        &self.locks[frame.index()]
    }

    /// The start of a frame's bytes. Only to be dereferenced under M3.
    #[inline]
    fn bytes(&self, frame: FrameId) -> *mut u8 {
        let at = self.layout.frames_at as usize + frame.index() * FRAME_BYTES;
        self.base.as_ptr().wrapping_add(at)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: M1, and no reference is left, since all borrow from `self`. The call cannot fail for a mapped range;
        // if it did, the memory would only stay mapped.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.layout.file_bytes as usize) };
    }
}

/// How the kernel refuses to populate a hole.
fn is_no_space(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::FAULT | Errno::NOMEM))
}

/// The bytes of a frame, which no other thread can change meanwhile.
pub struct FrameRead<'a> {
    mapping: &'a Mapping,
    frame: FrameId,
}

impl Deref for FrameRead<'_> {
    type Target = [u8; FRAME_BYTES];

    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: M3, with the shared hold that `self` represents.
        unsafe { &*self.mapping.bytes(self.frame).cast::<[u8; FRAME_BYTES]>() }
    }
}

impl Drop for FrameRead<'_> {
    #[inline]
    fn drop(&mut self) {
        self.mapping.lock(self.frame).read_unlock();
    }
}

/// The bytes of a frame, which no other thread can read meanwhile. Those of a new frame are arbitrary.
pub struct FrameWrite<'a> {
    mapping: &'a Mapping,
    frame: FrameId,
}

impl Deref for FrameWrite<'_> {
    type Target = [u8; FRAME_BYTES];

    #[inline]
    fn deref(&self) -> &Self::Target {
        // SAFETY: M3, with the exclusive hold that `self` represents.
        unsafe { &*self.mapping.bytes(self.frame).cast::<[u8; FRAME_BYTES]>() }
    }
}

impl DerefMut for FrameWrite<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: M3, with the exclusive hold that `self` represents.
        unsafe { &mut *self.mapping.bytes(self.frame).cast::<[u8; FRAME_BYTES]>() }
    }
}

impl Drop for FrameWrite<'_> {
    #[inline]
    fn drop(&mut self) {
        self.mapping.lock(self.frame).write_unlock();
    }
}

/// How [`LockedFrames`] holds its frames.
pub(crate) trait Hold {
    fn try_take(lock: &RwWord) -> bool;
    fn give_back(lock: &RwWord);
}

/// Many bundles may hold it.
pub(crate) enum Shared {}
/// Only one bundle may hold it.
pub(crate) enum Exclusive {}

impl Hold for Shared {
    fn try_take(lock: &RwWord) -> bool {
        lock.try_read()
    }

    fn give_back(lock: &RwWord) {
        lock.read_unlock();
    }
}

impl Hold for Exclusive {
    fn try_take(lock: &RwWord) -> bool {
        lock.try_write()
    }

    fn give_back(lock: &RwWord) {
        lock.write_unlock();
    }
}

/// Frames held together, in order; bound to no thread and no borrow.
pub(crate) struct LockedFrames<H: Hold> {
    arena: Arc<Arena>,
    frames: Vec<FrameId>,
    capacity: usize,
    hold: PhantomData<H>,
}

impl<H: Hold> LockedFrames<H> {
    pub(crate) fn new(arena: Arc<Arena>, capacity: usize) -> Self {
        Self { arena, frames: Vec::with_capacity(capacity), capacity, hold: PhantomData }
    }

    /// Adds a frame, unless it cannot be taken at once or the capacity is used up.
    pub(crate) fn push(&mut self, frame: FrameId) -> bool {
        let taken = self.frames.len() < self.capacity && H::try_take(self.mapping().lock(frame));
        if taken {
            self.frames.push(frame);
        }
        taken
    }

    pub(crate) fn frames(&self) -> &[FrameId] {
        &self.frames
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// The first `len_bytes` bytes, in slices as long as neighbouring frames allow.
    pub(crate) fn slices(&self, len_bytes: usize) -> impl Iterator<Item = &[u8]> {
        runs(&self.frames, len_bytes).map(|(first, bytes)| {
            // SAFETY: M3: a run is frames of this bundle, which holds all of them, side by side.
            unsafe { std::slice::from_raw_parts(self.mapping().bytes(first), bytes) }
        })
    }

    pub(crate) fn frame_bytes(&self, nth: usize) -> &[u8] {
        // SAFETY: M3: the frame is of this bundle, which holds it.
        unsafe { std::slice::from_raw_parts(self.mapping().bytes(self.frames[nth]), FRAME_BYTES) }
    }

    pub(crate) fn clear(&mut self) {
        for frame in &self.frames {
            H::give_back(self.mapping().lock(*frame));
        }
        self.frames.clear();
    }

    /// Always the same one: an arena never changes its mapping.
    fn mapping(&self) -> &Mapping {
        self.arena.mapping()
    }
}

impl LockedFrames<Exclusive> {
    /// Replaces the `nth` frame by that of `hold`. Releases the old frame and returns its number.
    pub(crate) fn exchange(&mut self, nth: usize, hold: FrameWrite<'_>) -> FrameId {
        assert!(std::ptr::eq(self.mapping(), hold.mapping), "a frame of another arena");
        let before = std::mem::replace(&mut self.frames[nth], hold.frame);
        std::mem::forget(hold); // the bundle owns it now
        Exclusive::give_back(self.mapping().lock(before));
        before
    }

    /// The slices of [`slices`](LockedFrames::slices), to be filled.
    pub(crate) fn slices_mut(&mut self, len_bytes: usize) -> impl Iterator<Item = &mut [u8]> {
        let this = &*self;
        runs(&this.frames, len_bytes).map(|(first, bytes)| {
            // SAFETY: M3, as above with the exclusive hold. No frame is in a bundle twice, since the second hold would
            // have failed, so runs are disjoint. `self` is borrowed exclusively meanwhile.
            unsafe { std::slice::from_raw_parts_mut(this.mapping().bytes(first), bytes) }
        })
    }
}

impl<H: Hold> Drop for LockedFrames<H> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Splits the first `len_bytes` bytes of `frames` into runs of adjacent frames: first frame and length.
fn runs(frames: &[FrameId], len_bytes: usize) -> impl Iterator<Item = (FrameId, usize)> {
    assert!(len_bytes <= frames.len() * FRAME_BYTES, "{len_bytes} bytes of {} frames", frames.len());
    let mut left = len_bytes;
    frames.chunk_by(|a, b| a.as_u32() + 1 == b.as_u32()).map_while(move |run| {
        let bytes = left.min(run.len() * FRAME_BYTES);
        left -= bytes;
        (bytes > 0).then(|| (run[0], bytes))
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::{Mapping, runs};
    use crate::huge_pages::HUGE_BYTES;
    use crate::ids::FrameId;
    use crate::layout::{Counts, Layout};
    use crate::source::{self, ArenaSource};

    fn runs_of(frames: &[u32], len_bytes: usize) -> Vec<(u32, usize)> {
        let frames = frames.iter().map(|frame| FrameId::new(*frame)).collect::<Vec<_>>();
        runs(&frames, len_bytes).map(|(first, bytes)| (first.as_u32(), bytes)).collect()
    }

    /// All blocks are allocated and stored bytes are in the file, even if the kernel ignores the advice.
    #[test]
    fn a_hole_becomes_fully_allocated_memory() {
        let counts = Counts { frames: 2048, reserve_frames: 10, inodes: 300, volumes: 7 };
        let (fd, _, block_bytes) = source::make(&ArenaSource::Memfd).expect("a memfd");
        let layout = Layout::new(counts, block_bytes).expect("plain counts");
        source::set_length(fd.as_fd(), layout.file_bytes).expect("a length");
        let mapping = Mapping::of_hole(fd.as_fd(), layout).expect("8 MiB of addresses");
        let middle = HUGE_BYTES as u64;
        for part in [middle..layout.file_bytes, 0..middle] {
            mapping.fill(fd.as_fd(), part, &mut true).expect("8 MiB");
        }
        assert_eq!(mapping.base.addr().get() % HUGE_BYTES, 0);
        let stat = rustix::fs::fstat(&fd).expect("an open file");
        assert!(stat.st_blocks.cast_unsigned() * 512 >= layout.file_bytes, "{} blocks", stat.st_blocks);
        for number in [0, 511, 2047] {
            let mut frame = mapping.write(FrameId::new(number));
            assert!(frame.iter().all(|byte| *byte == 0));
            frame.fill(number as u8);
        }
        drop(mapping);
        let mapping = Mapping::new(fd.as_fd(), layout).expect("the same file");
        for number in [0, 511, 2047] {
            assert!(mapping.read(FrameId::new(number)).iter().all(|byte| *byte == number as u8));
        }
    }

    #[test]
    fn adjacent_frames_make_one_run() {
        assert_eq!(runs_of(&[4, 5, 6, 9, 8], 5 * 4096), [(4, 3 * 4096), (9, 4096), (8, 4096)]);
        assert_eq!(runs_of(&[4, 5, 6, 9], 3 * 4096 + 1), [(4, 3 * 4096), (9, 1)]);
        assert_eq!(runs_of(&[4, 5, 6, 9], 3 * 4096), [(4, 3 * 4096)]);
        assert_eq!(runs_of(&[4, 4], 100), [(4, 100)]);
        assert_eq!(runs_of(&[], 0), []);
    }

    #[test]
    #[should_panic(expected = "4097 bytes of 1 frames")]
    fn more_bytes_than_the_frames_hold_panic() {
        runs_of(&[0], 4097);
    }
}

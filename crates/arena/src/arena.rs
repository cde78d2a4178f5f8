//! An arena: the mapping, the owners of its parts, and the life of a frame.
//!
//! # Invariants
//! F1. A frame is free in the pools, or it has an owner. The record of a free frame is FREE. If a crash happens just
//!     after a frame was taken or its record cleared, the frame returns to the pool.
//! F2. FREE -> DIRTY or CLEAN -> DIRTY is [`Arena::publish_dirty`], after the bytes are in the frame. A
//!     DIRTY record's fields never change.
//! F3. DIRTY -> CLEAN is [`Arena::mark_clean`]. Any -> FREE is [`Arena::free`], or [`Arena::forget`] if the caller
//!     keeps the frame. From then on a crash loses the bytes, so the caller first makes them safe elsewhere.
//! F4. Of two DIRTY frames of one page the one with the higher version counts. The caller clears the older before it
//!     marks the newer clean: in the opposite order, a crash between the two would bring back old bytes.
//! F5. Calls that change one frame's record are made one after another. The owner of the frame ensures this.
//! F6. Frame records name inode slots, and inode records name volume slots. The caller frees the named slot last.
//! F7. A frame or slot that is set aside ([`Survivors`](crate::Survivors)) has no owner, and is not free as long as the
//!     arena is open. Its record does not change.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use slackwater_sync::shim::Arc;

use crate::error::ArenaError;
use crate::filling::{Filling, Free};
use crate::frame_pools::{FramePools, Pool};
use crate::ids::{FrameId, InodeSlot};
use crate::mapping::{FrameRead, FrameWrite, Mapping};
use crate::record::{DIRTY, FREE, LIVE, PageKey};
use crate::run_allocator::RunAllocator;
use crate::source::ArenaFile;
use crate::validate::SetAside;

/// Page frames, and the tables that describe their contents, in one mapped file.
///
/// An arena never grows: its frames hold all page data that can be cached. The file survives a killed process:
/// [`Arena::open`] finds every page that was [published](Arena::publish_dirty).
///
/// # Examples
/// ```
/// use slackwater_arena::{Arena, ArenaConfig, InodeRecord, Pool, VolumeId, VolumeRecord};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let arena = Arena::create(&ArenaConfig::memfd(8 << 20))?;
/// let id = VolumeId::new(b"home").ok_or("too long")?;
/// let volume = arena.alloc_volume(&VolumeRecord { id }).ok_or("no volume slot")?;
/// let inode = arena.alloc_inode(&InodeRecord::new(volume)).ok_or("no inode slot")?;
/// let frame = arena.alloc(Pool::Normal).ok_or("full")?;
/// arena.write(frame).fill(7);
/// arena.publish_dirty(frame, inode, 0, 1);
///
/// let fd = arena.try_clone_fd()?;
/// drop(arena); // or the process is killed
/// let (arena, survivors) = Arena::open_fd(fd)?;
/// let (index, frame) = survivors.volumes[0].inodes[0].pages[0];
/// assert_eq!((index, arena.read(frame)[0]), (0, 7));
/// # Ok(())
/// # }
/// ```
///
/// Kernel counterpart: the page frames and the `struct page` array, which do not survive a crash there.
pub struct Arena {
    mapping: Mapping,
    pools: FramePools,
    pub(crate) inode_slots: RunAllocator,
    pub(crate) volume_slots: RunAllocator,
    filling: Filling,
    set_aside: SetAside,
    /// Last, so that the lock is released after the mapping is gone.
    file: ArenaFile,
}

impl Arena {
    /// Number of the format, which changes when an earlier program could not open the file.
    pub const FORMAT: u64 = crate::header::VERSION;

    /// A new arena, in which only what lacks memory is taken.
    pub(crate) fn assemble_new(mapping: Mapping, file: ArenaFile, filling: Filling) -> Arc<Self> {
        let (cpus, counts, free) = (cpus(), mapping.layout().counts, filling.free());
        let pools = FramePools::with_first(counts, cpus, free);
        let inode_slots = RunAllocator::with_first(counts.inodes, cpus, free.inodes);
        let volume_slots = RunAllocator::with_first(counts.volumes, cpus, counts.volumes);
        let set_aside = SetAside::default();
        Arc::new(Self { mapping, pools, inode_slots, volume_slots, filling, set_aside, file })
    }

    /// An arena over a mapping with checked records. A frame or slot is free if its record is, it has memory, and it is not
    /// set aside. The record of a frame that is set aside is not FREE (F7).
    pub(crate) fn assemble(mapping: Mapping, file: ArenaFile, filling: Filling, set_aside: SetAside) -> Arc<Self> {
        let (cpus, filled) = (cpus(), filling.free());
        let counts = mapping.layout().counts;
        let normal = counts.frames - counts.reserve_frames;
        let is_filled = |frame: u32| match frame.checked_sub(normal) {
            None => frame < filled.frames,
            Some(of_reserve) => of_reserve < filled.reserve,
        };
        let is_free = |frame: u32| is_filled(frame) && mapping.frames()[frame as usize].state() == FREE;
        let pools = FramePools::new(counts, cpus, is_free);
        let is_free = |slot: u32| slot < filled.inodes && is_free_inode(&mapping, &set_aside, slot);
        let inode_slots = RunAllocator::new(counts.inodes, cpus, is_free);
        let is_free = |slot| mapping.volumes()[slot as usize].state.get() == FREE && !set_aside.volumes.contains(&slot);
        let volume_slots = RunAllocator::new(counts.volumes, cpus, is_free);
        Arc::new(Self { mapping, pools, inode_slots, volume_slots, filling, set_aside, file })
    }

    /// Makes frames and slots allocatable whose memory was allocated: those from `before` up to `now`, except used ones
    /// of an earlier process and those set aside (F7).
    pub(crate) fn release(&self, before: Free, now: Free) {
        let normal = self.frames() - self.reserve_frames();
        let frames = (before.frames..now.frames).chain(normal + before.reserve..normal + now.reserve);
        frames
            .filter(|frame| self.mapping.frames()[*frame as usize].state() == FREE)
            .for_each(|frame| self.pools.free(FrameId::new(frame)));
        (before.inodes..now.inodes)
            .filter(|slot| is_free_inode(&self.mapping, &self.set_aside, *slot))
            .for_each(|slot| self.inode_slots.free(slot));
    }

    /// Another descriptor of the file, for a supervisor to keep or to send to the next process. It does not keep the
    /// arena in use.
    ///
    /// # Errors
    /// [`ArenaError::Os`] if there are too many descriptors.
    pub fn try_clone_fd(&self) -> Result<OwnedFd, ArenaError> {
        let clone = self.file.fd().try_clone_to_owned();
        clone.map_err(|source| ArenaError::Os { call: "fcntl(F_DUPFD_CLOEXEC)", source })
    }

    /// Another descriptor of the file with its lock, for a supervisor to pass on to the next process. While any process
    /// has it, the arena is in use, unless this one is dropped in order.
    ///
    /// # Errors
    /// [`ArenaError::Os`] if there are too many descriptors.
    pub fn try_clone_lock(&self) -> Result<OwnedFd, ArenaError> {
        let clone = self.file.lock_fd().try_clone_to_owned();
        clone.map_err(|source| ArenaError::Os { call: "fcntl(F_DUPFD_CLOEXEC)", source })
    }

    /// Number of frames, the reserve included.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.mapping.layout().counts.frames
    }

    /// Number of frames that only [`Pool::Reserve`] can take: 1 %, at least 4 MiB, at most half.
    #[must_use]
    pub fn reserve_frames(&self) -> u32 {
        self.mapping.layout().counts.reserve_frames
    }

    /// The frame with this number, if there is one.
    #[inline]
    #[must_use]
    pub fn frame(&self, number: u32) -> Option<FrameId> {
        (number < self.frames()).then(|| FrameId::new(number))
    }

    /// Takes a free frame. Its bytes are arbitrary, its record is FREE. `None` if no frame is free.
    #[must_use]
    pub fn alloc(&self, pool: Pool) -> Option<FrameId> {
        if self.filling.is_over() {
            return self.pools.alloc(pool);
        }
        // The reserve is for a shortage, and this is none (G2).
        self.filled_until(|| self.pools.alloc(Pool::Normal)).or_else(|| self.pools.alloc(pool))
    }

    /// Takes up to `count` frames, adds them to `out` in runs as long as possible, and returns their number. There are
    /// fewer only if no more are free.
    pub fn alloc_many(&self, pool: Pool, count: usize, out: &mut Vec<FrameId>) -> usize {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if self.filling.is_over() {
            return self.pools.alloc_many(pool, count, out) as usize;
        }
        let mut have = 0;
        let _ = self.filled_until(|| {
            have += self.pools.alloc_many(Pool::Normal, count - have, out);
            (have == count).then_some(())
        });
        (have + self.pools.alloc_many(pool, count - have, out)) as usize
    }

    /// Calls `attempt` until it succeeds, and allocates memory in between. `None` if it fails with all memory allocated.
    pub(crate) fn filled_until<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        loop {
            let is_last = self.filling.is_over();
            let found = attempt();
            if found.is_some() || is_last {
                return found;
            }
            self.fill_part();
        }
    }

    /// Clears the record of a frame that the caller keeps (F3).
    pub fn forget(&self, frame: FrameId) {
        self.mapping.frames()[frame.index()].clear();
    }

    /// Frees a frame, whatever its record is (F3).
    ///
    /// # Panics
    /// If it is free already.
    pub fn free(&self, frame: FrameId) {
        self.mapping.frames()[frame.index()].clear(); // F1: before another owner can take it.
        self.pools.free(frame);
    }

    /// The number of free frames, including the reserve. Calls in flight may or may not be counted.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        self.free_frames_in(Pool::Reserve)
    }

    /// The number of frames that this arena will never have, since the system refused memory that was there when the
    /// arena was created ([`Filler::run`](crate::Filler::run)).
    #[must_use]
    pub fn missing_frames(&self) -> u32 {
        self.filling.missing()
    }

    /// The number of frames that an allocation from `pool` could take. Calls in flight may or may not be counted.
    #[must_use]
    pub fn free_frames_in(&self, pool: Pool) -> u64 {
        // In this order: frames move from the second to the first count.
        let unfilled = match pool {
            Pool::Normal => self.filling.frames(),
            Pool::Reserve => self.filling.frames() + self.filling.reserve(),
        };
        self.pools.free_count(pool) + u64::from(unfilled)
    }

    /// Whether [`RUN_FRAMES`](crate::RUN_FRAMES) frames are free in one run. Calls in flight may or may not be counted.
    #[must_use]
    pub fn has_whole_run(&self) -> bool {
        self.pools.has_whole_run() || self.filling.frames() > 0
    }

    /// Prefetches the memory of the frame with this number, if there is one. For accesses that follow at once and that
    /// the processor cannot predict, such as random reads and writes in any order.
    #[inline]
    pub fn prefetch(&self, number: u32) {
        if let Some(frame) = self.frame(number) {
            self.mapping.prefetch(frame);
        }
    }

    /// The bytes of a frame, unless a writer holds it or waits for it.
    ///
    /// # Panics
    /// If the frame is of a larger arena. This holds for all calls that take an id.
    #[inline]
    #[must_use]
    pub fn try_read(&self, frame: FrameId) -> Option<FrameRead<'_>> {
        self.mapping.try_read(frame)
    }

    /// The bytes of a frame.
    ///
    /// # Blocking
    /// While a writer holds it or waits for it. The caller holds neither a [`FrameRead`] nor a [`FrameWrite`] of this
    /// frame.
    #[must_use]
    pub fn read(&self, frame: FrameId) -> FrameRead<'_> {
        self.mapping.read(frame)
    }

    /// The bytes of a frame for changes, unless they are held.
    #[inline]
    #[must_use]
    pub fn try_write(&self, frame: FrameId) -> Option<FrameWrite<'_>> {
        self.mapping.try_write(frame)
    }

    /// The bytes of a frame for changes.
    ///
    /// # Blocking
    /// While they are held, also by a [`Gather`](crate::Gather) during its I/O. The caller holds neither a
    /// [`FrameRead`] nor a [`FrameWrite`] of this frame.
    #[must_use]
    pub fn write(&self, frame: FrameId) -> FrameWrite<'_> {
        self.mapping.write(frame)
    }

    /// Records that the frame holds page `index` of `inode` and that no other place has these bytes (F2). After the
    /// return they survive the process.
    ///
    /// `version` orders the frames of one page (F4). If the record already says exactly this, the call does nothing: it
    /// may be repeated after each change of the bytes.
    ///
    /// # Panics
    /// If the frame is DIRTY with another inode, index or version; if the inode slot is not in use.
    pub fn publish_dirty(&self, frame: FrameId, inode: InodeSlot, index: u64, version: u64) {
        let record = &self.mapping.frames()[frame.index()];
        let key = PageKey { inode: inode.as_u32(), index, version };
        if record.state() == DIRTY {
            assert!(record.key() == key, "F2: {frame:?} is dirty as {:?}, not as {key:?}", record.key());
            return;
        }
        assert!(self.mapping.inodes()[inode.index()].state.get() == LIVE, "F6: {inode:?} is not in use");
        record.publish_dirty(frame.as_u32(), key);
    }

    /// Records that the backend has the bytes (F3, F4). Does nothing unless the frame is DIRTY.
    pub fn mark_clean(&self, frame: FrameId) {
        let record = &self.mapping.frames()[frame.index()];
        if record.state() == DIRTY {
            record.mark_clean();
        }
    }

    /// Whether the frame's record is DIRTY.
    #[must_use]
    pub fn is_dirty(&self, frame: FrameId) -> bool {
        self.mapping.frames()[frame.index()].state() == DIRTY
    }

    /// The version in the frame's record: that of the last [`publish_dirty`](Self::publish_dirty) of this frame,
    /// possibly by an earlier owner.
    #[must_use]
    pub fn version(&self, frame: FrameId) -> u64 {
        self.mapping.frames()[frame.index()].key().version
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) fn set_aside(&self) -> &SetAside {
        &self.set_aside
    }

    pub(crate) fn filling(&self) -> &Filling {
        &self.filling
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd()
    }
}

impl AsFd for Arena {
    /// The file without its lock, as [`try_clone_fd`](Self::try_clone_fd).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.fd()
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let free = self.free_frames();
        f.debug_struct("Arena").field("layout", self.mapping.layout()).field("free_frames", &free).finish()
    }
}

fn is_free_inode(mapping: &Mapping, set_aside: &SetAside, slot: u32) -> bool {
    mapping.inodes()[slot as usize].state.get() == FREE && !set_aside.inodes.contains(&slot)
}

/// CPUs this process may use: the number of shards.
fn cpus() -> usize {
    rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize).max(1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use slackwater_sync::shim::{Arc, thread};

    use super::Arena;
    use crate::{ArenaConfig, InodeRecord, InodeSlot, Pool, VolumeId, VolumeRecord};

    fn arena_and_inode(frames_bytes: u64) -> (Arc<Arena>, InodeSlot) {
        let arena = Arena::create(&ArenaConfig::memfd(frames_bytes)).unwrap();
        let volume = arena.alloc_volume(&VolumeRecord { id: VolumeId::EMPTY }).unwrap();
        let inode = arena.alloc_inode(&InodeRecord::new(volume)).unwrap();
        (arena, inode)
    }

    #[test]
    fn a_frame_is_dirty_from_publication_to_clean_or_free() {
        let (arena, inode) = arena_and_inode(1 << 20);
        let frame = arena.alloc(Pool::Normal).unwrap();
        assert!(!arena.is_dirty(frame));
        arena.publish_dirty(frame, inode, 3, 7);
        arena.publish_dirty(frame, inode, 3, 7);
        assert!(arena.is_dirty(frame) && arena.version(frame) == 7);
        arena.mark_clean(frame);
        assert!(!arena.is_dirty(frame));
        arena.publish_dirty(frame, inode, 4, 1);
        assert!(arena.is_dirty(frame) && arena.version(frame) == 1);
        arena.free(frame);
        assert!(!arena.is_dirty(frame));
        arena.mark_clean(frame);
        assert_eq!(arena.free_frames(), u64::from(arena.frames()));
    }

    #[test]
    #[should_panic(expected = "F2")]
    fn a_dirty_frame_cannot_become_another_page() {
        let (arena, inode) = arena_and_inode(1 << 20);
        let frame = arena.alloc(Pool::Normal).unwrap();
        arena.publish_dirty(frame, inode, 3, 7);
        arena.publish_dirty(frame, inode, 3, 8);
    }

    #[test]
    #[should_panic(expected = "F6")]
    fn a_dirty_frame_names_an_inode_in_use() {
        let (arena, inode) = arena_and_inode(1 << 20);
        arena.free_inode(inode);
        arena.publish_dirty(arena.alloc(Pool::Normal).unwrap(), inode, 0, 1);
    }

    #[test]
    fn frames_are_named_up_to_their_number() {
        let (arena, _) = arena_and_inode(1 << 20);
        assert_eq!((arena.frames(), arena.reserve_frames()), (256, 128));
        assert_eq!(arena.frame(255).map(super::FrameId::as_u32), Some(255));
        assert_eq!(arena.frame(256), None);
    }

    /// A record cleared after its frame returned to the pool would destroy that of the next owner.
    #[test]
    fn the_last_owner_does_not_clear_the_next_owners_record() {
        let (arena, inode) = arena_and_inode(64 << 10);
        let threads = (0..4).map(|thread| {
            let arena = Arc::clone(&arena);
            thread::spawn(move || {
                for version in 0..20_000 {
                    let Some(frame) = arena.alloc(Pool::Normal) else { continue };
                    arena.publish_dirty(frame, inode, thread, version);
                    arena.write(frame)[0] = 1;
                    assert!(arena.is_dirty(frame) && arena.version(frame) == version, "thread {thread}");
                    arena.free(frame);
                }
            })
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(arena.free_frames(), 16);
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let (arena, _) = arena_and_inode(1 << 20);
        let frame = arena.alloc(Pool::Normal).unwrap();
        let writer = arena.try_write(frame).unwrap();
        assert!(arena.try_read(frame).is_none() && arena.try_write(frame).is_none());
        drop(writer);
        let readers = (arena.read(frame), arena.try_read(frame).unwrap());
        assert!(arena.try_write(frame).is_none());
        drop(readers);
        arena.write(frame).fill(1);
        assert!(arena.read(frame).iter().all(|byte| *byte == 1));
    }
}

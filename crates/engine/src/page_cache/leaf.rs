//! Sixty-four consecutive pages of one file: their frames and their marks.
//!
//! # States of a page
//! | present | uptodate | dirty | writeback | unstable | state | left by |
//! |---|---|---|---|---|---|---|
//! | - | | | | | not cached, or a hole | read, write |
//! | x | - | | | | being filled; the read holds the frame | read completion |
//! | x | x | - | - | - | clean: the backend has it durably | write; eviction |
//! | x | x | x | - | | dirty: newer than on the backend | write-back; truncate |
//! | x | x | - | x | | under write-back; the unit reads the frame | write completion |
//! | x | x | x | x | | rewritten under write-back: a new frame is here, the unit has the old one | write completion |
//! | x | x | | - | x | written, not yet known to be durable | commit; write |
//!
//! # Invariants
//! L1. A mark is set only on a present page.
//! L2. A page with `WRITEBACK` and without `DIRTY` holds the same frame that its unit reads.
//! L3. A frame is taken out of a slot only by a caller that holds the frame's lock exclusively and keeps the frame.
//!     Under write-back, a writer may also replace it with a fresh one; the unit then owns the old one.
//! L4. `COMMITTING` pages were `UNSTABLE` when the running commit began and have not been submitted for write-back
//!     since.
//! L5. `fresh` has the bit of each indexed mark that the leaf newly acquired, until [`LeafState::take_fresh`].
//! L6. `DELAYED` is set only on an unclean page: the backend has no space allocated for it, and it counts in
//!     `super_block::space`.
//! L7. `DROPBEHIND` is set only on an unclean page, or on one that a DONTCACHE read has brought in. Code that makes an
//!     unclean page clean removes either the page or the mark.
//! L8. A leaf has capacity for the frames of its first pages, [`FEW`] or all. One that needs more is replaced in the
//!     tree.
//! L9. `LISTED` says that an entry of `reclaim` stands for the page. It is set when the page becomes clean. It is
//!     cleared when the entry is examined while the page is not clean. An entry for a page without the mark is stale.
//!
//! # Layout
//! A cached read takes the leaf's lock, reads three words and takes the number of a frame; it does not store marks that
//! are already set. The lock and those words share the leaf's first cache line, which no other leaf shares. The frames
//! follow in the same allocation, so the line with the page's frame number can be fetched without reading the first.
//! Most files are small, and so are their leaves.

use std::mem::offset_of;

use slackwater_arena::{Arena, FrameId};

/// Pages per leaf.
pub(crate) const LEAF_PAGES: u64 = 64;

/// A mark of a page. The first [`Mark::INDEXED`] are also indexed in the tree above the leaf.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(usize)]
pub(crate) enum Mark {
    /// Newer than on the backend.
    Dirty = 0,
    /// Tagged by a running sync. Kernel: `PAGECACHE_TAG_TOWRITE`.
    ToWrite = 1,
    /// In a unit in flight.
    Writeback = 2,
    /// Written, but not known to be durable.
    Unstable = 3,
    /// Unstable when the running commit began.
    Committing = 4,
    /// The frame holds the page's bytes.
    Uptodate = 5,
    /// Used since it was brought in, or since eviction last examined it.
    Referenced = 6,
    /// The backend has no space for it yet. Kernel: `BH_Delay`.
    Delayed = 7,
    /// A DONTCACHE write or read has brought it in, and no other write has touched it. It leaves the cache once it is
    /// clean; one brought in by a read, once it has been read (L7). Kernel: `PG_dropbehind`.
    Dropbehind = 8,
    /// Used again after `Referenced` was set ([`LeafState::touch`]): it stays longer than others. Kernel: `PG_active`.
    Active = 9,
    /// In one of the eviction queues (L9). Kernel: `PG_lru`.
    Listed = 10,
}

impl Mark {
    /// Number of marks.
    pub(crate) const COUNT: usize = 11;
    /// Number of marks that inner nodes index.
    pub(crate) const INDEXED: usize = 5;

    /// The index of its word: the marks that a read checks come first.
    const fn place(self) -> usize {
        match self {
            Self::Uptodate => 0,
            Self::Referenced => 1,
            Self::Active => 2,
            Self::Dirty => 3,
            Self::Writeback => 4,
            Self::Dropbehind => 5,
            Self::ToWrite => 6,
            Self::Unstable => 7,
            Self::Committing => 8,
            Self::Delayed => 9,
            Self::Listed => 10,
        }
    }
}

// Together with the lock, everything that a read checks is in the first cache line.
const _: () = assert!(offset_of!(SizedLeaf<FEW>, marks) + 8 * (Mark::Writeback.place() + 1) <= 64 - 8);

/// See the [module documentation](self). Lives behind the leaf's lock.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LeafState<Frames: ?Sized = [Option<FrameId>]> {
    /// L5.
    fresh: u32,
    /// At [`Mark::place`].
    marks: [u64; Mark::COUNT],
    present: u64,
    /// L8.
    frames: Frames,
}

/// The state of a leaf with capacity for the frames of its first `CAPACITY` pages.
pub(crate) type SizedLeaf<const CAPACITY: usize> = LeafState<[Option<FrameId>; CAPACITY]>;

/// Frames that every leaf has capacity for: as many as fit in the rest of its third cache line.
pub(crate) const FEW: usize = 20;
const _: () = assert!(8 + size_of::<SizedLeaf<FEW>>() == 192);

impl<const CAPACITY: usize> SizedLeaf<CAPACITY> {
    /// Offset of the frames from the lock in front of the state.
    pub(crate) const FRAMES_AT: usize = 8 + offset_of!(Self, frames);

    pub(crate) fn new() -> Self {
        Self { fresh: 0, marks: [0; Mark::COUNT], present: 0, frames: [None; CAPACITY] }
    }
}

impl LeafState {
    /// The same pages, with the full capacity of a leaf.
    pub(crate) fn with_full_capacity(&self) -> SizedLeaf<{ LEAF_PAGES as usize }> {
        let frames = std::array::from_fn(|slot| self.frame(slot));
        LeafState { fresh: self.fresh, marks: self.marks, present: self.present, frames }
    }

    /// The number of first pages that it has capacity for (L8).
    pub(crate) fn capacity(&self) -> usize {
        self.frames.len()
    }

    /// The frame in `slot`, whatever its state.
    #[inline]
    pub(crate) fn frame(&self, slot: usize) -> Option<FrameId> {
        self.frames.get(slot).copied().flatten()
    }

    /// Whether the page in `slot` has `mark`.
    pub(crate) fn has(&self, mark: Mark, slot: usize) -> bool {
        self.marks[mark.place()] >> slot & 1 != 0
    }

    /// All pages with `mark`, one bit each.
    pub(crate) fn bits(&self, mark: Mark) -> u64 {
        self.marks[mark.place()]
    }

    /// How many pages have both marks.
    pub(crate) fn count_both(&self, one: Mark, other: Mark) -> i64 {
        i64::from((self.bits(one) & self.bits(other)).count_ones())
    }

    /// All pages that are present.
    pub(crate) fn present(&self) -> u64 {
        self.present
    }

    pub(crate) fn set(&mut self, mark: Mark, slot: usize) {
        self.set_bits(mark, 1 << slot);
    }

    pub(crate) fn set_bits(&mut self, mark: Mark, bits: u64) {
        debug_assert!(bits & !self.present == 0, "L1");
        let word = &mut self.marks[mark.place()];
        let more = bits & !*word;
        if more == 0 {
            return;
        }
        if *word == 0 && (mark as usize) < Mark::INDEXED {
            self.fresh |= 1 << mark as u32;
        }
        *word |= more;
    }

    pub(crate) fn clear(&mut self, mark: Mark, slot: usize) {
        self.marks[mark.place()] &= !(1 << slot);
    }

    pub(crate) fn clear_bits(&mut self, mark: Mark, bits: u64) {
        self.marks[mark.place()] &= !bits;
    }

    /// Records a use of the page in `slot`. It stores at most one mark, and none once both are set.
    #[inline]
    pub(crate) fn touch(&mut self, slot: usize) {
        self.set(if self.has(Mark::Referenced, slot) { Mark::Active } else { Mark::Referenced }, slot);
    }

    /// Puts `frame` into an empty slot within capacity, without marks.
    pub(crate) fn insert(&mut self, slot: usize, frame: FrameId) {
        debug_assert!(self.frame(slot).is_none(), "slot taken");
        self.frames[slot] = Some(frame);
        self.present |= 1 << slot;
    }

    /// Replaces the frame in `slot`, which L3 lets the caller take out. Marks stay.
    pub(crate) fn replace(&mut self, slot: usize, frame: FrameId) -> Option<FrameId> {
        debug_assert!(self.frame(slot).is_some(), "nothing to replace");
        self.frames[slot].replace(frame)
    }

    /// Removes the page in `slot` with all its marks.
    pub(crate) fn remove(&mut self, slot: usize) -> Option<FrameId> {
        self.present &= !(1 << slot);
        for marks in &mut self.marks {
            *marks &= !(1 << slot);
        }
        self.frames.get_mut(slot)?.take()
    }

    /// The same, only if no thread is reading the page. The caller may otherwise take it out (L3).
    pub(crate) fn take_out(&mut self, arena: &Arena, slot: usize) -> Option<FrameId> {
        // A thread that finds the frame later checks the page again, and none can once it is out.
        self.frame(slot).filter(|frame| arena.try_write(*frame).is_some()).and_then(|_| self.remove(slot))
    }

    /// Pages that are newer than the backend's durable content: dirty, under write-back or unstable.
    pub(crate) fn unclean(&self) -> u64 {
        [Mark::Dirty, Mark::Writeback, Mark::Unstable, Mark::Committing]
            .into_iter()
            .fold(0, |unclean, mark| unclean | self.bits(mark))
    }

    /// Pages that can be dropped without loss: filled, and not unclean.
    pub(crate) fn clean(&self) -> u64 {
        self.present & self.bits(Mark::Uptodate) & !self.unclean()
    }

    /// A bit for each indexed mark that some page has.
    pub(crate) fn indexed(&self) -> u32 {
        let indexed = [Mark::Dirty, Mark::ToWrite, Mark::Writeback, Mark::Unstable, Mark::Committing];
        indexed.into_iter().fold(0, |set, mark| set | u32::from(self.bits(mark) != 0) << mark as u32)
    }

    /// A bit for each indexed mark newly acquired since the last call (L5).
    pub(crate) fn take_fresh(&mut self) -> u32 {
        if self.fresh == 0 { 0 } else { std::mem::take(&mut self.fresh) }
    }
}

/// The slot of the page at `index` in its leaf.
#[inline]
pub(crate) fn slot_of(index: u64) -> usize {
    (index % LEAF_PAGES) as usize
}

/// The slots of a bit set, ascending.
pub(crate) fn slots(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (bits != 0).then(|| {
            let slot = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            slot
        })
    })
}

/// The bits of slots `from..to`, clamped to a leaf.
pub(crate) fn range_bits(from: u64, to: u64) -> u64 {
    if from >= to || from >= LEAF_PAGES {
        return 0;
    }
    let above = if to >= LEAF_PAGES { u64::MAX } else { (1 << to) - 1 };
    above & (u64::MAX << from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_with_more_capacity_has_the_same_pages() {
        let arena = slackwater_arena::Arena::create(&slackwater_arena::ArenaConfig::memfd(64 << 10)).unwrap();
        let [first, last] = [0, 1].map(|number| arena.frame(number).unwrap());
        let mut small = SizedLeaf::<FEW>::new();
        let leaf: &mut LeafState = &mut small;
        leaf.insert(0, first);
        leaf.set(Mark::Dirty, 0);
        assert_eq!((leaf.capacity(), leaf.frame(0), leaf.frame(63), leaf.remove(63)), (FEW, Some(first), None, None));
        let mut large = leaf.with_full_capacity();
        let leaf: &mut LeafState = &mut large;
        leaf.insert(63, last);
        assert_eq!((leaf.capacity(), leaf.frame(0), leaf.frame(63)), (64, Some(first), Some(last)));
        assert_eq!((leaf.present(), leaf.bits(Mark::Dirty), leaf.take_fresh()), (1 << 63 | 1, 1, 1));
        assert_eq!((leaf.replace(0, last), leaf.remove(0), leaf.frame(0)), (Some(first), Some(last), None));
    }

    #[test]
    fn a_range_of_slots_is_clamped_to_the_leaf() {
        assert_eq!(range_bits(0, 64), u64::MAX);
        assert_eq!(range_bits(0, 1000), u64::MAX);
        assert_eq!(range_bits(63, 64), 1 << 63);
        assert_eq!(range_bits(5, 5), 0);
        assert_eq!(range_bits(64, 65), 0);
        assert_eq!(slots(0b1010).collect::<Vec<_>>(), [1, 3]);
    }
}

//! Sixty-four consecutive pages of one file: their frames and their marks.
//!
//! # States of a page
//! | present | uptodate | dirty | writeback | unstable | what it is | who leaves the state |
//! |---|---|---|---|---|---|---|
//! | - | | | | | not cached, or a hole | read, write |
//! | x | - | | | | being filled; the unit holds the frame | read completion |
//! | x | x | - | - | - | clean: the backend has it durably | write; eviction |
//! | x | x | x | - | | dirty: newer than the backend | write-back; truncate |
//! | x | x | - | x | | under write-back; the unit reads the frame | write completion |
//! | x | x | x | x | | rewritten meanwhile: a fresh frame is here, the unit has the old one | write completion |
//! | x | x | | - | x | written, not yet known to be durable | commit; write |
//!
//! # Invariants
//! L1. A mark is set only on a present page.
//! L2. A page with `WRITEBACK` and without `DIRTY` holds the very frame that its unit reads.
//! L3. A frame is taken out of a slot only by who holds the frame's lock exclusively and has it from then on, or,
//!     under write-back, by a writer that puts a fresh one there; the unit then owns the old one.
//! L4. `COMMITTING` pages were `UNSTABLE` when the running commit began and have not been taken for
//!     write-back since.
//! L5. `fresh` has the bit of each indexed mark that the leaf did not have before it got one, until
//!     [`LeafState::take_fresh`].
//! L6. `DELAYED` is set only on an unclean page: the backend has no space for it yet, and it counts in
//!     `super_block::space`.
//! L7. `DROPBEHIND` is set only on an unclean page, or on one that a DONTCACHE read has brought here. Whoever makes an
//!     unclean page clean takes it out, or the mark away.
//! L8. A leaf has room for the frames of its first pages, [`FEW`] or all. One that needs more is replaced in the tree.
//! L9. `LISTED` says that an entry of `reclaim` stands for the page. It is set when the page becomes clean, and cleared when
//!     its entry comes up and it is not; an entry for a page without it stands for nothing.
//!
//! # Layout
//! A cached read takes the leaf's lock, looks at three words and takes the number of a frame; it stores no mark
//! that is there already. The lock and those words share the leaf's first cache line, and no other leaf has a part
//! of it. The frames follow in the same block of memory, so the line that has the page's is found without reading the
//! first. Most files are small, and so is their leaf.

use std::mem::offset_of;

use slackwater_arena::{Arena, FrameId};

/// Pages per leaf.
pub(crate) const LEAF_PAGES: u64 = 64;

/// What is remembered of a page. The first [`Mark::INDEXED`] are also indexed in the tree above the leaf.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(usize)]
pub(crate) enum Mark {
    /// Newer than the backend.
    Dirty = 0,
    /// Chosen by a running sync.
    ToWrite = 1,
    /// A unit with it is in flight.
    Writeback = 2,
    /// Written, and not known to be durable.
    Unstable = 3,
    /// Unstable when the running commit began.
    Committing = 4,
    /// The frame holds the page's bytes.
    Uptodate = 5,
    /// Used since it was brought here, or since eviction last looked at it.
    Referenced = 6,
    /// The backend has no space for it yet. Kernel: `BH_Delay`.
    Delayed = 7,
    /// A DONTCACHE write or read has brought it here, and nobody else has written to it: it leaves once it is clean, and
    /// has been read if a read brought it (L7).
    /// Kernel: `PG_dropbehind`.
    Dropbehind = 8,
    /// Used again after that ([`LeafState::touch`]): it stays longer than others. Kernel: `PG_active`.
    Active = 9,
    /// In one of the queues that eviction takes from (L9). Kernel: `PG_lru`.
    Listed = 10,
}

impl Mark {
    /// Number of marks.
    pub(crate) const COUNT: usize = 11;
    /// Number of marks that inner nodes index.
    pub(crate) const INDEXED: usize = 5;

    /// Where its word is: those that a read looks at come first.
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

// With the lock before it, what a read looks at ends within the first cache line.
const _: () = assert!(offset_of!(Roomy<FEW>, marks) + 8 * (Mark::Writeback.place() + 1) <= 64 - 8);

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

/// The state of a leaf with room for the frames of its first `ROOM` pages.
pub(crate) type Roomy<const ROOM: usize> = LeafState<[Option<FrameId>; ROOM]>;

/// Frames that every leaf has room for: what is left of its third cache line.
pub(crate) const FEW: usize = 20;
const _: () = assert!(8 + size_of::<Roomy<FEW>>() == 192);

impl<const ROOM: usize> Roomy<ROOM> {
    /// Where the frames begin, as seen from the lock before the state.
    pub(crate) const FRAMES_AT: usize = 8 + offset_of!(Self, frames);

    pub(crate) fn new() -> Self {
        Self { fresh: 0, marks: [0; Mark::COUNT], present: 0, frames: [None; ROOM] }
    }
}

impl LeafState {
    /// The same pages, with room for all that a leaf can have.
    pub(crate) fn with_all_room(&self) -> Roomy<{ LEAF_PAGES as usize }> {
        let frames = std::array::from_fn(|slot| self.frame(slot));
        LeafState { fresh: self.fresh, marks: self.marks, present: self.present, frames }
    }

    /// Pages from the first on that there is room for (L8).
    pub(crate) fn room(&self) -> usize {
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

    /// The page in `slot` is used. A mark at most is stored, and none once it has both.
    #[inline]
    pub(crate) fn touch(&mut self, slot: usize) {
        self.set(if self.has(Mark::Referenced, slot) { Mark::Active } else { Mark::Referenced }, slot);
    }

    /// Puts `frame` into an empty slot that there is room for, without marks.
    pub(crate) fn insert(&mut self, slot: usize, frame: FrameId) {
        debug_assert!(self.frame(slot).is_none(), "slot taken");
        self.frames[slot] = Some(frame);
        self.present |= 1 << slot;
    }

    /// Puts `frame` in the place of the one that is there, which L3 lets the caller take out; marks stay.
    pub(crate) fn replace(&mut self, slot: usize, frame: FrameId) -> Option<FrameId> {
        debug_assert!(self.frame(slot).is_some(), "nothing to replace");
        self.frames[slot].replace(frame)
    }

    /// Takes the page out of `slot` with all its marks.
    pub(crate) fn remove(&mut self, slot: usize) -> Option<FrameId> {
        self.present &= !(1 << slot);
        for marks in &mut self.marks {
            *marks &= !(1 << slot);
        }
        self.frames.get_mut(slot)?.take()
    }

    /// The same of a page that nobody reads just now, and which the caller may take out otherwise (L3).
    pub(crate) fn take_out(&mut self, arena: &Arena, slot: usize) -> Option<FrameId> {
        // Whoever finds the frame later looks at the page again; nobody does once it is out.
        self.frame(slot).filter(|frame| arena.try_write(*frame).is_some()).and_then(|_| self.remove(slot))
    }

    /// Pages that are newer than what the backend has durably: dirty, under write-back or unstable.
    pub(crate) fn unclean(&self) -> u64 {
        [Mark::Dirty, Mark::Writeback, Mark::Unstable, Mark::Committing]
            .into_iter()
            .fold(0, |unclean, mark| unclean | self.bits(mark))
    }

    /// Pages that can be dropped without loss: filled, and not unclean.
    pub(crate) fn clean(&self) -> u64 {
        self.present & self.bits(Mark::Uptodate) & !self.unclean()
    }

    /// One bit for each indexed mark that some page has.
    pub(crate) fn indexed(&self) -> u32 {
        let indexed = [Mark::Dirty, Mark::ToWrite, Mark::Writeback, Mark::Unstable, Mark::Committing];
        indexed.into_iter().fold(0, |set, mark| set | u32::from(self.bits(mark) != 0) << mark as u32)
    }

    /// One bit for each indexed mark that the leaf got since the last call (L5).
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
    fn a_leaf_that_gets_room_has_the_same_pages() {
        let arena = slackwater_arena::Arena::create(&slackwater_arena::ArenaConfig::memfd(64 << 10)).unwrap();
        let [first, last] = [0, 1].map(|number| arena.frame(number).unwrap());
        let mut small = Roomy::<FEW>::new();
        let leaf: &mut LeafState = &mut small;
        leaf.insert(0, first);
        leaf.set(Mark::Dirty, 0);
        assert_eq!((leaf.room(), leaf.frame(0), leaf.frame(63), leaf.remove(63)), (FEW, Some(first), None, None));
        let mut large = leaf.with_all_room();
        let leaf: &mut LeafState = &mut large;
        leaf.insert(63, last);
        assert_eq!((leaf.room(), leaf.frame(0), leaf.frame(63)), (64, Some(first), Some(last)));
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

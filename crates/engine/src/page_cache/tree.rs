//! The radix tree that finds a page of a file: 64 children per node, leaves of 64 pages.
//!
//! Each inner node also records, for each mark, which children may have a page with it. A scan for dirty pages of a
//! sparse terabyte therefore visits only dirty parts.
//!
//! # Invariants
//! T1. An inner node's bit for a mark is set whenever a page below has the mark and the visit that set it has ended. It
//!     may be set without such a page: bits are cleared only by a later search. A search takes no leaf's lock, so it
//!     may miss a page that is being visited. A caller that must not miss it searches for any page instead, because the
//!     visit does not wait for anything that the caller did before.
//! T2. Nodes are added and removed, and index bits cleared, only with the tree's lock held for writing.
//! T3. Index bits are set with the tree's lock held for reading and the leaf's lock held. So no bit can be set between
//!     the check and the clearing of T2, and no setting can overtake another.
//!
//! # Guesses
//! Reading a page touches one uncached line after another: the leaf, the frame's number in it, the bytes. The locked
//! instructions in between keep the processor from running ahead. Most files lie in whole runs of frames, so each
//! pointer to a leaf comes with a guess where its run begins, and the bytes are prefetched together with the leaf.
//! Measured on random pages of a large file, not counting the copy: a read's overhead is halved, a write's is two
//! thirds. With frames in no order at all it is unchanged. Only a prefetch relies on a guess.
//!
//! # Lock order
//! `I_PAGES` (the tree), then `LEAF`.
//!
//! # Kernel counterpart
//! `struct xarray` as used for `address_space::i_pages`, with its tags. Differs: one lock per 64 pages and
//! index bits that lag behind.

use slackwater_arena::{FrameId, prefetch_line};
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::lock_order::LEAF;
use crate::page_cache::leaf::{FEW, LEAF_PAGES, LeafState, Mark, SizedLeaf, slot_of};

const FANOUT_SHIFT: u32 = 6;
const FANOUT: usize = 1 << FANOUT_SHIFT;
const LEAF_SHIFT: u32 = LEAF_PAGES.trailing_zeros();

/// A leaf and its lock, in cache lines of their own: threads that read neighbouring leaves do not contend.
#[repr(align(64))]
struct Leaf<Frames: ?Sized = [Option<FrameId>]>(Mutex<LeafState<Frames>>);

impl<const CAPACITY: usize> Leaf<[Option<FrameId>; CAPACITY]> {
    fn new(state: SizedLeaf<CAPACITY>) -> Box<Leaf> {
        Box::new(Leaf(Mutex::new(LEAF, state)))
    }
}

impl Leaf {
    /// Prefetches the number of the frame in `slot`; the frames are at the end.
    #[inline]
    fn prefetch(&self, slot: usize) {
        prefetch_line(
            (&raw const *self).cast::<u8>().wrapping_add(SizedLeaf::<0>::FRAMES_AT + size_of::<FrameId>() * slot),
        );
    }
}

/// A guess of where the run of a leaf's frames begins: the number of the first page's frame, modulo 2^32.
struct Guess(AtomicU32);

impl Guess {
    /// Outside any arena below 8 TiB; in a larger one it is a wrong guess like any other.
    const NONE: u32 = 1 << 31;

    // Relaxed: only a prefetch depends on it.
    fn number(&self, index: u64) -> u32 {
        self.0.load(Ordering::Relaxed).wrapping_add(slot_of(index) as u32)
    }

    fn learn(&self, frame: FrameId, index: u64) {
        self.0.store(frame.as_u32().wrapping_sub(slot_of(index) as u32), Ordering::Relaxed);
    }
}

#[derive(Default)]
enum Child {
    #[default]
    Empty,
    Inner(Box<Inner>),
    Leaf(Box<Leaf>, Guess),
}

// The guess needs no extra memory: it is in the word of the discriminant. A model checker's atomics are larger.
#[cfg(not(slackwater_shuttle))]
const _: () = assert!(size_of::<Child>() == 8 + size_of::<Box<Leaf>>());

struct Inner {
    children: [Child; FANOUT],
    marks: [AtomicU64; Mark::INDEXED],
}

impl Inner {
    fn new() -> Box<Self> {
        Box::new(Self { children: std::array::from_fn(|_| Child::Empty), marks: Default::default() })
    }
}

/// See the [module documentation](self). The mapping's lock protects it.
#[derive(Default)]
pub(crate) struct Tree {
    root: Child,
    /// Inner levels above the leaves.
    levels: u32,
}

impl Tree {
    /// Whether the tree has no nodes: it never had pages, or all were removed and it was pruned.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.root, Child::Empty)
    }

    fn covers(&self, index: u64) -> bool {
        index >> LEAF_SHIFT >> (FANOUT_SHIFT * self.levels) == 0
    }

    /// Runs `f` on the leaf of `index`; `None` if there is no such leaf.
    pub(crate) fn with_leaf<R>(&self, index: u64, f: impl FnOnce(&mut LeafState) -> R) -> Option<R> {
        let (leaf, _) = self.leaf(index)?;
        Some(self.visit(leaf, index, f))
    }

    /// The same for callers that need the page's bytes at once, which the processor cannot predict. `ask` prefetches
    /// the memory of the frame whose number it is given, if there is such a frame. It is given the guessed one before
    /// the leaf is locked, and the page's own if the guess was wrong.
    #[inline]
    pub(crate) fn with_leaf_and_bytes<R>(
        &self,
        index: u64,
        ask: impl Fn(u32),
        f: impl FnOnce(&mut LeafState) -> R,
    ) -> Option<R> {
        let (leaf, guess) = self.leaf(index)?;
        leaf.prefetch(slot_of(index));
        let guessed = guess.number(index);
        ask(guessed);
        Some(self.visit(leaf, index, |state| {
            if let Some(frame) = state.frame(slot_of(index))
                && guessed != frame.as_u32()
            {
                ask(frame.as_u32());
                guess.learn(frame, index);
            }
            f(state)
        }))
    }

    #[inline]
    fn leaf(&self, index: u64) -> Option<(&Leaf, &Guess)> {
        if !self.covers(index) {
            return None;
        }
        let mut child = &self.root;
        let mut level = self.levels;
        loop {
            match child {
                Child::Empty => return None,
                Child::Leaf(leaf, guess) => return Some((leaf, guess)),
                Child::Inner(inner) => {
                    level -= 1;
                    child = &inner.children[slot_at(index, level)];
                }
            }
        }
    }

    /// Runs `f` on the first leaf at or after `from` that may have a page with `mark` (any page, for `None`). Returns
    /// the leaf's first index and the result.
    pub(crate) fn with_next<R>(
        &self,
        from: u64,
        mark: Option<Mark>,
        f: impl FnOnce(u64, &mut LeafState) -> R,
    ) -> Option<(u64, R)> {
        if !self.covers(from) {
            return None;
        }
        let (leaf, base) = find(&self.root, self.levels, from, 0, mark)?;
        Some((base, self.visit(leaf, base, |state| f(base, state))))
    }

    /// Locks the leaf of `index`, runs `f`, and indexes the marks that the leaf newly acquired (T3).
    #[inline]
    fn visit<R>(&self, leaf: &Leaf, index: u64, f: impl FnOnce(&mut LeafState) -> R) -> R {
        let mut state = leaf.0.lock();
        let result = f(&mut state);
        let new = state.take_fresh();
        if new != 0 {
            self.index(index, new);
        }
        result
    }

    /// T1 for the marks in `new`, one bit each: sets them on every node from the root to the leaf of `index`.
    fn index(&self, index: u64, new: u32) {
        let mut child = &self.root;
        let mut level = self.levels;
        while let Child::Inner(inner) = child {
            level -= 1;
            let slot = slot_at(index, level);
            for mark in (0..Mark::INDEXED).filter(|mark| new >> mark & 1 != 0) {
                // Relaxed: read under the same locks (T3), or as a hint.
                inner.marks[mark].fetch_or(1 << slot, Ordering::Relaxed);
            }
            child = &inner.children[slot];
        }
    }

    /// Ensures a leaf with capacity for `index`. Returns whether it is new.
    pub(crate) fn grow(&mut self, index: u64) -> bool {
        while !self.covers(index) {
            self.raise();
        }
        let mut child = &mut self.root;
        let mut level = self.levels;
        loop {
            if level == 0 {
                let slot = slot_of(index);
                if let Child::Leaf(leaf, _) = child {
                    let state = leaf.0.get_mut();
                    if slot >= state.capacity() {
                        *leaf = Leaf::new(state.with_full_capacity());
                    }
                    return false;
                }
                let leaf = if slot < FEW {
                    Leaf::new(SizedLeaf::<FEW>::new())
                } else {
                    Leaf::new(SizedLeaf::<{ LEAF_PAGES as usize }>::new())
                };
                *child = Child::Leaf(leaf, Guess(AtomicU32::new(Guess::NONE)));
                return true;
            }
            if matches!(child, Child::Empty) {
                *child = Child::Inner(Inner::new());
            }
            let Child::Inner(inner) = child else { unreachable!("leaves are at level 0 only") };
            level -= 1;
            child = &mut inner.children[slot_at(index, level)];
        }
    }

    /// Adds a level at the root. The old root's index bits are merged into it.
    fn raise(&mut self) {
        let old = std::mem::take(&mut self.root);
        self.levels += 1;
        if matches!(old, Child::Empty) {
            return;
        }
        let mut top = Inner::new();
        top.children[0] = old;
        reindex(&mut top);
        self.root = Child::Inner(top);
    }

    /// Removes the leaf of `index` if it has no pages, and inner nodes that become empty. Returns whether it was
    /// removed.
    pub(crate) fn remove_if_empty(&mut self, index: u64) -> bool {
        if !self.covers(index) {
            return true;
        }
        let gone = remove(&mut self.root, self.levels, index);
        if self.is_empty() {
            *self = Self::default();
        }
        gone
    }

    /// Removes empty leaves and inner nodes that become empty, and clears index bits without a page.
    pub(crate) fn prune(&mut self) {
        if !prune_below(&mut self.root) {
            *self = Self::default();
        }
    }
}

fn slot_at(index: u64, level: u32) -> usize {
    (index >> (LEAF_SHIFT + FANOUT_SHIFT * level)) as usize & (FANOUT - 1)
}

/// Depth-first search for the first leaf at or after `from`. `base` is the first index below `child`.
fn find(child: &Child, level: u32, from: u64, base: u64, mark: Option<Mark>) -> Option<(&Leaf, u64)> {
    match child {
        Child::Empty => None,
        Child::Leaf(leaf, _) => Some((leaf, base)),
        Child::Inner(inner) => {
            let level = level - 1;
            let first = if from > base { slot_at(from, level) } else { 0 };
            let may_have = mark.map_or(u64::MAX, |mark| inner.marks[mark as usize].load(Ordering::Relaxed));
            (first..FANOUT).filter(|slot| may_have >> slot & 1 != 0).find_map(|slot| {
                let below = base + ((slot as u64) << (LEAF_SHIFT + FANOUT_SHIFT * level));
                find(&inner.children[slot], level, from.max(below), below, mark)
            })
        }
    }
}

/// Removes the leaf of `index` below `child` if it is empty. Returns whether no leaf is left there.
fn remove(child: &mut Child, level: u32, index: u64) -> bool {
    let gone = match child {
        Child::Empty => return true,
        Child::Leaf(leaf, _) => leaf.0.get_mut().present() == 0,
        Child::Inner(inner) => {
            let slot = slot_at(index, level - 1);
            let gone = remove(&mut inner.children[slot], level - 1, index);
            if !matches!(inner.children[slot], Child::Empty) {
                return gone;
            }
            for marks in &mut inner.marks {
                *marks.get_mut() &= !(1 << slot);
            }
            if inner.children.iter().any(|child| !matches!(child, Child::Empty)) {
                return gone;
            }
            true
        }
    };
    if gone {
        *child = Child::Empty;
    }
    gone
}

/// Prunes below `child`. Returns false if nothing is left there.
fn prune_below(child: &mut Child) -> bool {
    let keep = match child {
        Child::Empty => false,
        Child::Leaf(leaf, _) => leaf.0.get_mut().present() != 0,
        Child::Inner(inner) => {
            let mut any = false;
            for below in &mut inner.children {
                any |= prune_below(below);
            }
            if any {
                reindex(inner);
            }
            any
        }
    };
    if !keep {
        *child = Child::Empty;
    }
    keep
}

/// Recomputes the index bits of `inner` from its children.
fn reindex(inner: &mut Inner) {
    let mut marks = [0_u64; Mark::INDEXED];
    for (slot, child) in inner.children.iter_mut().enumerate() {
        let below = match child {
            Child::Empty => 0,
            Child::Leaf(leaf, _) => leaf.0.get_mut().indexed(),
            Child::Inner(inner) => {
                (0..Mark::INDEXED).fold(0, |set, mark| set | u32::from(*inner.marks[mark].get_mut() != 0) << mark)
            }
        };
        for (mark, bits) in marks.iter_mut().enumerate() {
            *bits |= u64::from(below >> mark & 1) << slot;
        }
    }
    inner.marks = marks.map(AtomicU64::new);
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use slackwater_arena::{Arena, ArenaConfig};

    use super::*;

    #[test]
    fn a_guess_is_learnt_from_a_page_and_holds_for_its_run() {
        let arena = Arena::create(&ArenaConfig::memfd(1 << 20)).unwrap();
        let frame = |number| arena.frame(number).unwrap();
        let mut tree = Tree::default();
        assert!(tree.grow(70));
        tree.with_leaf(70, |leaf| (6..10).for_each(|slot| leaf.insert(slot, frame(100 + slot as u32))));
        let asked = RefCell::new(Vec::new());
        let visit = |tree: &Tree, index| {
            tree.with_leaf_and_bytes(index, |number| asked.borrow_mut().push(number), |_| ());
            asked.take()
        };
        assert_eq!(visit(&tree, 64), [Guess::NONE], "no page, no guess");
        assert_eq!(visit(&tree, 70), [Guess::NONE + 6, 106]);
        assert_eq!((visit(&tree, 70), visit(&tree, 73)), (vec![106], vec![109]));
        assert!(!tree.grow(127), "the leaf gets more capacity");
        assert_eq!(visit(&tree, 70), [106]);
        // A frame with a lower number than its slot: the run would begin before the first frame.
        tree.with_leaf(127, |leaf| leaf.insert(63, frame(3)));
        assert_eq!(visit(&tree, 127), [163, 3]);
        assert_eq!((visit(&tree, 127), visit(&tree, 123)), (vec![3], vec![u32::MAX]));
    }
}

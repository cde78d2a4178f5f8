//! The cached pages of one file.
//!
//! # Invariants
//! A1. `dirty`, `writeback` and `unstable` count the pages with that mark in the tree. A page that moves from one count
//!     to another is added to the new one before it is subtracted from the old one.
//! A2. `unclean` counts the pages that have any of the three. It changes under the leaf's lock, and only when a page
//!     becomes or ceases to be unclean. 0 means that every page can be dropped.
//!
//! # Lock order
//! `I_PAGES`, then `LEAF`; both are taken inside each call and held across none.
//!
//! # Kernel counterpart
//! `struct address_space`.

use std::ops::Range;

use slackwater_sync::lock::RwLock;
use slackwater_sync::shim::atomic::{AtomicI64, Ordering};

use crate::lock_order::I_PAGES;
use crate::page_cache::leaf::{LEAF_PAGES, LeafState, Mark, range_bits, slot_of};
use crate::page_cache::tree::Tree;
use crate::units::PageIndex;

/// After this many leaves without the mark that their index showed, a scan has the index cleaned up.
const STALE_MAX: u32 = 16;

/// See the [module documentation](self).
pub(crate) struct AddressSpace {
    tree: RwLock<Tree>,
    dirty: AtomicI64,
    writeback: AtomicI64,
    unstable: AtomicI64,
    unclean: AtomicI64,
}

/// The next step of a scan after a leaf.
pub(crate) enum Scan {
    /// Continue with the next leaf.
    On,
    /// Stop.
    Stop,
}

impl AddressSpace {
    pub(crate) fn new() -> Self {
        Self {
            tree: RwLock::new(I_PAGES, Tree::default()),
            dirty: AtomicI64::new(0),
            writeback: AtomicI64::new(0),
            unstable: AtomicI64::new(0),
            unclean: AtomicI64::new(0),
        }
    }

    /// Runs `f` on the leaf and slot of `index`, under the leaf's lock; `None` if there is no leaf.
    pub(crate) fn with_page<R>(&self, index: PageIndex, f: impl FnOnce(&mut LeafState, usize) -> R) -> Option<R> {
        self.tree.read().with_leaf(index.0, |leaf| f(leaf, slot_of(index.0)))
    }

    /// The same for callers that need the page's bytes at once, which the processor cannot predict. `ask` prefetches
    /// the frame whose number it is given.
    #[inline]
    pub(crate) fn with_page_and_bytes<R>(
        &self,
        index: PageIndex,
        ask: impl Fn(u32),
        f: impl FnOnce(&mut LeafState, usize) -> R,
    ) -> Option<R> {
        self.tree.read().with_leaf_and_bytes(index.0, ask, |leaf| f(leaf, slot_of(index.0)))
    }

    /// Like [`AddressSpace::with_page`], but creates the leaf, with capacity for the page, if needed.
    pub(crate) fn with_page_or_new<R>(&self, index: PageIndex, f: impl FnOnce(&mut LeafState, usize) -> R) -> R {
        let mut f = Some(f);
        let mut is_new = false;
        loop {
            let done = self.tree.read().with_leaf(index.0, |leaf| {
                (slot_of(index.0) < leaf.capacity()).then(|| {
                    let f = f.take().expect("runs once: the loop ends with it");
                    (f(leaf, slot_of(index.0)), leaf.present() == 0)
                })
            });
            match done.flatten() {
                Some((result, is_empty)) => {
                    if is_new && is_empty {
                        let _ = self.remove_if_empty(index); // fails if a page was added meanwhile
                    }
                    return result;
                }
                None => is_new |= self.tree.write().grow(index.0),
            }
        }
    }

    /// Visits, in ascending order, each leaf with pages in `from..to` that may have `mark` (any page, for `None`). The
    /// tree is unlocked between leaves. `f` gets the index of the leaf's first page. A page that gets `mark` meanwhile
    /// may be missed, even if that began before the scan (T1 of the tree). With `None`, the scan waits for every leaf's
    /// lock.
    pub(crate) fn scan(
        &self,
        from: PageIndex,
        to: PageIndex,
        mark: Option<Mark>,
        mut f: impl FnMut(PageIndex, &mut LeafState) -> Scan,
    ) {
        let mut at = from.0;
        let mut stale = 0;
        while at < to.0 {
            let next = self.tree.read().with_next(at, mark, |base, leaf| {
                let empty = mark.map_or(leaf.present() == 0, |mark| leaf.bits(mark) == 0);
                stale += u32::from(empty);
                if base >= to.0 { Scan::Stop } else { f(PageIndex(base), leaf) }
            });
            match next {
                Some((base, Scan::On)) => at = base + LEAF_PAGES,
                Some((_, Scan::Stop)) | None => break,
            }
        }
        if stale > STALE_MAX {
            self.prune();
        }
    }

    /// The pages with `mark` in the first leaf of `range` that has any, one bit each, and the index of the leaf's first page.
    /// `found_by` is the mark by which leaves are searched, as in [`scan`](Self::scan).
    pub(crate) fn next_bits(
        &self,
        mark: Mark,
        found_by: Option<Mark>,
        range: Range<PageIndex>,
    ) -> Option<(PageIndex, u64)> {
        let mut found = None;
        self.scan(range.start, range.end, found_by, |base, leaf| {
            let clip = range_bits(range.start.0.saturating_sub(base.0), range.end.0.saturating_sub(base.0));
            let bits = leaf.bits(mark) & clip;
            if bits == 0 {
                return Scan::On;
            }
            found = Some((base, bits));
            Scan::Stop
        });
        found
    }

    /// Frees the leaf of `index` if it has no pages; false if it has.
    pub(crate) fn remove_if_empty(&self, index: PageIndex) -> bool {
        self.tree.write().remove_if_empty(index.0)
    }

    /// Frees empty leaves and updates the index.
    pub(crate) fn prune(&self) {
        self.tree.write().prune();
    }

    /// Whether no page is cached. An emptied leaf counts until it is removed.
    pub(crate) fn is_empty(&self) -> bool {
        self.tree.read().is_empty()
    }

    /// Pages with `mark`, which must be one of the three counted marks.
    pub(crate) fn count(&self, mark: Mark) -> u64 {
        self.counter(mark).load(Ordering::Acquire).max(0) as u64
    }

    /// Whether any page has yet to be written to the backend.
    pub(crate) fn is_unwritten(&self) -> bool {
        let waits = |mark| self.count(mark) != 0;
        // The last check finds a page that failed in between and became dirty again.
        waits(Mark::Dirty) || waits(Mark::Writeback) || waits(Mark::Dirty)
    }

    /// Pages that are dirty, under write-back or not yet durable (A2).
    pub(crate) fn count_unclean(&self) -> u64 {
        self.unclean.load(Ordering::Acquire).max(0) as u64
    }

    /// Adjusts the count of unclean pages (A2).
    pub(crate) fn add_unclean(&self, pages: i64) {
        if pages != 0 {
            self.unclean.fetch_add(pages, Ordering::AcqRel);
        }
    }

    /// Adjusts a count (A1).
    pub(crate) fn add(&self, mark: Mark, pages: i64) {
        if pages != 0 {
            self.counter(mark).fetch_add(pages, Ordering::AcqRel);
        }
    }

    fn counter(&self, mark: Mark) -> &AtomicI64 {
        match mark {
            Mark::Dirty => &self.dirty,
            Mark::Writeback => &self.writeback,
            Mark::Unstable | Mark::Committing => &self.unstable,
            Mark::ToWrite
            | Mark::Uptodate
            | Mark::Referenced
            | Mark::Active
            | Mark::Listed
            | Mark::Delayed
            | Mark::Dropbehind => {
                unreachable!("{mark:?} is not counted")
            }
        }
    }
}

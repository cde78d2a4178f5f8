//! The cached pages of one file.
//!
//! # Invariants
//! A1. `dirty`, `writeback` and `unstable` count the pages with that mark in the tree. A page that moves
//!     from one to another is counted there before it is no longer counted here.
//! A2. `unclean` counts the pages that have any of the three. It moves under the leaf's lock, and only
//!     when a page begins or ceases to be unclean: 0 means that every page can be dropped.
//!
//! # Lock order
//! `I_PAGES`, then `LEAF`; both inside every call, neither across one.
//!
//! # Kernel counterpart
//! `struct address_space`.

use slackwater_sync::lock::RwLock;
use slackwater_sync::shim::atomic::{AtomicI64, Ordering};

use crate::lock_order::I_PAGES;
use crate::page_cache::leaf::{LEAF_PAGES, LeafState, Mark, slot_of};
use crate::page_cache::tree::Tree;
use crate::units::PageIndex;

/// Scans that meet this many leaves without what their index promised have the index cleaned up.
const STALE_MAX: u32 = 16;

/// See the [module documentation](self).
pub(crate) struct AddressSpace {
    tree: RwLock<Tree>,
    dirty: AtomicI64,
    writeback: AtomicI64,
    unstable: AtomicI64,
    unclean: AtomicI64,
}

/// What a scan does after a leaf.
pub(crate) enum Scan {
    /// Goes on with the next leaf.
    On,
    /// Stops.
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

    /// Runs `f` on the leaf and slot of `index`, under the leaf's lock; `None` if no leaf is there.
    pub(crate) fn with_page<R>(&self, index: PageIndex, f: impl FnOnce(&mut LeafState, usize) -> R) -> Option<R> {
        self.tree.read().with_leaf(index.0, |leaf| f(leaf, slot_of(index.0)))
    }

    /// The same for who wants the page's bytes at once, where the processor does not foresee it; `ask` is told the number of
    /// a frame to ask for.
    #[inline]
    pub(crate) fn with_page_and_bytes<R>(
        &self,
        index: PageIndex,
        ask: impl Fn(u32),
        f: impl FnOnce(&mut LeafState, usize) -> R,
    ) -> Option<R> {
        self.tree.read().with_leaf_and_bytes(index.0, ask, |leaf| f(leaf, slot_of(index.0)))
    }

    /// As [`AddressSpace::with_page`], making the leaf, and room for the page in it, if needed.
    pub(crate) fn with_page_or_new<R>(&self, index: PageIndex, f: impl FnOnce(&mut LeafState, usize) -> R) -> R {
        let mut f = Some(f);
        let mut is_new = false;
        loop {
            let done = self.tree.read().with_leaf(index.0, |leaf| {
                (slot_of(index.0) < leaf.room()).then(|| {
                    let f = f.take().expect("runs once: the loop ends with it");
                    (f(leaf, slot_of(index.0)), leaf.present() == 0)
                })
            });
            match done.flatten() {
                Some((result, is_empty)) => {
                    if is_new && is_empty {
                        let _ = self.remove_if_empty(index); // or somebody has put a page there meanwhile
                    }
                    return result;
                }
                None => is_new |= self.tree.write().grow(index.0),
            }
        }
    }

    /// Visits, in ascending order, each leaf with pages in `from..to` that may have `mark` (any page, for
    /// `None`). The tree is unlocked between leaves. `f` gets the index of the leaf's first page. A page that gets
    /// `mark` meanwhile may be missed, even if that began before (T1 of the tree); with `None` its leaf's lock is
    /// waited for.
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

    /// Frees the leaf of `index` if no page is in it; false if one is.
    pub(crate) fn remove_if_empty(&self, index: PageIndex) -> bool {
        self.tree.write().remove_if_empty(index.0)
    }

    /// Frees empty leaves and brings the index up to date.
    pub(crate) fn prune(&self) {
        self.tree.write().prune();
    }

    /// Whether no page is cached. An emptied leaf counts until it is removed.
    pub(crate) fn is_empty(&self) -> bool {
        self.tree.read().is_empty()
    }

    /// Pages with `mark`; only for the three marks that are counted.
    pub(crate) fn count(&self, mark: Mark) -> u64 {
        self.counter(mark).load(Ordering::Acquire).max(0) as u64
    }

    /// Whether the backend has yet to get a page.
    pub(crate) fn is_unwritten(&self) -> bool {
        let waits = |mark| self.count(mark) != 0;
        // The last look finds a page that failed in between: it goes back to the dirty ones.
        waits(Mark::Dirty) || waits(Mark::Writeback) || waits(Mark::Dirty)
    }

    /// Pages that are dirty, under write-back or not yet durable (A2).
    pub(crate) fn count_unclean(&self) -> u64 {
        self.unclean.load(Ordering::Acquire).max(0) as u64
    }

    /// Moves the count of unclean pages (A2).
    pub(crate) fn add_unclean(&self, pages: i64) {
        if pages != 0 {
            self.unclean.fetch_add(pages, Ordering::AcqRel);
        }
    }

    /// Moves a count (A1).
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

//! The eviction queues of one tenant, and how pages enter them.
//!
//! # Invariants
//! U1. Once a tenant has gone offline, its queues stay closed. Its pages move to its nearest online ancestor, or to the
//!     root.
//!
//! # Kernel counterpart
//! `struct lruvec`; `folio_add_lru`, `workingset_refault`; `memcg_reparent_lruvecs`.

use std::collections::HashMap;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};
use slackwater_sync::shim::{Arc, Weak};

use crate::cgroup::Memcg;
use crate::inode::Inode;
use crate::lock_order::LEAVES;
use crate::page_cache::{LeafState, Mark};
use crate::reclaim::Reclaim;
use crate::reclaim::policy::{Entry, Queue, Queues, mix};
use crate::reclaim::shrink::Busy;
use crate::units::{NodeId, PageIndex};

/// A leaf of cached pages.
pub(super) struct LeafRef {
    pub(super) inode: Weak<Inode>,
    pub(super) first: PageIndex,
}

impl PartialEq for LeafRef {
    fn eq(&self, other: &Self) -> bool {
        self.first == other.first && Weak::ptr_eq(&self.inode, &other.inode)
    }
}

/// See the [module documentation](self).
pub(crate) struct Lruvec {
    /// U1.
    queues: Mutex<Option<Queues<LeafRef>>>,
    /// Number of pages in the queues; approximate while a thread works on them.
    pages: AtomicU64,
}

impl Lruvec {
    pub(crate) fn new() -> Self {
        Self { queues: Mutex::new(LEAVES, Some(Queues::new())), pages: AtomicU64::new(0) }
    }

    /// Clean pages cached for the tenant. Some may be dirty again or evicted.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Runs `f` on the queues; `None` if they are closed.
    fn with<R>(&self, f: impl FnOnce(&mut Queues<LeafRef>) -> R) -> Option<R> {
        let mut queues = self.queues.lock();
        let queues = queues.as_mut()?;
        let result = f(queues);
        self.pages.store(queues.pages(), Ordering::Relaxed);
        Some(result)
    }

    pub(super) fn pop(&self) -> Option<(Queue, Entry<LeafRef>)> {
        self.with(Queues::pop).flatten()
    }

    pub(super) fn entries(&self) -> usize {
        self.with(|queues| queues.entries()).unwrap_or(0)
    }

    /// Closes the queues and moves their entries to the first open one of `heirs`.
    pub(crate) fn close<'a>(&self, mut heirs: impl Iterator<Item = &'a Lruvec>) {
        let mut left = self.queues.lock().take();
        self.pages.store(0, Ordering::Relaxed);
        // The first heir with open queues takes `left`.
        let _ = heirs.find_map(|heir| heir.with(|queues| left.take().map(|left| queues.append(left))));
    }

    /// Removes stale entries, and those that stand for a page a second time.
    pub(super) fn sweep(&self, _busy: &Busy<'_>) {
        let Some(mut taken) = self.with(Queues::take) else { return };
        let mut seen = HashMap::new();
        taken.retain(|_, leaf, pages| {
            let Some(inode) = leaf.inode.upgrade() else { return 0 };
            let listed = inode.mapping.with_page(leaf.first, |state, _| state.bits(Mark::Listed)).unwrap_or(0);
            let seen: &mut u64 = seen.entry((Weak::as_ptr(&leaf.inode), leaf.first)).or_default();
            let left = pages & listed & !*seen;
            *seen |= left;
            left
        });
        if self.with(|queues| queues.put_back(taken)).is_none() {
            tracing::debug!(target: "slackwater::reclaim", "a tenant went offline while its queues were swept");
        }
    }
}

impl Reclaim {
    /// Lists the pages `pages` of the leaf at `first`, which have become clean, for `memcg`, unless they are listed
    /// already. The caller holds the leaf's lock, and calls [`Reclaim::note_listed`] after releasing it.
    pub(crate) fn list(&self, inode: &Arc<Inode>, memcg: &Memcg, first: PageIndex, leaf: &mut LeafState, pages: u64) {
        let pages = pages & !leaf.bits(Mark::Listed);
        if pages == 0 {
            return;
        }
        leaf.set_bits(Mark::Listed, pages);
        let asked = pages & !leaf.bits(Mark::Active);
        let back = round_to_leaf(asked, self.ghost.recall(file_key(inode), first.0, asked));
        leaf.set_bits(Mark::Active, back);
        leaf.clear_bits(Mark::Referenced, back); // the write that brought it in was its one use
        let main = pages & leaf.bits(Mark::Active);
        for (queue, pages) in [(Queue::Main, main), (Queue::Small, pages & !main)] {
            self.push(memcg, queue, LeafRef { inode: Arc::downgrade(inode), first }, pages);
        }
    }

    /// Adds pages to the queues of `memcg`, or of its heir (U1).
    pub(super) fn push(&self, memcg: &Memcg, queue: Queue, leaf: LeafRef, pages: u64) {
        if pages == 0 {
            return;
        }
        let mut leaf = Some(leaf);
        let _ = memcg
            .self_and_heirs(self.tenants.root())
            .find_map(|memcg| memcg.lruvec.with(|queues| leaf.take().map(|leaf| queues.push(queue, leaf, pages))));
    }

    /// Called after pages were listed for `memcg`. The cost of a sweep is spread over as many new entries.
    pub(crate) fn note_listed(&self, memcg: &Memcg) {
        self.stalled.store(false, Ordering::Relaxed);
        if memcg.lruvec.with(|queues| queues.is_long()) == Some(true)
            && let Some(busy) = Busy::begin(&self.busy)
        {
            memcg.lruvec.sweep(&busy);
        }
        self.wake_if_low();
    }
}

/// Counts all pages of a leaf as `recalled` or none, as most were, if they come as a whole, or nearly. The ghost errs
/// and forgets in blocks, but pages that came together should leave together. The frames of a stream are adjacent, and
/// would be fragmented if some blocks stayed longer than others.
fn round_to_leaf(asked: u64, recalled: u64) -> u64 {
    let (asked_pages, recalled_pages) = (asked.count_ones(), recalled.count_ones());
    if asked_pages <= u64::BITS / 2 {
        return recalled;
    }
    if 2 * recalled_pages > asked_pages { asked } else { 0 }
}

/// The key of a file in the ghost.
pub(super) fn file_key(inode: &Inode) -> u64 {
    let NodeId { dev, ino, generation } = inode.id();
    mix(ino ^ mix(dev ^ mix(generation ^ u64::from(inode.super_block().volume_slot().as_u32()))))
}

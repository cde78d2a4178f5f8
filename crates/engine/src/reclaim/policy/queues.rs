//! The small and the main queue. Each entry stands for pages of one leaf.
//!
//! An entry is a leaf and one bit for each page it stands for. Consecutive pages of one leaf that enter a queue
//! together share an entry. A file read sequentially takes one entry per 64 pages, and leaves in the same order. A page
//! read alone has an entry of its own, and its own place in the queue.
//!
//! # Invariants
//! Q1. `pages` of a queue is the number of bits of its entries.
//! Q2. Entries leave a queue in the order in which they entered it.

use std::collections::VecDeque;

/// New pages are at least 1/`SMALL_PART` of all pages.
const SMALL_PART: u64 = 10;
/// Entries tolerated beyond twice the number left by the last sweep.
pub(in crate::reclaim) const SWEEP_SLACK: usize = 1024;

/// The two queues.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(in crate::reclaim) enum Queue {
    /// The queue of new pages.
    Small,
    /// The queue of pages that were used again.
    Main,
}

/// Pages of one leaf.
pub(in crate::reclaim) struct Entry<L> {
    pub(in crate::reclaim) leaf: L,
    pub(in crate::reclaim) pages: u64,
}

struct Fifo<L> {
    entries: VecDeque<Entry<L>>,
    pages: u64,
}

impl<L: PartialEq> Fifo<L> {
    fn new() -> Self {
        Self { entries: VecDeque::new(), pages: 0 }
    }

    fn push(&mut self, leaf: L, pages: u64) {
        self.pages += u64::from(pages.count_ones());
        match self.entries.back_mut() {
            Some(last) if last.leaf == leaf && last.pages & pages == 0 => last.pages |= pages,
            _ => self.entries.push_back(Entry { leaf, pages }),
        }
    }

    fn pop(&mut self) -> Option<Entry<L>> {
        let entry = self.entries.pop_front()?;
        self.pages -= u64::from(entry.pages.count_ones());
        Some(entry)
    }
}

/// See the [module documentation](self).
pub(in crate::reclaim) struct Queues<L> {
    small: Fifo<L>,
    main: Fifo<L>,
    /// Number of entries left by the last sweep.
    swept: usize,
}

impl<L: PartialEq> Queues<L> {
    pub(in crate::reclaim) fn new() -> Self {
        Self { small: Fifo::new(), main: Fifo::new(), swept: 0 }
    }

    /// Adds pages of `leaf`, one bit each, to the end of `queue`.
    pub(in crate::reclaim) fn push(&mut self, queue: Queue, leaf: L, pages: u64) {
        if pages != 0 {
            self.queue(queue).push(leaf, pages);
        }
    }

    /// The next pages to examine: new ones, as long as they are a tenth of all.
    pub(in crate::reclaim) fn pop(&mut self) -> Option<(Queue, Entry<L>)> {
        let first = if self.small.pages * SMALL_PART >= self.pages() { Queue::Small } else { Queue::Main };
        let other = if first == Queue::Small { Queue::Main } else { Queue::Small };
        [first, other].into_iter().find_map(|queue| Some((queue, self.queue(queue).pop()?)))
    }

    /// Pages that the entries stand for.
    pub(in crate::reclaim) fn pages(&self) -> u64 {
        self.small.pages + self.main.pages
    }

    pub(in crate::reclaim) fn entries(&self) -> usize {
        self.small.entries.len() + self.main.entries.len()
    }

    /// Whether so many entries were added since the last sweep that half of them may be stale.
    pub(in crate::reclaim) fn is_long(&self) -> bool {
        self.entries() > SWEEP_SLACK + 2 * self.swept
    }

    /// Takes all entries out, to be returned by [`Queues::put_back`].
    pub(in crate::reclaim) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new())
    }

    /// Visits all entries in the order of each queue. `left` returns the pages to keep.
    pub(in crate::reclaim) fn retain(&mut self, mut left: impl FnMut(Queue, &L, u64) -> u64) {
        for queue in [Queue::Small, Queue::Main] {
            let fifo = self.queue(queue);
            fifo.entries.retain_mut(|entry| {
                entry.pages &= left(queue, &entry.leaf, entry.pages);
                entry.pages != 0
            });
            fifo.pages = fifo.entries.iter().map(|entry| u64::from(entry.pages.count_ones())).sum();
        }
    }

    /// Inserts `earlier` before the entries added since it was taken, and counts it as swept.
    pub(in crate::reclaim) fn put_back(&mut self, mut earlier: Self) {
        earlier.swept = earlier.entries();
        earlier.append(std::mem::replace(self, Self::new()));
        *self = earlier;
    }

    /// Appends the entries of `others`.
    pub(in crate::reclaim) fn append(&mut self, others: Self) {
        let Self { small, main, swept: _ } = others;
        for (queue, mut fifo) in [(Queue::Small, small), (Queue::Main, main)] {
            let own = self.queue(queue);
            own.pages += fifo.pages;
            own.entries.append(&mut fifo.entries);
        }
    }

    fn queue(&mut self, queue: Queue) -> &mut Fifo<L> {
        match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
        }
    }
}

//! The small and the main queue, of entries that stand for pages of one leaf each.
//!
//! An entry is a leaf and a bit for each page of it that the entry stands for. Pages that follow one another into a queue
//! share an entry if they share a leaf: a file that is read in order takes an entry for 64 pages, and leaves as it came; a
//! page that is read alone has an entry alone, and its own place in the queue.
//!
//! # Invariants
//! Q1. `pages` of a queue is the number of bits of its entries.
//! Q2. Entries leave a queue in the order in which they came.

use std::collections::VecDeque;

/// The part of all pages that are new ones: one of so many.
const SMALL_PART: u64 = 10;
/// Entries that may be there beyond twice what was alive after the last sweep.
pub(in crate::reclaim) const SWEEP_SLACK: usize = 1024;

/// One of the two.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(in crate::reclaim) enum Queue {
    /// For new pages.
    Small,
    /// For those that were used again.
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
    /// Entries that were left by the last sweep.
    swept: usize,
}

impl<L: PartialEq> Queues<L> {
    pub(in crate::reclaim) fn new() -> Self {
        Self { small: Fifo::new(), main: Fifo::new(), swept: 0 }
    }

    /// Adds pages of `leaf`, one bit each, at the end of `queue`.
    pub(in crate::reclaim) fn push(&mut self, queue: Queue, leaf: L, pages: u64) {
        if pages != 0 {
            self.queue(queue).push(leaf, pages);
        }
    }

    /// The pages that come up next: new ones, while these are a tenth of all.
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

    /// Whether so many entries came since the last sweep that as many may stand for nothing.
    pub(in crate::reclaim) fn is_long(&self) -> bool {
        self.entries() > SWEEP_SLACK + 2 * self.swept
    }

    /// Takes all entries out, to be put back by [`Queues::put_back`].
    pub(in crate::reclaim) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new())
    }

    /// All entries, in the order of each queue, with leave to take pages from them.
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

    /// Puts `earlier` before what has come since it was taken, and counts it as swept.
    pub(in crate::reclaim) fn put_back(&mut self, mut earlier: Self) {
        earlier.swept = earlier.entries();
        earlier.append(std::mem::replace(self, Self::new()));
        *self = earlier;
    }

    /// Adds the entries of `others` behind its own.
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

//! Decides what happens to the pages of an entry taken from a queue.

use crate::reclaim::policy::Queue;

/// The pages that can be dropped, and how they were used, one bit each.
#[derive(Copy, Clone, Debug)]
pub(in crate::reclaim) struct PageUse {
    pub(in crate::reclaim) clean: u64,
    /// Used since they were brought in, or since they were last examined.
    pub(in crate::reclaim) referenced: u64,
    /// Used again after that.
    pub(in crate::reclaim) active: u64,
}

/// The decision: each page is in exactly one of the three sets.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(in crate::reclaim) struct Verdict {
    pub(in crate::reclaim) out: u64,
    /// Moves to the end of the main queue.
    pub(in crate::reclaim) main: u64,
    /// Moves to the end of the small queue.
    pub(in crate::reclaim) small: u64,
}

impl Verdict {
    pub(in crate::reclaim) fn on(queue: Queue, pages: PageUse) -> Self {
        let PageUse { clean, referenced, active } = pages;
        match queue {
            // An unreferenced page was read ahead, or its reader has yet to run: pass over it once.
            Queue::Small => {
                Self { out: clean & referenced & !active, main: clean & active, small: clean & !referenced & !active }
            }
            Queue::Main => Self { out: clean & !referenced, main: clean & referenced, small: 0 },
        }
    }

    /// The page in `slot` was to be dropped but is in use: it stays for another round.
    pub(in crate::reclaim) fn hold(&mut self, queue: Queue, slot: usize) {
        self.out &= !(1 << slot);
        match queue {
            Queue::Small => self.small |= 1 << slot,
            Queue::Main => self.main |= 1 << slot,
        }
    }
}

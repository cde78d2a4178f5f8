//! What becomes of the pages of an entry that comes up.

use crate::reclaim::policy::Queue;

/// Pages that can be dropped, and how they were used, one bit each.
#[derive(Copy, Clone, Debug)]
pub(in crate::reclaim) struct Looked {
    pub(in crate::reclaim) clean: u64,
    /// Used since they were brought, or since they came up last.
    pub(in crate::reclaim) referenced: u64,
    /// Used again after that.
    pub(in crate::reclaim) active: u64,
}

/// What becomes of them: each is in one of the three.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(in crate::reclaim) struct Verdict {
    pub(in crate::reclaim) out: u64,
    /// Goes to the end of the main queue.
    pub(in crate::reclaim) main: u64,
    /// Goes to the end of the small queue.
    pub(in crate::reclaim) small: u64,
}

impl Verdict {
    pub(in crate::reclaim) fn on(queue: Queue, pages: Looked) -> Self {
        let Looked { clean, referenced, active } = pages;
        match queue {
            // What nobody has looked at was read ahead, or whoever waits for it has yet to come: it is passed by once.
            Queue::Small => {
                Self { out: clean & referenced & !active, main: clean & active, small: clean & !referenced & !active }
            }
            Queue::Main => Self { out: clean & !referenced, main: clean & referenced, small: 0 },
        }
    }

    /// The page in `slot` was to go and cannot be had: it goes round again.
    pub(in crate::reclaim) fn hold(&mut self, queue: Queue, slot: usize) {
        self.out &= !(1 << slot);
        match queue {
            Queue::Small => self.small |= 1 << slot,
            Queue::Main => self.main |= 1 << slot,
        }
    }
}

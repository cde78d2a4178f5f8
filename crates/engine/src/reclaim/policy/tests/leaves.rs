//! The policy as the engine runs it, on leaves that consist only of marks.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use crate::reclaim::policy::{PageUse, Queue, Queues, Verdict};

#[derive(Default)]
struct Marks {
    present: u64,
    referenced: u64,
    active: u64,
}

pub(super) struct Leaves {
    capacity: u64,
    pub(super) queues: Queues<u64>,
    marks: HashMap<u64, Marks>,
    /// All pages ever evicted from the small queue.
    evicted: HashSet<u64>,
}

impl Leaves {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity, queues: Queues::new(), marks: HashMap::new(), evicted: HashSet::new() }
    }

    /// Uses a page. Returns whether it was cached.
    pub(super) fn access(&mut self, page: u64) -> bool {
        let (leaf, bit) = (page / 64, 1_u64 << (page % 64));
        let marks = self.marks.entry(leaf).or_default();
        if marks.present & bit != 0 {
            // As `LeafState::touch`.
            if marks.referenced & bit == 0 {
                marks.referenced |= bit
            } else {
                marks.active |= bit
            }
            return true;
        }
        while self.queues.pages() >= self.capacity {
            self.evict();
        }
        let is_back = self.evicted.remove(&page);
        let marks = self.marks.entry(leaf).or_default();
        marks.present |= bit;
        let mark = if is_back { &mut marks.active } else { &mut marks.referenced };
        *mark |= bit;
        self.queues.push(if is_back { Queue::Main } else { Queue::Small }, leaf, bit);
        false
    }

    fn evict(&mut self) {
        let (queue, entry) = self.queues.pop().expect("something is cached");
        let marks = self.marks.get_mut(&entry.leaf).expect("it has an entry");
        let Marks { referenced, active, .. } = *marks;
        let verdict = Verdict::on(queue, PageUse { clean: entry.pages & marks.present, referenced, active });
        marks.referenced = marks.referenced & !verdict.main | verdict.small;
        for bits in [&mut marks.present, &mut marks.referenced, &mut marks.active] {
            *bits &= !verdict.out;
        }
        if queue == Queue::Small {
            self.evicted.extend((0..64).filter(|slot| verdict.out >> slot & 1 != 0).map(|slot| entry.leaf * 64 + slot));
        }
        self.queues.push(Queue::Main, entry.leaf, verdict.main);
        self.queues.push(Queue::Small, entry.leaf, verdict.small);
    }

    pub(super) fn sweep(&mut self) {
        let mut taken = self.queues.take();
        taken.retain(|_, leaf, pages| self.marks.get(leaf).map_or(0, |marks| marks.present & pages));
        self.queues.put_back(taken);
    }

    /// Checks that each cached page is in exactly one entry.
    pub(super) fn check(&mut self) -> Result<(), TestCaseError> {
        let mut listed = HashMap::<u64, u64>::new();
        let mut twice = false;
        self.queues.retain(|_, leaf, pages| {
            let of_leaf = listed.entry(*leaf).or_default();
            twice |= *of_leaf & pages != 0;
            *of_leaf |= pages;
            pages
        });
        prop_assert!(!twice, "a page is in two entries");
        prop_assert!(self.queues.pages() <= self.capacity);
        for (leaf, marks) in &self.marks {
            prop_assert_eq!(listed.get(leaf).copied().unwrap_or(0), marks.present, "leaf {}", leaf);
        }
        Ok(())
    }
}

//! The policy without leaves, on two lists of pages.

use std::collections::{HashMap, HashSet, VecDeque};

/// Number of uses since it was brought in or last examined: none, one, or more.
struct Page {
    uses: u8,
}

pub(super) struct Plain {
    capacity: usize,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    pages: HashMap<u64, Page>,
    /// All pages ever evicted from the small list.
    evicted: HashSet<u64>,
}

impl Plain {
    pub(super) fn new(capacity: usize) -> Self {
        let (small, main, pages, evicted) = Default::default();
        Self { capacity, small, main, pages, evicted }
    }

    /// Uses a page. Returns whether it was cached.
    pub(super) fn access(&mut self, page: u64) -> bool {
        if let Some(known) = self.pages.get_mut(&page) {
            known.uses = (known.uses + 1).min(2);
            return true;
        }
        while self.pages.len() >= self.capacity {
            self.evict();
        }
        let is_back = self.evicted.remove(&page);
        if is_back { &mut self.main } else { &mut self.small }.push_back(page);
        self.pages.insert(page, Page { uses: u8::from(!is_back) });
        false
    }

    fn evict(&mut self) {
        let from_small = !self.small.is_empty() && (self.small.len() * 10 >= self.pages.len() || self.main.is_empty());
        let page =
            if from_small { self.small.pop_front() } else { self.main.pop_front() }.expect("something is cached");
        let known = self.pages.get_mut(&page).expect("it is on a list");
        let stays = known.uses > u8::from(from_small);
        if stays {
            known.uses = 0;
            self.main.push_back(page);
        } else {
            self.pages.remove(&page);
            if from_small {
                self.evicted.insert(page);
            }
        }
    }
}

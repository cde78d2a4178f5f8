//! Replacement policies that the engine is compared with. They track every page, whatever that costs.

use std::collections::{HashMap, HashSet, VecDeque};

/// A cache with a fixed number of pages.
pub(super) trait Policy {
    /// Uses a page and returns whether it was cached.
    fn access(&mut self, page: u64) -> bool;
}

/// The names of [`all`].
pub(super) const NAMES: [&str; 3] = ["LRU", "FIFO", "S3-FIFO"];

/// A cache with each policy, for `capacity` pages.
pub(super) fn all(capacity: usize) -> [Box<dyn Policy>; 3] {
    [Box::new(Lru::new(capacity)), Box::new(Fifo::new(capacity)), Box::new(S3Fifo::new(capacity))]
}

/// Evicts the page that was least recently used.
struct Lru {
    capacity: usize,
    /// The last use of each page.
    used: HashMap<u64, u64>,
    /// All uses in order; only the last one of a page counts.
    uses: VecDeque<(u64, u64)>,
    now: u64,
}

impl Lru {
    fn new(capacity: usize) -> Self {
        Self { capacity, used: HashMap::new(), uses: VecDeque::new(), now: 0 }
    }
}

impl Policy for Lru {
    fn access(&mut self, page: u64) -> bool {
        self.now += 1;
        let hit = self.used.insert(page, self.now).is_some();
        self.uses.push_back((page, self.now));
        while self.used.len() > self.capacity
            && let Some((page, when)) = self.uses.pop_front()
        {
            if self.used.get(&page) == Some(&when) {
                self.used.remove(&page);
            }
        }
        hit
    }
}

/// Evicts the page that was cached first.
struct Fifo {
    capacity: usize,
    cached: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Fifo {
    fn new(capacity: usize) -> Self {
        Self { capacity, cached: HashSet::new(), order: VecDeque::new() }
    }
}

impl Policy for Fifo {
    fn access(&mut self, page: u64) -> bool {
        if !self.cached.insert(page) {
            return true;
        }
        self.order.push_back(page);
        if self.order.len() > self.capacity
            && let Some(first) = self.order.pop_front()
        {
            self.cached.remove(&first);
        }
        false
    }
}

/// S3-FIFO as published: two bits of frequency, a tenth of the pages for new ones, as many ghosts as the main queue has pages.
struct S3Fifo {
    capacity: usize,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    frequency: HashMap<u64, u8>,
    /// Evicted pages in order, each with a number, and the number of those that have not come back.
    ghosts: VecDeque<(u64, u64)>,
    evicted: HashMap<u64, u64>,
    now: u64,
}

impl S3Fifo {
    fn new(capacity: usize) -> Self {
        let (small, main, frequency, ghosts, evicted) = Default::default();
        Self { capacity, small, main, frequency, ghosts, evicted, now: 0 }
    }

    fn evict(&mut self) {
        if self.small.len() * 10 >= self.capacity || self.main.is_empty() {
            self.evict_small();
        } else {
            self.evict_main();
        }
    }

    fn evict_small(&mut self) {
        while let Some(page) = self.small.pop_front() {
            if self.frequency.get(&page).is_some_and(|frequency| *frequency > 1) {
                self.frequency.insert(page, 0);
                self.main.push_back(page);
                continue;
            }
            self.frequency.remove(&page);
            self.now += 1;
            self.evicted.insert(page, self.now);
            self.ghosts.push_back((page, self.now));
            while self.ghosts.len() > self.capacity * 9 / 10
                && let Some((page, when)) = self.ghosts.pop_front()
            {
                if self.evicted.get(&page) == Some(&when) {
                    self.evicted.remove(&page);
                }
            }
            return;
        }
        self.evict_main();
    }

    fn evict_main(&mut self) {
        while let Some(page) = self.main.pop_front() {
            match self.frequency.get_mut(&page) {
                Some(frequency) if *frequency > 0 => {
                    *frequency -= 1;
                    self.main.push_back(page);
                }
                _ => {
                    self.frequency.remove(&page);
                    return;
                }
            }
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, page: u64) -> bool {
        if let Some(frequency) = self.frequency.get_mut(&page) {
            *frequency = (*frequency + 1).min(3);
            return true;
        }
        if self.frequency.len() == self.capacity {
            self.evict();
        }
        self.frequency.insert(page, 0);
        if self.evicted.remove(&page).is_some() {
            self.main.push_back(page);
        } else {
            self.small.push_back(page);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(policy: &mut dyn Policy, pages: impl IntoIterator<Item = u64>) -> Vec<bool> {
        pages.into_iter().map(|page| policy.access(page)).collect()
    }

    #[test]
    fn a_use_keeps_a_page_in_lru_and_not_in_fifo() {
        assert_eq!(hits(&mut Lru::new(2), [1, 2, 1, 3, 1, 2]), [false, false, true, false, true, false]);
        assert_eq!(hits(&mut Fifo::new(2), [1, 2, 1, 3, 1, 2]), [false, false, true, false, false, false]);
    }

    #[test]
    fn a_loop_above_the_cache_defeats_lru_alone() {
        let round = || (0..120_u64).cycle().take(6000);
        let count = |policy: &mut dyn Policy| hits(policy, round()).iter().filter(|hit| **hit).count();
        assert_eq!(count(&mut Lru::new(100)), 0);
        assert!(count(&mut S3Fifo::new(100)) > 2000);
    }

    #[test]
    fn a_scan_passes_through_the_small_queue() {
        let mut policy = S3Fifo::new(100);
        (0..4).for_each(|_| drop(hits(&mut policy, 0..80)));
        drop(hits(&mut policy, 1000..2000));
        assert_eq!(hits(&mut policy, 0..80), [true; 80]);
    }
}

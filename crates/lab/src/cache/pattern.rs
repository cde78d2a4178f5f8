//! The order in which pages are used.

use slackwater_backends::Random;

use crate::harness::axis;

/// Bytes that every operation copies.
pub(crate) const PAGE: usize = 4096;

axis! {
    /// The order in which pages are used.
    pub(crate) enum Order {
        Sequential = "sequential",
        /// Every page is equally likely each time.
        Random = "random",
    }
}

/// An endless sequence of page numbers.
#[derive(Clone, Debug)]
pub(crate) enum Pattern {
    Sequential { next: u64, pages: u64 },
    Random { random: Random, pages: u64 },
}

impl Pattern {
    /// Of the pages `0..pages`; a sequential pattern begins at `start` and wraps around.
    pub(crate) fn new(order: Order, start: u64, pages: u64, seed: u64) -> Self {
        match order {
            Order::Sequential => Self::Sequential { next: start % pages, pages },
            Order::Random => Self::Random { random: Random::new(seed ^ start.rotate_left(32)), pages },
        }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        match self {
            Self::Sequential { next, pages } => {
                let page = *next;
                *next = if page + 1 == *pages { 0 } else { page + 1 };
                page
            }
            Self::Random { random, pages } => random.below(*pages),
        }
    }
}

/// An aligned page to write from or to read into.
#[repr(align(4096))]
pub(crate) struct PageBuffer(pub(crate) [u8; PAGE]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_pattern_wraps_around_from_its_start() {
        let mut pattern = Pattern::new(Order::Sequential, 2, 4, 1);
        assert_eq!([(); 6].map(|()| pattern.next()), [2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn random_patterns_differ_between_lanes_and_repeat_with_the_seed() {
        let draw = |start| {
            let mut pattern = Pattern::new(Order::Random, start, 1 << 16, 1);
            [(); 8].map(|()| pattern.next())
        };
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1 << 15));
    }
}

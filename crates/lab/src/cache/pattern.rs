//! Which page comes next.

use slackwater_backends::Random;

/// Bytes that every operation moves.
pub(crate) const PAGE: usize = 4096;

/// Order in which pages are visited.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Order {
    Sequential,
    /// Every page as likely as any other, each time.
    Random,
}

impl Order {
    pub(crate) const ALL: [Self; 2] = [Self::Sequential, Self::Random];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
        }
    }
}

/// Page numbers without end.
#[derive(Clone, Debug)]
pub(crate) enum Pattern {
    Sequential { next: u64, pages: u64 },
    Random { random: Random, pages: u64 },
}

impl Pattern {
    /// Over pages `0..pages`; a sequential one begins at `start` and goes round.
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

/// A page of bytes to write or to read into, as programs have it: aligned.
#[repr(align(4096))]
pub(crate) struct PageBuffer(pub(crate) [u8; PAGE]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_pattern_goes_round_from_where_it_starts() {
        let mut pattern = Pattern::new(Order::Sequential, 2, 4, 1);
        assert_eq!([(); 6].map(|()| pattern.next()), [2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn random_patterns_of_two_lanes_differ_and_of_one_seed_do_not() {
        let draw = |start| {
            let mut pattern = Pattern::new(Order::Random, start, 1 << 16, 1);
            [(); 8].map(|()| pattern.next())
        };
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1 << 15));
    }
}

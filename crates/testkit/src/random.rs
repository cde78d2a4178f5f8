//! A small random number generator, so that a seed repeats a run of faults, a test or an experiment; and bytes from it.

/// SplitMix64: passes the usual tests, takes a nanosecond, and accepts any seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts at `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "it has no end, and is not used as an iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`. All are equally likely, up to one part in 2^64 / `end`.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// Shuffles `items`. All orders are equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Bytes that differ from seed to seed and from sector to sector; never zero, so that none looks like a hole.
pub fn pattern(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut word = || (random.next() | 0x0101_0101_0101_0101).to_le_bytes();
    let sector: Vec<u8> = (0..64).flat_map(|_| word()).collect();
    let mut bytes = sector.repeat(len_bytes / sector.len() + 1);
    for sector in bytes.chunks_mut(sector.len()) {
        sector[..8].copy_from_slice(&word());
    }
    bytes.truncate(len_bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers_and_they_cover_the_range() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!((0..10).all(|number| (60..140).contains(&draw(7).iter().filter(|drawn| **drawn == number).count())));
    }
}

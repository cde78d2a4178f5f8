//! The check word of header and records.
//!
//! The word protects against damage, not against attacks. Each step maps the old sum to the new one, and the word to
//! the new sum, one to one. So any change within a single word is always found, and any other change is missed once in
//! 2^64.

/// A sum over 64-bit words, in order.
#[derive(Copy, Clone)]
pub(crate) struct Checksum(u64);

impl Checksum {
    /// Starts a sum. `kind` and `index` identify the record, so that a valid record in the wrong place also counts as
    /// damage.
    pub(crate) const fn of_record(kind: u32, index: u32) -> Self {
        Self((kind as u64) << 32 | index as u64).word(0)
    }

    /// Adds one word.
    pub(crate) const fn word(self, word: u64) -> Self {
        // The odd multiplier is the fraction of the golden ratio.
        Self((self.0.rotate_left(29) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// Adds words.
    pub(crate) fn words(self, words: &[u64]) -> Self {
        words.iter().fold(self, |sum, word| sum.word(*word))
    }

    /// The sum; the final mix spreads the last word over all bits.
    pub(crate) const fn finish(self) -> u64 {
        let mixed = (self.0 ^ self.0 >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        mixed ^ mixed >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::Checksum;

    #[test]
    fn every_single_bit_changes_the_sum() {
        let words = [0, 1, u64::MAX, 0x1234_5678_9ABC_DEF0];
        let sum = Checksum::of_record(1, 2).words(&words).finish();
        for at in 0..words.len() {
            for bit in 0..64 {
                let mut flipped = words;
                flipped[at] ^= 1 << bit;
                assert_ne!(sum, Checksum::of_record(1, 2).words(&flipped).finish(), "word {at} bit {bit}");
            }
        }
    }

    #[test]
    fn the_sum_depends_on_place_and_order() {
        let sum = Checksum::of_record(1, 2).words(&[3, 4]).finish();
        assert_ne!(sum, Checksum::of_record(1, 3).words(&[3, 4]).finish());
        assert_ne!(sum, Checksum::of_record(2, 2).words(&[3, 4]).finish());
        assert_ne!(sum, Checksum::of_record(1, 2).words(&[4, 3]).finish());
    }
}

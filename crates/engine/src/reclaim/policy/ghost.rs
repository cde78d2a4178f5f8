//! The ghost: remembers pages evicted from the small queue, as many as the main queue may hold.
//!
//! A fixed-size table without locks. A word stands for up to eight neighbouring pages: a bit for each, a part of their
//! hash, and the time of their eviction. Words with the same hash share a cache line, in which the oldest is replaced.
//!
//! # Memory ordering
//! None: each word is an independent hint. If two threads change a word at once, one of the changes is lost. A page
//! that is remembered wrongly, because of a hash collision, is put in the main queue; that happens once in some
//! thousand pages.
//!
//! # Kernel counterpart
//! The shadow entries of `mm/workingset.c`, kept outside the page tree.

use slackwater_sync::shim::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pages covered by a word.
const BLOCK_PAGES: u64 = 8;
/// Words in a cache line.
const LINE: usize = 16;
/// Share of the main queue in the arena, in tenths.
const MAIN_TENTHS: u64 = 9;
/// Words per remembered page, in quarters: lines do not fill evenly.
const WORD_QUARTERS: u64 = 5;
/// The table remembers this many periods. A word records the period in which it was written, modulo 256.
const PERIODS: u64 = 64;

/// See the [module documentation](self).
pub(in crate::reclaim) struct Ghost {
    lines: Box<[Line]>,
    /// Pages in a period.
    period: u64,
    /// Pages evicted so far.
    evicted: AtomicU64,
}

#[repr(align(64))]
struct Line([AtomicU32; LINE]);

/// `tag`, the period, and a bit for each page. No bit set: the word is empty.
#[derive(Copy, Clone)]
struct Word(u32);

impl Word {
    fn new(tag: u16, period: u8, pages: u8) -> Self {
        Self(u32::from(tag) << 16 | u32::from(period) << 8 | u32::from(pages))
    }

    fn tag(self) -> u16 {
        (self.0 >> 16) as u16
    }

    fn age(self, now: u8) -> u8 {
        now.wrapping_sub((self.0 >> 8) as u8)
    }

    fn pages(self) -> u8 {
        self.0 as u8
    }
}

impl Ghost {
    /// A ghost for an arena of `frames`.
    pub(in crate::reclaim) fn new(frames: u64) -> Self {
        let remembered = (frames * MAIN_TENTHS / 10).max(1);
        let lines = (remembered * WORD_QUARTERS / 4).div_ceil(LINE as u64);
        let line = |_| Line(std::array::from_fn(|_| AtomicU32::new(0)));
        Self { lines: (0..lines).map(line).collect(), period: remembered.div_ceil(PERIODS), evicted: AtomicU64::new(0) }
    }

    /// Remembers the pages `pages`, one bit each, of the leaf that begins at page `first` of `file`.
    pub(in crate::reclaim) fn remember(&self, file: u64, first: u64, pages: u64) {
        if pages == 0 {
            return;
        }
        let now = self.now();
        for (block, bits) in blocks(pages) {
            let (line, tag) = self.place(file, first / BLOCK_PAGES + block);
            let is_old = |word: &&AtomicU32| u64::from(Word(word.load(Ordering::Relaxed)).age(now)) > PERIODS;
            line.0.iter().filter(is_old).for_each(|word| word.store(0, Ordering::Relaxed)); // or it looks young again
            let same = |word: &&AtomicU32| Self::finds(word, tag, now).is_some();
            let oldest = |word: &&AtomicU32| {
                let word = Word(word.load(Ordering::Relaxed));
                if word.pages() == 0 { u32::MAX } else { u32::from(word.age(now)) }
            };
            let slot = line.0.iter().find(same).or_else(|| line.0.iter().max_by_key(oldest));
            if let Some(slot) = slot {
                let known = Self::finds(slot, tag, now).map_or(0, Word::pages);
                slot.store(Word::new(tag, now, known | bits).0, Ordering::Relaxed);
            }
        }
        self.evicted.fetch_add(pages.count_ones().into(), Ordering::Relaxed);
    }

    /// Returns which of the pages `pages` are remembered, and forgets them.
    pub(in crate::reclaim) fn recall(&self, file: u64, first: u64, pages: u64) -> u64 {
        if self.evicted.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let now = self.now();
        let mut found = 0;
        for (block, bits) in blocks(pages) {
            let (line, tag) = self.place(file, first / BLOCK_PAGES + block);
            for slot in &line.0 {
                if let Some(word) = Self::finds(slot, tag, now)
                    && word.pages() & bits != 0
                {
                    found |= u64::from(word.pages() & bits) << (block * BLOCK_PAGES);
                    slot.store(word.0 & !u32::from(bits), Ordering::Relaxed);
                }
            }
        }
        found
    }

    fn now(&self) -> u8 {
        (self.evicted.load(Ordering::Relaxed) / self.period) as u8
    }

    /// The word in `slot`, if it is young enough and its tag is `tag`.
    fn finds(slot: &AtomicU32, tag: u16, now: u8) -> Option<Word> {
        let word = Word(slot.load(Ordering::Relaxed));
        (word.tag() == tag && word.pages() != 0 && u64::from(word.age(now)) <= PERIODS).then_some(word)
    }

    fn place(&self, file: u64, block: u64) -> (&Line, u16) {
        let hash = mix(file ^ mix(block));
        let line = (u128::from(hash) * self.lines.len() as u128) >> 64; // always less than the number of lines
        (&self.lines[line as usize], hash as u16)
    }
}

/// The blocks of a leaf that contain some of `pages`, with those pages.
fn blocks(pages: u64) -> impl Iterator<Item = (u64, u8)> {
    let of = move |block| (block, (pages >> (block * BLOCK_PAGES)) as u8);
    (0..u64::from(u64::BITS) / BLOCK_PAGES).map(of).filter(|(_, bits)| *bits != 0)
}

/// Every bit of the result depends on every bit of `number`.
pub(in crate::reclaim) fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let number = (number ^ number >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    number ^ number >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evicted_page_is_remembered_once() {
        let ghost = Ghost::new(1000);
        assert_eq!(ghost.recall(7, 64, u64::MAX), 0);
        ghost.remember(7, 64, 0xff00_0000_0000_0f01);
        ghost.remember(7, 64, 1 << 1);
        assert_eq!((ghost.recall(8, 64, u64::MAX), ghost.recall(7, 128, u64::MAX)), (0, 0));
        assert_eq!(ghost.recall(7, 64, 0b11), 0b11);
        assert_eq!(ghost.recall(7, 64, u64::MAX), 0xff00_0000_0000_0f00);
        assert_eq!(ghost.recall(7, 64, u64::MAX), 0);
    }

    /// Single pages and whole leaves alike: it remembers as many as the main queue holds, and not for much longer.
    #[test]
    fn it_remembers_as_many_pages_as_the_main_queue_holds() {
        const FRAMES: u64 = 16_384;
        const MAIN: u64 = FRAMES * 9 / 10;
        for (pages, apart) in [(1, 1000), (u64::MAX, 1)] {
            let ghost = Ghost::new(FRAMES);
            let each = u64::from(u64::count_ones(pages));
            let count = 3 * MAIN / each;
            (0..count).for_each(|leaf| ghost.remember(1, leaf * 64 * apart, pages));
            let recalled = |from: u64, to: u64| {
                (from..to).map(|leaf| ghost.recall(1, leaf * 64 * apart, pages).count_ones()).sum::<u32>()
            };
            let last = MAIN / each;
            let young = f64::from(recalled(count - last * 9 / 10, count)) / (last * each * 9 / 10) as f64;
            let old = f64::from(recalled(0, count - last * 11 / 10)) / (last * each) as f64;
            assert!(young > 0.97 && old < 0.01, "{pages:b}: {young} of the young, {old} of the old");
        }
    }
}

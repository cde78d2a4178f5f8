//! Allocates the numbers `0..len`, in ascending runs, without a lock.
//!
//! A chunk is 256 numbers with one bit each, set while the number is free. A caller's shard remembers where it took the
//! last number and continues from there until the chunk ends. So one thread gets ascending neighbours, and two threads
//! seldom use one chunk. A shard does not own its chunk: a thread that finds nothing better takes from the chunk of
//! another shard, so no free number is unreachable.
//!
//! Two summaries, a bit per chunk, lead to the next chunk: `whole` to entirely free ones, `some` to those with any free
//! number. Frames, inode slots and volume slots are all allocated this way.
//!
//! A request for 256 numbers or more gets entirely free chunks while there are some, and does not move its shard.
//! Numbers allocated together are usually freed together, so such chunks become entirely free again. A run from the
//! middle of one chunk to the middle of the next would stay in two pieces, and in four after the next such request.
//!
//! # Invariants
//! A1. A number is free exactly while its bit is set. A take clears the bit by compare-exchange, and a free sets it;
//!     nothing else decides ownership.
//! A2. Summaries and shards are hints: a thread that follows one checks the bits, and a lost hint costs a search of all
//!     chunks, never a number.
//! A3. `None` means that at one instant during the call every number was taken, or was being freed by a call still in
//!     flight. Either the counters show this (O2), or all bits were seen clear while no `free` began.
//!
//! # Memory ordering
//! O1. `free` sets the bit with Release, and a take clears it with Acquire: everything that the old owner did happens
//!     before.
//! O2. `free` increments `returned`, then sets the bit. A take clears the bit, then increments `taken` with Release. A
//!     sum reads `taken` with Acquire, then `returned`. So a sum that includes the take of a number also includes the
//!     `free` before it, and `len + returned - taken` is never less than the count of free numbers between the two
//!     reads. If `free` set the bit first, a thread preempted inside `free` could make an allocation fail although a
//!     number is free.
//! O3. The search of all bits loads with Acquire, between two sums of `returned` (A3).
//!
//! # Kernel counterpart
//! The per-CPU page lists before the buddy allocator, with bitmaps for lists.

use slackwater_sync::shard_hint;
use slackwater_sync::shim::atomic::{AtomicU32, AtomicU64, Ordering};

/// Numbers in a chunk: a unit of write-back is one run of that many frames.
pub const RUN_FRAMES: usize = 256;

const RUN: u32 = RUN_FRAMES as u32;
const WORDS: usize = RUN_FRAMES / 64;
/// No chunk, or no shard.
const NONE: u32 = u32::MAX;
/// More shards than this bring no benefit: they only make sums slower.
const SHARDS_MAX: usize = 64;
/// The number of partly free chunks that are compared before the fullest of them is taken.
const CANDIDATES: usize = 8;

pub(crate) struct RunAllocator {
    len: u32,
    chunks: Box<[Chunk]>,
    whole: Box<[AtomicU64]>,
    some: Box<[AtomicU64]>,
    /// A power of two of them.
    shards: Box<[Shard]>,
}

/// On a cache line of its own: shards use neighbouring chunks.
#[repr(align(64))]
struct Chunk {
    free: [AtomicU64; WORDS],
    /// The shard that takes from this chunk, as a hint.
    user: AtomicU32,
}

#[repr(align(128))]
struct Shard {
    /// Where to continue, as a packed [`Place`].
    place: AtomicU64,
    taken: AtomicU64,
    returned: AtomicU64,
}

/// A position in a chunk; `bit` is [`RUN`] past its end.
#[derive(Copy, Clone)]
struct Place {
    chunk: u32,
    bit: u32,
}

impl RunAllocator {
    /// An allocator of `0..len`. `is_free` decides which numbers are free initially.
    pub(crate) fn new(len: u32, cpus: usize, is_free: impl Fn(u32) -> bool) -> Self {
        let bit = |number: u32| u64::from(number < len && is_free(number));
        Self::of_words(len, cpus, |first| (0..64).fold(0, |word, nth| word | bit(first + nth) << nth))
    }

    /// An allocator of `0..len`, of which the first `free` are free initially.
    pub(crate) fn with_first(len: u32, cpus: usize, free: u32) -> Self {
        let ones = |count: u32| u64::MAX.checked_shr(64 - count).unwrap_or(0);
        Self::of_words(len, cpus, |first| ones(free.min(len).saturating_sub(first).min(64)))
    }

    /// `word` returns the bits of 64 numbers, given the first.
    fn of_words(len: u32, cpus: usize, word: impl Fn(u32) -> u64) -> Self {
        let chunks = (0..len.div_ceil(RUN)).map(|chunk| Chunk::new(chunk * RUN, &word)).collect::<Box<[_]>>();
        let shards = (0..cpus.next_power_of_two().min(SHARDS_MAX)).map(|_| Shard::new()).collect::<Box<[_]>>();
        let whole = summary(&chunks, Chunk::is_whole);
        let some = summary(&chunks, |chunk| chunk.count() > 0);
        let free = chunks.iter().map(|chunk| u64::from(chunk.count())).sum::<u64>();
        shards[0].taken.store(u64::from(len) - free, Ordering::Relaxed);
        Self { len, chunks, whole, some, shards }
    }

    /// The number of numbers, free or not.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The number of free ones: at least as many as were free at some instant during the call.
    pub(crate) fn free_count(&self) -> u64 {
        let taken = self.shards.iter().map(|shard| shard.taken.load(Ordering::Acquire)).sum::<u64>();
        (u64::from(self.len) + self.returned()).saturating_sub(taken).min(self.len.into()) // O2
    }

    /// Takes one number.
    pub(crate) fn alloc(&self) -> Option<u32> {
        let mut one = None;
        self.alloc_many(1, |number| one = Some(number));
        one
    }

    /// Takes up to `want` numbers, passes each to `got` in runs as long as possible, and returns their count. It is
    /// less than `want` only if no more are free (A3).
    pub(crate) fn alloc_many(&self, want: u32, mut got: impl FnMut(u32)) -> u32 {
        if want == 0 {
            return 0;
        }
        let (own, shard) = self.shard();
        let mut take = |place: &mut Place, most| {
            let taken = self.chunks.get(place.chunk as usize).map_or(0, |chunk| chunk.take(place, most, &mut got));
            if taken > 0 {
                shard.taken.fetch_add(taken.into(), Ordering::Release); // O2
            }
            taken
        };
        let mut have = 0;
        while want - have >= RUN
            && let Some(chunk) = self.claim_whole(own)
        {
            have += take(&mut Place { chunk, bit: 0 }, RUN);
        }
        if have == want {
            return have;
        }
        let mut place = Place::unpack(shard.place.load(Ordering::Relaxed));
        loop {
            have += take(&mut place, want - have);
            if have == want {
                break;
            }
            match self.find_chunk(own, place.chunk) {
                Some(chunk) => place = Place { chunk, bit: 0 },
                None => break,
            }
        }
        shard.place.store(place.pack(), Ordering::Relaxed);
        have
    }

    /// Whether a chunk is entirely free, as far as is known (A2).
    pub(crate) fn has_whole(&self) -> bool {
        self.whole.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Frees a number.
    ///
    /// # Panics
    /// If it is not taken, or not below the length.
    pub(crate) fn free(&self, number: u32) {
        assert!(number < self.len, "A1: {number} was never allocated, there are {}", self.len);
        let (at, bit) = (number / RUN, number % RUN);
        let chunk = &self.chunks[at as usize];
        self.shard().1.returned.fetch_add(1, Ordering::Relaxed); // O2
        let old = chunk.free[(bit / 64) as usize].fetch_or(1 << (bit % 64), Ordering::Release);
        assert!(old & 1 << (bit % 64) == 0, "A1: {number} is freed twice");
        set(&self.some, at);
        if old | 1 << (bit % 64) == u64::MAX && chunk.is_whole() {
            set(&self.whole, at);
        }
    }

    fn shard(&self) -> (u32, &Shard) {
        let own = shard_hint() & (self.shards.len() - 1);
        (own as u32, &self.shards[own])
    }

    fn returned(&self) -> u64 {
        self.shards.iter().map(|shard| shard.returned.load(Ordering::Acquire)).sum()
    }

    /// The chunk where a shard continues: an entirely free one, else a partly free one that no shard uses, else any
    /// with a free number.
    fn find_chunk(&self, own: u32, last: u32) -> Option<u32> {
        if let Some(last) = self.chunks.get(last as usize) {
            // Another shard may have set the hint since; then its hint is lost.
            last.user.store(NONE, Ordering::Relaxed);
        }
        let found = self.claim_whole(own).or_else(|| self.find_partial(own)).or_else(|| self.find_any())?;
        self.chunks[found as usize].user.store(own, Ordering::Relaxed);
        Some(found)
    }

    fn claim_whole(&self, own: u32) -> Option<u32> {
        bits_from(&self.whole, self.first_word(own))
            .find(|chunk| clear(&self.whole, *chunk) && self.chunks[*chunk as usize].is_whole())
    }

    fn find_partial(&self, own: u32) -> Option<u32> {
        let mut best: Option<(u32, u32)> = None;
        let mut used_by_others = None;
        let mut compared = 0;
        for at in bits_from(&self.some, self.first_word(own)) {
            let chunk = &self.chunks[at as usize];
            let count = chunk.count();
            if count == 0 && self.unlist(at) {
                continue;
            }
            if ![NONE, own].contains(&chunk.user.load(Ordering::Relaxed)) {
                used_by_others = Some(at);
                continue;
            }
            if best.is_none_or(|(most, _)| count > most) {
                best = Some((count, at));
            }
            compared += 1;
            if compared == CANDIDATES {
                break;
            }
        }
        best.map(|(_, at)| at).or(used_by_others)
    }

    /// The search that decides (A3).
    fn find_any(&self) -> Option<u32> {
        while self.free_count() > 0 {
            let returned = self.returned();
            if let Some(at) = self.chunks.iter().position(|chunk| chunk.count() > 0) {
                set(&self.some, at as u32);
                return Some(at as u32);
            }
            if returned == self.returned() {
                break;
            }
        }
        None
    }

    /// Removes an empty chunk from the summary, unless a number is freed meanwhile.
    fn unlist(&self, at: u32) -> bool {
        clear(&self.some, at);
        let is_empty = self.chunks[at as usize].count() == 0;
        if !is_empty {
            set(&self.some, at);
        }
        is_empty
    }

    /// Shards begin their searches at different places.
    fn first_word(&self, own: u32) -> usize {
        own as usize * self.some.len() / self.shards.len()
    }
}

impl Chunk {
    fn new(first: u32, word: impl Fn(u32) -> u64) -> Self {
        let free = std::array::from_fn(|at| AtomicU64::new(word(first + at as u32 * 64)));
        Self { free, user: AtomicU32::new(NONE) }
    }

    fn count(&self) -> u32 {
        self.free.iter().map(|word| word.load(Ordering::Acquire).count_ones()).sum() // O3
    }

    fn is_whole(&self) -> bool {
        self.free.iter().all(|word| word.load(Ordering::Relaxed) == u64::MAX)
    }

    /// Takes up to `want` numbers from `place` on, and moves `place` behind the last one.
    fn take(&self, place: &mut Place, want: u32, got: &mut impl FnMut(u32)) -> u32 {
        let mut have = 0;
        while have < want && place.bit < RUN {
            let word = place.bit / 64;
            let (mut taken, count) = take_lowest(&self.free[word as usize], u64::MAX << (place.bit % 64), want - have);
            have += count;
            place.bit = word * 64 + 64 - taken.leading_zeros() % 64;
            while taken != 0 {
                got(place.chunk * RUN + word * 64 + taken.trailing_zeros());
                taken &= taken - 1;
            }
        }
        have
    }
}

impl Place {
    const NOWHERE: Self = Self { chunk: NONE, bit: 0 };

    fn pack(self) -> u64 {
        u64::from(self.chunk) << 32 | u64::from(self.bit)
    }

    fn unpack(packed: u64) -> Self {
        Self { chunk: (packed >> 32) as u32, bit: packed as u32 }
    }
}

impl Shard {
    fn new() -> Self {
        Self { place: AtomicU64::new(Place::NOWHERE.pack()), taken: AtomicU64::new(0), returned: AtomicU64::new(0) }
    }
}

/// Clears up to `want` of the lowest set bits among those in `mask`; returns them and their number.
fn take_lowest(word: &AtomicU64, mask: u64, want: u32) -> (u64, u32) {
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        let (mut rest, mut count) = (seen & mask, 0);
        while rest != 0 && count < want {
            rest &= rest - 1;
            count += 1;
        }
        let taken = seen & mask & !rest;
        if taken == 0 {
            return (0, 0);
        }
        match word.compare_exchange_weak(seen, seen & !taken, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return (taken, count), // O1
            Err(now) => seen = now,
        }
    }
}

fn summary(chunks: &[Chunk], holds: impl Fn(&Chunk) -> bool) -> Box<[AtomicU64]> {
    let word = |chunks: &[Chunk]| chunks.iter().enumerate().map(|(bit, chunk)| u64::from(holds(chunk)) << bit).sum();
    chunks.chunks(64).map(|chunks| AtomicU64::new(word(chunks))).collect()
}

/// Sets a bit of a summary. Usually it is set already, and its cache line stays shared.
fn set(summary: &[AtomicU64], at: u32) {
    let word = &summary[(at / 64) as usize];
    if word.load(Ordering::Relaxed) & 1 << (at % 64) == 0 {
        word.fetch_or(1 << (at % 64), Ordering::Relaxed);
    }
}

/// Clears a bit of a summary and returns whether it was set.
fn clear(summary: &[AtomicU64], at: u32) -> bool {
    summary[(at / 64) as usize].fetch_and(!(1 << (at % 64)), Ordering::Relaxed) & 1 << (at % 64) != 0
}

/// The set bits of a summary, from the word `first` on, wrapping around to it.
fn bits_from(summary: &[AtomicU64], first: usize) -> impl Iterator<Item = u32> {
    (first..summary.len()).chain(0..first).flat_map(|at| {
        let mut word = summary[at].load(Ordering::Relaxed);
        std::iter::from_fn(move || {
            let bit = word.trailing_zeros();
            word &= word.checked_sub(1)?;
            Some(at as u32 * 64 + bit)
        })
    })
}

#[cfg(test)]
mod tests;

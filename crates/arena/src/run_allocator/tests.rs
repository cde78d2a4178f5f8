//! The allocator against a set on one thread, and by several threads at once.

use std::collections::BTreeSet;

use proptest::prelude::*;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU64, Ordering};
use slackwater_sync::shim::thread;

use super::RunAllocator;

fn full(len: u32) -> RunAllocator {
    RunAllocator::with_first(len, 4, len)
}

fn take_all(allocator: &RunAllocator) -> Vec<u32> {
    let mut all = Vec::new();
    allocator.alloc_many(u32::MAX, |number| all.push(number));
    all
}

#[derive(Clone, Debug)]
enum Step {
    Alloc,
    AllocMany(u32),
    /// Frees the n-th number held, modulo their count.
    Free(usize),
    /// Frees all numbers of the chunk of the n-th number held.
    FreeChunk(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Alloc),
        2 => (0_u32..700).prop_map(Step::AllocMany),
        4 => any::<usize>().prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::FreeChunk),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_agrees_with_a_set(len in 1_u32..2000, first in 0_u32..300, steps in prop::collection::vec(step(), 1..200)) {
        // The numbers below `first` are held from the start, as after a crash.
        let first = first.min(len);
        let allocator = RunAllocator::new(len, 4, |number| number >= first);
        prop_assert_eq!(take_all(&RunAllocator::with_first(len, 4, first)), (0..first).collect::<Vec<_>>());
        let mut held = (0..first).collect::<BTreeSet<_>>();
        for step in steps {
            let free = len as usize - held.len();
            match step {
                Step::Alloc => {
                    let number = allocator.alloc();
                    prop_assert_eq!(number.is_some(), free > 0);
                    if let Some(number) = number {
                        prop_assert!(number < len && held.insert(number));
                    }
                }
                Step::AllocMany(want) => {
                    let mut got = Vec::new();
                    let count = allocator.alloc_many(want, |number| got.push(number));
                    prop_assert_eq!(count as usize, free.min(want as usize));
                    prop_assert_eq!(got.len(), count as usize);
                    for number in got {
                        prop_assert!(number < len && held.insert(number));
                    }
                }
                Step::Free(nth) => {
                    if let Some(number) = held.iter().copied().nth(nth % held.len().max(1)) {
                        held.remove(&number);
                        allocator.free(number);
                    }
                }
                Step::FreeChunk(nth) => {
                    let Some(number) = held.iter().copied().nth(nth % held.len().max(1)) else { continue };
                    let start = number - number % super::RUN;
                    for number in held.iter().copied().filter(|number| (start..start + super::RUN).contains(number)) {
                        allocator.free(number);
                    }
                    held.retain(|number| !(start..start + super::RUN).contains(number));
                }
            }
            prop_assert_eq!(allocator.free_count() as usize, len as usize - held.len());
        }
        let rest = take_all(&allocator);
        prop_assert!(rest.iter().all(|number| held.insert(*number)));
        prop_assert_eq!(held.len(), len as usize);
    }
}

#[test]
fn numbers_are_ascending_and_adjacent_while_a_run_lasts() {
    let allocator = full(1024);
    let mut breaks = 0;
    let mut last = allocator.alloc().expect("1024 are free");
    for _ in 1..1024 {
        let number = allocator.alloc().expect("1024 are free");
        breaks += u32::from(number != last + 1);
        last = number;
    }
    assert!(breaks <= 1, "at most where the search wraps: {breaks}");
}

#[test]
fn a_run_comes_whole_from_an_entirely_free_chunk() {
    let allocator = full(8 * 256);
    let first = allocator.alloc().expect("all free");
    let mut run = Vec::new();
    assert_eq!(allocator.alloc_many(255, |number| run.push(number)), 255);
    assert!(run.iter().zip(first + 1..).all(|(number, expected)| *number == expected));
}

/// A large request leaves partly used chunks to others, so its numbers are one run and are freed as one.
#[test]
fn a_large_request_gets_whole_chunks_wherever_the_shard_is() {
    let allocator = full(8 * 256);
    let first = allocator.alloc().expect("all free");
    let mut many = Vec::new();
    assert_eq!(allocator.alloc_many(2 * 256 + 10, |number| many.push(number)), 2 * 256 + 10);
    for chunk in many.chunks_exact(256) {
        assert!(chunk[0] % 256 == 0 && chunk.is_sorted_by(|a, b| a + 1 == *b), "{chunk:?}");
    }
    assert_eq!((many[512], allocator.alloc()), (first + 1, Some(first + 11)));
    assert!(allocator.has_whole());
    take_all(&allocator);
    assert!(!allocator.has_whole());
    many.iter().for_each(|number| allocator.free(*number));
    assert!(allocator.has_whole());
}

#[test]
fn numbers_freed_meanwhile_do_not_break_a_run() {
    let allocator = full(512);
    let numbers = [(); 10].map(|()| allocator.alloc().expect("all free"));
    numbers.iter().for_each(|number| allocator.free(*number));
    assert_eq!(allocator.alloc(), Some(numbers[9] + 1));
}

#[test]
fn the_fullest_of_the_partly_free_chunks_comes_first() {
    let allocator = full(4 * 256);
    take_all(&allocator);
    for number in (0..10).chain(256..300).chain(600..605) {
        allocator.free(number);
    }
    let mut run = Vec::new();
    allocator.alloc_many(44, |number| run.push(number));
    assert!(run.iter().copied().eq(256..300), "{run:?}");
}

#[test]
fn entirely_free_chunks_come_before_partly_free_ones() {
    let allocator = full(4 * 256);
    take_all(&allocator);
    for number in (0..200).chain(512..768) {
        allocator.free(number);
    }
    let mut run = Vec::new();
    allocator.alloc_many(256, |number| run.push(number));
    assert!(run.iter().copied().eq(512..768), "{run:?}");
}

#[test]
#[should_panic(expected = "A1: 3 is freed twice")]
fn a_double_free_panics() {
    let allocator = full(10);
    take_all(&allocator);
    allocator.free(3);
    allocator.free(3);
}

#[test]
#[should_panic(expected = "A1: 10 was never allocated")]
fn a_free_of_an_invalid_number_panics() {
    full(10).free(10);
}

/// A small generator, so that a failure can be repeated with the seed it prints.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn threads_never_hold_the_same_number_and_all_are_freed() {
    const LEN: u32 = 1500;
    let allocator = Arc::new(full(LEN));
    let owners = Arc::new((0..LEN).map(|_| AtomicBool::new(false)).collect::<Vec<_>>());
    let threads = (0..4).map(|seed| {
        let (allocator, owners) = (Arc::clone(&allocator), Arc::clone(&owners));
        thread::spawn(move || {
            let mut random = Random(seed);
            let mut held = Vec::new();
            let give_back = |number: u32| {
                assert!(owners[number as usize].swap(false, Ordering::Relaxed), "{number} was taken away, seed {seed}");
                allocator.free(number);
            };
            for _ in 0..20_000 {
                if random.below(2) == 0 {
                    let before = held.len();
                    allocator.alloc_many(random.below(300) as u32, |number| held.push(number));
                    for number in &held[before..] {
                        assert!(!owners[*number as usize].swap(true, Ordering::Relaxed), "{number} twice, seed {seed}");
                    }
                } else {
                    for _ in 0..random.below(300).min(held.len() as u64) {
                        give_back(held.swap_remove(random.below(held.len() as u64) as usize));
                    }
                }
            }
            held.into_iter().for_each(give_back);
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().expect("no assertion failed"));
    assert_eq!(allocator.free_count(), u64::from(LEN));
    let mut all = take_all(&allocator);
    all.sort_unstable();
    assert!(all.into_iter().eq(0..LEN));
}

/// Four numbers and four threads, and each thread frees its number before it takes the next. So one is always free for
/// the thread that allocates (A3).
#[test]
fn an_allocation_fails_only_if_nothing_is_free() {
    const THREADS: u32 = 4;
    // Numbers far apart, so that a free one may lie behind every search.
    let len = 40_000;
    let allocator = Arc::new(RunAllocator::new(len, 2, |number| number % (len / THREADS) == 0));
    let fails = Arc::new(AtomicU64::new(0));
    let threads = (0..THREADS).map(|_| {
        let (allocator, fails) = (Arc::clone(&allocator), Arc::clone(&fails));
        thread::spawn(move || {
            for _ in 0..50_000 {
                match allocator.alloc() {
                    Some(number) => allocator.free(number),
                    None => drop(fails.fetch_add(1, Ordering::Relaxed)),
                }
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().expect("no assertion failed"));
    assert_eq!(fails.load(Ordering::Relaxed), 0);
}

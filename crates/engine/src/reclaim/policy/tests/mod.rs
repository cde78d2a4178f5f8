//! Compares the policy with a plain model, page by page.

mod leaves;
mod plain;

use proptest::prelude::*;

use self::leaves::Leaves;
use self::plain::Plain;
use super::{Queue, Queues, SWEEP_SLACK};

/// A sequence of page accesses: runs, repetitions and single pages.
fn trace(pages: u64) -> impl Strategy<Value = Vec<u64>> {
    let some = prop_oneof![
        4 => (0..pages).prop_map(|page| vec![page]),
        2 => (0..pages / 8).prop_map(|page| vec![page, page]),
        1 => (0..pages, 1..90_u64).prop_map(move |(from, count)| (from..(from + count).min(pages)).collect()),
    ];
    prop::collection::vec(some, 1..300).prop_map(|runs| runs.concat())
}

proptest! {
    /// Leaves of one page have no effect: it is the policy page by page.
    #[test]
    fn single_pages_are_evicted_as_by_the_plain_policy(trace in trace(400), capacity in 1..60_u64) {
        let (mut leaves, mut plain) = (Leaves::new(capacity), Plain::new(capacity as usize));
        for (nth, page) in trace.into_iter().enumerate() {
            let hit = leaves.access(page * 64);
            prop_assert_eq!(hit, plain.access(page), "access {} of page {}", nth, page);
        }
    }

    #[test]
    fn each_cached_page_is_in_exactly_one_entry(trace in trace(2000), capacity in 1..500_u64) {
        let mut leaves = Leaves::new(capacity);
        for (nth, page) in trace.into_iter().enumerate() {
            leaves.access(page);
            if nth.is_multiple_of(50) {
                leaves.check()?;
            }
        }
        leaves.check()?;
    }

    #[test]
    fn sweeping_does_not_change_the_order(trace in trace(400), capacity in 1..60_u64, period in 1..40_usize) {
        let (mut swept, mut plain) = (Leaves::new(capacity), Plain::new(capacity as usize));
        for (nth, page) in trace.into_iter().enumerate() {
            if nth.is_multiple_of(period) {
                swept.sweep();
            }
            prop_assert_eq!(swept.access(page * 64), plain.access(page), "access {}", nth);
        }
    }
}

/// A file read sequentially takes one entry per leaf, not one per page.
#[test]
fn a_run_of_pages_shares_its_entries() {
    let mut leaves = Leaves::new(10_000);
    (0..6400).for_each(|page| assert!(!leaves.access(page)));
    assert_eq!((leaves.queues.entries(), leaves.queues.pages()), (100, 6400));
}

#[test]
fn a_scan_keeps_pages_used_twice() {
    let mut leaves = Leaves::new(1000);
    for _ in 0..3 {
        (0..700).for_each(|page| _ = leaves.access(page * 64));
    }
    (1_000_000..1_010_000).for_each(|page| assert!(!leaves.access(page)));
    let kept = (0..700).filter(|page| leaves.access(page * 64)).count();
    assert_eq!(kept, 700);
}

#[test]
fn a_queue_is_long_at_twice_the_entries_left_by_the_last_sweep() {
    let mut queues = Queues::new();
    (0..SWEEP_SLACK as u64).for_each(|leaf| queues.push(Queue::Small, leaf, 1));
    assert!(!queues.is_long());
    queues.push(Queue::Small, u64::MAX, 1);
    assert!(queues.is_long());
    let mut taken = queues.take();
    taken.retain(|_, leaf, pages| if *leaf % 2 == 0 { pages } else { 0 });
    queues.put_back(taken);
    assert_eq!((queues.entries(), queues.pages(), queues.is_long()), (SWEEP_SLACK / 2, SWEEP_SLACK as u64 / 2, false));
}

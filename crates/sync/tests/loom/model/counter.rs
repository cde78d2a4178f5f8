//! `PercpuCounter`.

use slackwater_sync::PercpuCounter;
use slackwater_sync::shim::{Arc, thread};

use super::{PLAIN, Scenario};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "a_sum_counts_each_change_once",
        preemptions: None,
        asym: PLAIN,
        body: || {
            // The later change reaches the batch and folds the earlier one too, perhaps during the sum.
            let counter = Arc::new(PercpuCounter::with_shards(1));
            counter.add(5);
            let adder = start_adder(&counter, 100);
            assert!([5, 105].contains(&counter.sum()));
            adder.join().unwrap();
            assert_eq!(counter.sum(), 105);
        },
    },
    Scenario {
        name: "a_sum_after_the_adders_is_exact",
        preemptions: Some(3),
        asym: PLAIN,
        body: || {
            // One shard for all threads; each of two changes reaches the batch only together with the other.
            let counter = Arc::new(PercpuCounter::with_shards(1));
            counter.add(0); // allocates the shards: the lock for that is not modelled
            let adders = [start_adder(&counter, 5), start_adder(&counter, 5)];
            counter.add(-3);
            adders.into_iter().for_each(|adder| adder.join().unwrap());
            assert_eq!(counter.sum(), 7);
            assert!(counter.sum().abs_diff(counter.read()) < counter.max_error());
        },
    },
];

fn start_adder(counter: &Arc<PercpuCounter>, delta: i64) -> thread::JoinHandle<()> {
    let counter = Arc::clone(counter);
    thread::spawn(move || counter.add(delta))
}

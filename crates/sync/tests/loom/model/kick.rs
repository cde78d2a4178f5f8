//! `Kick`.

use slackwater_sync::Kick;
use slackwater_sync::shim::atomic::{AtomicU32, Ordering};
use slackwater_sync::shim::{Arc, thread};

use super::{PLAIN, Scenario, start_with};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "the_worker_counts_the_work_or_makes_another_pass",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let shared = Arc::new(Shared::new());
            shared.produce();
            let producer = shared.start_producer();
            let seen = shared.pass();
            producer.join().unwrap();
            shared.check(seen, 2);
        },
    },
    Scenario {
        name: "of_two_producers_one_wakes_the_worker",
        preemptions: Some(3),
        asym: PLAIN,
        body: || {
            let shared = Arc::new(Shared::new());
            let producers = [shared.start_producer(), shared.start_producer()];
            let seen = shared.pass();
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            shared.check(seen, 2);
        },
    },
];

struct Shared {
    kick: Kick,
    count: AtomicU32,
    /// How often a producer was asked to wake the worker.
    wakes: AtomicU32,
}

impl Shared {
    fn new() -> Self {
        Self { kick: Kick::new(), count: AtomicU32::new(0), wakes: AtomicU32::new(0) }
    }

    fn produce(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.kick.kick() {
            self.wakes.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn start_producer(self: &Arc<Self>) -> thread::JoinHandle<()> {
        start_with(self, |shared| shared.produce())
    }

    /// A pass of the worker, which another event may have woken. Returns the count that it read, if a kick was set.
    fn pass(&self) -> Option<u32> {
        self.kick.take().then(|| self.count.load(Ordering::Relaxed))
    }

    /// The last pass counted all work, or another pass follows; and each kick that was set has woken the worker once.
    fn check(&self, seen: Option<u32>, all: u32) {
        let passes = u32::from(seen.is_some());
        let is_set = self.kick.take();
        assert!(seen == Some(all) || is_set, "the worker has counted {seen:?} of {all}");
        assert_eq!(self.wakes.load(Ordering::Relaxed), passes + u32::from(is_set), "wakes and kicks");
    }
}

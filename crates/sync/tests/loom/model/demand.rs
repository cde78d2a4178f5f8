//! `Demand`.

use slackwater_sync::Demand;
use slackwater_sync::shim::atomic::{AtomicU32, Ordering};
use slackwater_sync::shim::{Arc, thread};

use super::{PLAIN, Scenario, start_with};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "the_taker_finds_the_resource_or_is_woken",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let shared = Arc::new(Shared::new());
            let giver = shared.start_giver();
            let found = shared.take();
            giver.join().unwrap();
            assert!(found || shared.wakes.load(Ordering::Relaxed) != 0, "neither found nor woken");
        },
    },
    Scenario {
        name: "two_takers_find_the_resource_or_are_woken",
        preemptions: Some(3),
        asym: PLAIN,
        body: || {
            let shared = Arc::new(Shared::new());
            let giver = shared.start_giver();
            let other = start_with(&shared, |shared| shared.take());
            let found = [shared.take(), other.join().unwrap()];
            giver.join().unwrap();
            let woken = shared.wakes.load(Ordering::Relaxed) != 0;
            assert!(woken || found == [true, true], "neither found nor woken");
        },
    },
];

struct Shared {
    demand: Demand,
    left: AtomicU32,
    /// How often the waiters were woken.
    wakes: AtomicU32,
}

impl Shared {
    fn new() -> Self {
        Self { demand: Demand::new(), left: AtomicU32::new(0), wakes: AtomicU32::new(0) }
    }

    /// Whether something is left, at the first look or the second.
    fn take(&self) -> bool {
        let is_left = || self.left.load(Ordering::Relaxed) != 0;
        is_left() || {
            self.demand.raise();
            is_left()
        }
    }

    fn start_giver(self: &Arc<Self>) -> thread::JoinHandle<()> {
        start_with(self, |shared| {
            shared.left.fetch_add(1, Ordering::Relaxed);
            if shared.demand.is_raised() {
                shared.demand.lower();
                shared.wakes.fetch_add(1, Ordering::Relaxed);
            }
        })
    }
}

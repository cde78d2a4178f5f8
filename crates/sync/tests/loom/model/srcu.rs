//! `Srcu`.

use std::time::Duration;

use slackwater_sync::rcu::Srcu;
use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};
use slackwater_sync::shim::model::RaceCell;
use slackwater_sync::shim::{Arc, thread};

use super::{PLAIN, Scenario, start_with};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "an_srcu_section_keeps_the_object_it_found",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let shared = Arc::new(Shared::new());
            let reader = start_reader(&shared);
            shared.replace();
            reader.join().unwrap();
        },
    },
    Scenario {
        name: "a_grace_period_waits_for_a_reader_that_is_rounds_behind",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let shared = Arc::new(Shared::new());
            let reader = start_reader(&shared);
            shared.srcu.synchronize();
            shared.replace();
            reader.join().unwrap();
        },
    },
    Scenario {
        name: "two_srcu_writers_both_end",
        preemptions: Some(3),
        asym: PLAIN,
        body: || {
            let shared = Arc::new(Shared::new());
            let reader = start_reader(&shared);
            let other = start_with(&shared, |shared| shared.srcu.synchronize());
            shared.replace();
            other.join().unwrap();
            reader.join().unwrap();
        },
    },
];

/// Two objects, of which one is current. The first is freed when it was replaced.
struct Shared {
    srcu: Srcu,
    current: AtomicUsize,
    objects: [RaceCell<bool>; 2],
}

impl Shared {
    fn new() -> Self {
        let objects = [true; 2].map(RaceCell::new);
        Self { srcu: Srcu::new(Duration::ZERO), current: AtomicUsize::new(0), objects }
    }

    fn replace(&self) {
        self.current.store(1, Ordering::Relaxed);
        self.srcu.synchronize();
        self.objects[0].set(false);
    }
}

fn start_reader(shared: &Arc<Shared>) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        let _section = shared.srcu.read_lock();
        assert!(shared.objects[shared.current.load(Ordering::Relaxed)].get(), "used after it was freed");
    })
}

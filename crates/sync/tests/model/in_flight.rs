//! `InFlight`.

use slackwater_sync::InFlight;
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};
use slackwater_sync::shim::model::RaceCell;
use slackwater_sync::shim::{Arc, thread};

use super::{PLAIN, Scenario};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "the_owner_waits_or_the_worker_backs_off",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let owner = Arc::new(Owner::new());
            let worker = owner.start_worker();
            owner.close();
            worker.join().unwrap();
        },
    },
    Scenario {
        name: "the_owner_waits_for_two_workers",
        preemptions: Some(3),
        asym: PLAIN,
        body: || {
            let owner = Arc::new(Owner::new());
            let workers = [owner.start_worker(), owner.start_worker()];
            owner.close();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        },
    },
    Scenario {
        name: "two_drains_both_end",
        preemptions: Some(2),
        asym: PLAIN,
        body: || {
            let owner = Arc::new(Owner::new());
            let worker = owner.start_worker();
            let other = thread::spawn({
                let owner = Arc::clone(&owner);
                move || owner.in_flight.drain()
            });
            owner.close();
            other.join().unwrap();
            worker.join().unwrap();
        },
    },
];

struct Owner {
    in_flight: InFlight,
    is_open: AtomicBool,
    /// False once freed.
    object: RaceCell<bool>,
}

impl Owner {
    fn new() -> Self {
        Self { in_flight: InFlight::new(), is_open: AtomicBool::new(true), object: RaceCell::new(true) }
    }

    fn start_worker(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let owner = Arc::clone(self);
        thread::spawn(move || {
            owner.in_flight.pin();
            if owner.is_open.load(Ordering::Relaxed) {
                assert!(owner.object.get(), "used after it was freed");
            }
            owner.in_flight.unpin();
        })
    }

    fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        self.in_flight.drain();
        self.object.set(false);
    }
}

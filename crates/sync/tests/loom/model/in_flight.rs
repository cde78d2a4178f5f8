//! `InFlight`.

use slackwater_sync::shim::atomic::{AtomicBool, Ordering};
use slackwater_sync::shim::model::RaceCell;
use slackwater_sync::shim::{Arc, thread};
use slackwater_sync::{InFlight, Mutex, Rank};

use super::{PLAIN, Scenario, start_with};

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
            let other = start_with(&owner, |owner| owner.in_flight.drain());
            owner.close();
            other.join().unwrap();
            worker.join().unwrap();
        },
    },
    Scenario {
        name: "the_owner_takes_back_queued_work",
        preemptions: None,
        asym: PLAIN,
        body: || {
            let owner = Arc::new(Owner::new());
            let worker = owner.start_queuer();
            owner.close();
            worker.join().unwrap();
        },
    },
    Scenario {
        name: "the_owner_takes_back_the_work_that_another_thread_leaves",
        preemptions: Some(3),
        asym: PLAIN,
        body: || {
            let owner = Arc::new(Owner::new());
            let queuer = owner.start_queuer();
            let worker = start_with(&owner, |owner| owner.work_off_queue());
            owner.close();
            queuer.join().unwrap();
            worker.join().unwrap();
        },
    },
];

const QUEUE: Rank = Rank::new(80, "QUEUE");

struct Owner {
    in_flight: InFlight,
    is_open: AtomicBool,
    /// False once freed.
    object: RaceCell<bool>,
    /// Pinned operations that wait for a thread.
    queue: Mutex<u32>,
}

impl Owner {
    fn new() -> Self {
        Self {
            in_flight: InFlight::new(),
            is_open: AtomicBool::new(true),
            object: RaceCell::new(true),
            queue: Mutex::new(QUEUE, 0),
        }
    }

    fn work(&self) {
        assert!(self.object.get(), "used after it was freed");
    }

    fn start_worker(self: &Arc<Self>) -> thread::JoinHandle<()> {
        start_with(self, |owner| {
            owner.in_flight.pin();
            if owner.is_open.load(Ordering::Relaxed) {
                owner.work();
            }
            owner.in_flight.unpin();
        })
    }

    /// A worker that leaves the work to another thread (F3).
    fn start_queuer(self: &Arc<Self>) -> thread::JoinHandle<()> {
        start_with(self, |owner| {
            owner.in_flight.pin();
            if owner.is_open.load(Ordering::Relaxed) {
                owner.work();
                let mut queue = owner.queue.lock();
                if owner.is_open.load(Ordering::Relaxed) {
                    *queue += 1;
                    return;
                }
            }
            owner.in_flight.unpin();
        })
    }

    fn work_off_queue(&self) {
        let taken = std::mem::take(&mut *self.queue.lock());
        for _ in 0..taken {
            self.work();
            self.in_flight.unpin();
        }
    }

    /// Takes queued work back, since no other thread may run it.
    fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        self.in_flight.drain_with(|| {
            let taken = std::mem::take(&mut *self.queue.lock());
            (0..taken).for_each(|_| self.in_flight.unpin());
        });
        self.object.set(false);
    }
}

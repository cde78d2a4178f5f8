//! `PercpuRef`.
//!
//! The callback runs on the domain's worker, which is one more thread, so the bounds are small.

use std::time::Duration;

use slackwater_sync::PercpuRef;
use slackwater_sync::rcu::{Domain, Options};
use slackwater_sync::shim::model::RaceCell;
use slackwater_sync::shim::{Arc, thread};

use super::{BOTH, Scenario, start_with};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "the_callback_follows_all_work_under_references",
        preemptions: Some(3),
        asym: BOTH,
        body: || {
            let object = Arc::new(Object::new());
            object.count.get();
            let user = object.start(|object| {
                object.value.set(object.value.get() + 1);
                object.count.put();
            });
            assert!(object.count.kill());
            user.join().unwrap();
            assert_eq!(object.value_when_released(), 1);
        },
    },
    Scenario {
        name: "a_reference_taken_in_time_delays_the_callback",
        preemptions: Some(2),
        asym: BOTH,
        body: || {
            let object = Arc::new(Object::new());
            let user = object.start(|object| {
                if object.count.tryget_live() {
                    assert!(!object.is_released(), "used after its release");
                    object.count.put();
                }
            });
            object.count.kill();
            user.join().unwrap();
            object.value_when_released();
            assert!(!object.count.tryget_live() && !object.count.tryget());
        },
    },
    Scenario {
        name: "a_killed_ref_can_be_taken_while_it_is_held",
        preemptions: Some(2),
        asym: BOTH,
        body: || {
            let object = Arc::new(Object::new());
            object.count.get();
            object.count.kill();
            assert!(!object.count.tryget_live());
            let user = object.start(|object| {
                if object.count.tryget() {
                    assert!(!object.is_released(), "used after its release");
                    object.count.put();
                }
            });
            assert!(object.count.tryget());
            object.count.put_many(2);
            user.join().unwrap();
            object.value_when_released();
        },
    },
    Scenario {
        name: "references_move_between_cpus",
        preemptions: Some(2),
        asym: BOTH,
        body: || {
            // Each thread has a shard of its own: the user's falls below zero by the number of references that main's
            // has in excess.
            let object = Arc::new(Object::new());
            object.count.get();
            object.count.get();
            let user = object.start(|object| {
                object.count.get();
                object.count.put_many(2);
            });
            object.count.kill();
            assert!(!object.is_released(), "used after its release");
            object.count.put();
            user.join().unwrap();
            object.value_when_released();
        },
    },
];

/// An object with references, and the result of its callback.
struct Object {
    domain: Arc<Domain>,
    count: PercpuRef,
    value: Arc<RaceCell<u32>>,
    /// The content of `value` that the callback found, once it has run.
    released: Arc<RaceCell<Option<u32>>>,
}

impl Object {
    fn new() -> Self {
        let domain = Arc::new(Domain::with(Options { coalesce: Duration::ZERO, ..Options::default() }));
        let (value, released) = (Arc::new(RaceCell::new(0)), Arc::new(RaceCell::new(None)));
        let count = PercpuRef::new(Arc::clone(&domain), {
            let (value, released) = (Arc::clone(&value), Arc::clone(&released));
            move || released.set(Some(value.get()))
        });
        Self { domain, count, value, released }
    }

    fn start(self: &Arc<Self>, work: fn(&Self)) -> thread::JoinHandle<()> {
        start_with(self, move |object| work(object))
    }

    /// Whether the callback has run, as a holder of a reference reads it: a callback that runs too early races with
    /// this read.
    fn is_released(&self) -> bool {
        self.released.get().is_some()
    }

    /// The value that the callback found. The ref has been killed, and every reference put.
    fn value_when_released(&self) -> u32 {
        self.domain.barrier();
        self.released.get().expect("the callback has run")
    }
}

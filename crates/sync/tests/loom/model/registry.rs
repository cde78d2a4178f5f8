//! `Registry`.
//!
//! Removed elements are freed on the domain's worker, which is one more thread, so the bounds are small.

use std::time::Duration;

use slackwater_sync::rcu::{Domain, Options};
use slackwater_sync::shim::model::RaceCell;
use slackwater_sync::shim::{Arc, thread};
use slackwater_sync::{Registration, Registry};

use super::{BOTH, Scenario};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "a_walk_sees_a_registered_element",
        preemptions: None,
        asym: BOTH,
        body: || {
            let registry = registry();
            let walker = start_walk(&registry);
            let _registered = register(&registry);
            walker.join().unwrap();
        },
    },
    Scenario {
        name: "a_walk_sees_the_element_behind_a_removed_one",
        preemptions: Some(3),
        asym: BOTH,
        body: || {
            let registry = registry();
            let first = register(&registry);
            let walker = start_walk(&registry);
            let _second = register(&registry);
            unregister(&registry, first);
            walker.join().unwrap();
        },
    },
    Scenario {
        name: "no_walk_uses_an_unregistered_element",
        preemptions: Some(3),
        asym: BOTH,
        body: || {
            let registry = registry();
            let registered = register(&registry);
            let walker = start_walk(&registry);
            unregister(&registry, registered);
            walker.join().unwrap();
        },
    },
    Scenario {
        name: "the_last_of_two_walks_lets_the_owner_continue",
        preemptions: Some(2),
        asym: BOTH,
        body: || {
            let registry = registry();
            let registered = register(&registry);
            let walkers = [start_walk(&registry), start_walk(&registry)];
            unregister(&registry, registered);
            walkers.into_iter().for_each(|walker| walker.join().unwrap());
        },
    },
];

/// The registered value: true while it may be used.
type Value = Arc<RaceCell<bool>>;
type Values = Registry<Value>;

fn registry() -> Arc<Values> {
    let domain = Domain::with(Options { coalesce: Duration::ZERO, ..Options::default() });
    Arc::new(Registry::new(Arc::new(domain)))
}

fn register(registry: &Values) -> Registration<Value> {
    let value = RaceCell::new(false);
    value.set(true);
    registry.register(Arc::new(value))
}

/// The owner writes the value at once, which races with every use that is not ordered before.
fn unregister(registry: &Values, registration: Registration<Value>) {
    let value = Arc::clone(&registration);
    assert!(registry.unregister(registration).is_ok());
    value.set(false);
}

fn start_walk(registry: &Arc<Values>) -> thread::JoinHandle<()> {
    let registry = Arc::clone(registry);
    thread::spawn(move || registry.for_each(|value| assert!(value.get(), "not created yet, or already unregistered")))
}

//! `Registry`.
//!
//! What leaves is freed on the domain's worker, a thread more, so the bounds are small.

use std::time::Duration;

use slackwater_sync::rcu::{Domain, Options};
use slackwater_sync::shim::model::RaceCell;
use slackwater_sync::shim::{Arc, thread};
use slackwater_sync::{Registration, Registry};

use super::{BOTH, Scenario};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "a_walk_sees_what_was_registered",
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
        name: "a_walk_sees_what_follows_one_that_has_gone",
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
        name: "nobody_uses_what_has_been_unregistered",
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
        name: "of_two_walks_the_last_lets_the_owner_go_on",
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

/// What is registered: true while it may be used.
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

/// The owner takes the value apart at once, which races with every use that does not come before.
fn unregister(registry: &Values, registration: Registration<Value>) {
    let value = Arc::clone(&registration);
    assert!(registry.unregister(registration).is_ok());
    value.set(false);
}

fn start_walk(registry: &Arc<Values>) -> thread::JoinHandle<()> {
    let registry = Arc::clone(registry);
    thread::spawn(move || registry.for_each(|value| assert!(value.get(), "not made yet, or gone")))
}

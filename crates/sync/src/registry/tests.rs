//! `Registry` on real threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::*;
use crate::rcu::Options;
use crate::shim::atomic::AtomicBool;
use crate::shim::thread;

fn new_registry<T: Send + Sync + 'static>() -> (Arc<Registry<T>>, Arc<Domain>) {
    let domain = Arc::new(Domain::with(Options { coalesce: Duration::ZERO, ..Options::default() }));
    (Arc::new(Registry::new(Arc::clone(&domain))), domain)
}

fn walked(registry: &Registry<u32>) -> Vec<u32> {
    let mut found = Vec::new();
    registry.for_each(|value| found.push(*value));
    found
}

/// A walk that stays at the first element until `finish`.
struct Walker {
    go_on: Arc<Completion>,
    thread: thread::JoinHandle<Vec<u32>>,
}

impl Walker {
    fn start(registry: &Arc<Registry<u32>>) -> Self {
        let (is_there, go_on) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
        let thread = thread::spawn({
            let (registry, is_there, go_on) = (Arc::clone(registry), Arc::clone(&is_there), Arc::clone(&go_on));
            move || {
                let mut found = Vec::new();
                registry.for_each(|value| {
                    found.push(*value);
                    if found.len() == 1 {
                        is_there.complete();
                        go_on.wait();
                    }
                });
                found
            }
        });
        is_there.wait();
        Self { go_on, thread }
    }

    /// The elements that it has found.
    fn finish(self) -> Vec<u32> {
        self.go_on.complete();
        self.thread.join().unwrap()
    }
}

#[test]
fn walks_find_what_is_registered_in_order() {
    let (registry, domain) = new_registry();
    assert!(walked(&registry).is_empty());
    let mut registrations: Vec<_> = (0..5).map(|value| registry.register(value)).collect();
    assert_eq!(walked(&registry), [0, 1, 2, 3, 4]);
    // In the middle, at the end, at the front.
    for (at, left) in [(2, vec![0, 1, 3, 4]), (3, vec![0, 1, 3]), (0, vec![1, 3])] {
        assert!(registry.unregister(registrations.remove(at)).is_ok());
        assert_eq!(walked(&registry), left);
    }
    let last = registry.register(5);
    assert_eq!((walked(&registry), *last), (vec![1, 3, 5], 5));
    for registration in registrations.into_iter().chain([last]) {
        assert!(registry.unregister(registration).is_ok());
    }
    assert!(walked(&registry).is_empty());
    domain.barrier();
    let _again = registry.register(6);
    assert_eq!(walked(&registry), [6]);
}

#[test]
fn a_user_of_one_element_delays_no_other() {
    let (registry, _domain) = new_registry();
    let slow = registry.register(0);
    let other = registry.register(1);
    let walker = Walker::start(&registry);
    assert!(registry.unregister(other).is_ok());
    let late = registry.register(2);
    assert_eq!(walked(&registry), [0, 2], "nor does another walk");
    assert_eq!(walker.finish(), [0, 2]);
    assert!(registry.unregister(slow).is_ok() && registry.unregister(late).is_ok());
}

#[test]
fn unregister_waits_for_the_users_of_the_element() {
    let (registry, _domain) = new_registry();
    let (slow, next) = (registry.register(0), registry.register(1));
    let walker = Walker::start(&registry);
    let is_gone = Arc::new(AtomicBool::new(false));
    let owner = thread::spawn({
        let (registry, is_gone) = (Arc::clone(&registry), Arc::clone(&is_gone));
        move || {
            assert!(registry.unregister(slow).is_ok());
            is_gone.store(true, Ordering::Release);
        }
    });
    while walked(&registry) != [1] {
        thread::yield_now(); // the initial reference has not been put yet
    }
    assert!(!is_gone.load(Ordering::Acquire), "the walk uses it");
    assert_eq!(walker.finish(), [0, 1], "and continues from it");
    owner.join().unwrap();
    assert!(is_gone.load(Ordering::Acquire));
    assert!(registry.unregister(next).is_ok());
}

#[test]
fn a_thread_inside_a_walk_cannot_unregister() {
    let (registry, _domain) = new_registry();
    let (other, _other_domain) = new_registry::<u32>();
    let own = raw::Mutex::new(Some(registry.register(0)));
    let elsewhere = raw::Mutex::new(Some(other.register(7)));
    registry.for_each(|_| {
        assert!(registry.is_walking() && !other.is_walking());
        let refused = registry.unregister(own.lock().take().unwrap());
        *own.lock() = refused.err();
        assert!(own.lock().is_some(), "refused, and given back");
        if let Some(registration) = elsewhere.lock().take() {
            assert!(other.unregister(registration).is_ok());
        }
    });
    assert!(!registry.is_walking());
    assert_eq!(walked(&registry), [0]);
    assert!(registry.unregister(own.into_inner().unwrap()).is_ok());
}

#[test]
fn a_walk_may_register_and_walk() {
    let (registry, _domain) = new_registry();
    let _first = registry.register(0);
    let added = raw::Mutex::new(Vec::new());
    let mut seen = Vec::new();
    registry.for_each(|value| {
        seen.push((*value, walked(&registry).len()));
        if *value < 3 {
            added.lock().push(registry.register(value + 1));
        }
    });
    assert_eq!(seen, [(0, 1), (1, 2), (2, 3), (3, 4)]);
}

#[test]
fn a_user_that_panics_leaves_no_reference() {
    let (registry, _domain) = new_registry();
    let registration = registry.register(0);
    let panicked = catch_unwind(AssertUnwindSafe(|| registry.for_each(|_| panic!("at the element"))));
    assert!(panicked.is_err() && !registry.is_walking());
    assert!(registry.unregister(registration).is_ok());
}

#[test]
fn values_are_dropped_once() {
    let (registry, domain) = new_registry();
    let values = [(); 3].map(|()| Arc::new(()));
    let [first, second, third] = values.each_ref().map(|value| registry.register(Arc::clone(value)));
    let alive = || values.each_ref().map(Arc::strong_count);
    assert!(registry.unregister(second).is_ok());
    assert_eq!(alive(), [2, 2, 2], "one element alone is not freed");
    for _ in 1..RETIRED {
        assert!(registry.unregister(registry.register(Arc::new(()))).is_ok());
    }
    domain.barrier();
    assert_eq!(alive(), [2, 1, 2]);
    drop(first);
    assert_eq!(alive(), [2, 1, 2], "an element without a registration stays");
    drop(registry);
    assert_eq!(alive(), [1, 1, 2]);
    drop(third);
    assert_eq!(alive(), [1, 1, 1]);
}

#[test]
#[should_panic(expected = "unregistered where it was not registered")]
fn a_registration_belongs_to_its_registry() {
    let (registry, _domain) = new_registry();
    let (other, _other_domain) = new_registry();
    let _ = other.unregister(registry.register(0));
}

/// The value of each element is whether its owner has unregistered it.
#[test]
fn walks_beside_owners_never_meet_an_unregistered_element() {
    let (registry, _domain) = new_registry::<AtomicBool>();
    let is_over = Arc::new(AtomicBool::new(false));
    let walkers: Vec<_> = (0..2)
        .map(|_| {
            let (registry, is_over) = (Arc::clone(&registry), Arc::clone(&is_over));
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    registry.for_each(|is_gone| {
                        thread::yield_now();
                        assert!(!is_gone.load(Ordering::Relaxed), "used after it was unregistered");
                    });
                }
            })
        })
        .collect();
    let owners: Vec<_> = (0..3)
        .map(|_| {
            let registry = Arc::clone(&registry);
            thread::spawn(move || {
                for _ in 0..300 {
                    let registrations = [(); 3].map(|()| registry.register(AtomicBool::new(false)));
                    for registration in registrations {
                        let element = Arc::downgrade(&registration.element);
                        assert!(registry.unregister(registration).is_ok());
                        if let Some(element) = element.upgrade() {
                            element.value.store(true, Ordering::Relaxed);
                        }
                    }
                }
            })
        })
        .collect();
    owners.into_iter().for_each(|owner| owner.join().unwrap());
    is_over.store(true, Ordering::Relaxed);
    walkers.into_iter().for_each(|walker| walker.join().unwrap());
}

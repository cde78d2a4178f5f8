//! RCU.

use std::time::Duration;

use slackwater_sync::rcu::{Domain, Options, RcuArc, RcuList};
use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};
use slackwater_sync::shim::model::RaceCell;
use slackwater_sync::shim::{Arc, smp_mb, thread};

use super::{BOTH, PLAIN, Scenario, start_with};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "a_section_keeps_the_object_it_found",
        preemptions: None,
        asym: BOTH,
        body: || {
            let shared = Arc::new(Shared::new());
            let reader = start_with(&shared, |shared| shared.read());
            shared.replace(Domain::synchronize_expedited);
            reader.join().unwrap();
        },
    },
    Scenario {
        name: "a_later_section_does_not_hide_an_earlier_one",
        preemptions: Some(4),
        asym: BOTH,
        body: || {
            let shared = Arc::new(Shared::new());
            let reader = start_with(&shared, |shared| {
                shared.read();
                let _section = shared.domain.read_lock();
            });
            shared.replace(Domain::synchronize_expedited);
            reader.join().unwrap();
        },
    },
    Scenario {
        name: "an_inner_section_leaves_the_outer_one_open",
        preemptions: Some(4),
        asym: BOTH,
        body: || {
            let shared = Arc::new(Shared::new());
            let reader = start_with(&shared, |shared| {
                let outer = shared.domain.read_lock();
                let inner = shared.domain.read_lock();
                drop(outer);
                shared.read();
                drop(inner);
            });
            shared.replace(Domain::synchronize_expedited);
            reader.join().unwrap();
        },
    },
    Scenario {
        name: "the_order_of_a_grace_period_reaches_a_third_thread",
        preemptions: Some(4),
        asym: BOTH,
        body: || {
            let domain = Arc::new(domain());
            let words: Arc<[AtomicUsize; 3]> = Arc::new([0; 3].map(AtomicUsize::new));
            let reader = thread::spawn({
                let (domain, words) = (Arc::clone(&domain), Arc::clone(&words));
                move || {
                    let _section = domain.read_lock();
                    let is_before = words[0].load(Ordering::Relaxed) == 0;
                    words[1].store(1, Ordering::Relaxed);
                    is_before
                }
            });
            let third = start_with(&words, |words| {
                words[2].store(1, Ordering::Relaxed);
                smp_mb();
                words[1].load(Ordering::Relaxed) == 0
            });
            words[0].store(1, Ordering::Relaxed);
            domain.synchronize_expedited();
            let is_third_later = words[2].load(Ordering::Relaxed) == 0;
            let is_before = reader.join().unwrap();
            let has_missed = third.join().unwrap();
            assert!(!(is_before && is_third_later && has_missed), "the section came before, yet is not seen");
        },
    },
    Scenario {
        name: "both_kinds_of_grace_period_wait_for_one_reader",
        preemptions: Some(3),
        asym: BOTH,
        body: || {
            let shared = Arc::new(Shared::new());
            let reader = start_with(&shared, |shared| shared.read());
            let other = start_with(&shared, |shared| shared.domain.synchronize());
            shared.replace(Domain::synchronize_expedited);
            other.join().unwrap();
            reader.join().unwrap();
        },
    },
    Scenario {
        name: "a_shared_grace_period_serves_each_caller",
        preemptions: Some(3),
        asym: BOTH,
        body: || {
            let shared = [Arc::new(Shared::new()), Arc::new(Shared::new())];
            let reader = thread::spawn({
                let shared = shared.clone();
                move || {
                    let _section = shared[0].domain.read_lock();
                    shared.iter().for_each(|shared| shared.look());
                }
            });
            let other = thread::spawn({
                let shared = shared.clone();
                move || shared[1].replace(|_| shared[0].domain.synchronize())
            });
            shared[0].replace(Domain::synchronize);
            other.join().unwrap();
            reader.join().unwrap();
        },
    },
    Scenario {
        name: "the_worker_sees_what_callbacks_captured",
        preemptions: Some(2),
        asym: PLAIN,
        body: || {
            let domain = Arc::new(domain());
            let other = start_with(&domain, |domain| call(&domain));
            call(&domain);
            other.join().unwrap();
        },
    },
    Scenario {
        name: "barrier_runs_every_earlier_callback",
        preemptions: Some(3),
        asym: PLAIN,
        body: || {
            let domain = domain();
            let has_run = Arc::new(RaceCell::new(false));
            domain.call({
                let has_run = Arc::clone(&has_run);
                move || has_run.set(true)
            });
            domain.barrier();
            assert!(has_run.get());
        },
    },
    Scenario {
        name: "a_reader_finds_a_whole_value_that_is_not_freed",
        preemptions: Some(3),
        asym: BOTH,
        body: || {
            let (domain, cell) = rcu_arc();
            let reader = thread::spawn({
                let (domain, cell) = (Arc::clone(&domain), Arc::clone(&cell));
                move || cell.read(&domain.read_lock()).look()
            });
            cell.replace(&domain, Value::new());
            reader.join().unwrap();
        },
    },
    Scenario {
        name: "a_counted_value_outlives_its_section",
        preemptions: Some(3),
        asym: PLAIN,
        body: || {
            let (domain, cell) = rcu_arc();
            let reader = thread::spawn({
                let (domain, cell) = (Arc::clone(&domain), Arc::clone(&cell));
                // Never dropped: loom does not see that reference counts order the last drop.
                move || std::mem::ManuallyDrop::new(cell.load(&domain)).look()
            });
            cell.replace(&domain, Value::new());
            reader.join().unwrap();
        },
    },
    Scenario {
        name: "a_writer_acquires_the_value_of_another_writer",
        preemptions: Some(2),
        asym: PLAIN,
        body: || {
            let (domain, cell) = rcu_arc();
            let other = thread::spawn({
                let (domain, cell) = (Arc::clone(&domain), Arc::clone(&cell));
                move || cell.replace(&domain, Value::new())
            });
            cell.replace(&domain, Value::new());
            other.join().unwrap();
        },
    },
    Scenario {
        name: "a_reader_sees_an_added_node",
        preemptions: None,
        asym: BOTH,
        body: || {
            let (domain, list) = rcu_list();
            let reader = start_reader(&domain, &list);
            list.push(Value::new());
            reader.join().unwrap();
        },
    },
    Scenario {
        name: "a_reader_sees_the_node_behind_a_removed_one",
        preemptions: Some(3),
        asym: BOTH,
        body: || {
            let (domain, list) = rcu_list();
            let reader = start_reader(&domain, &list);
            let gone = Value::new();
            list.push(Value::new());
            list.push(Arc::clone(&gone));
            assert!(list.remove(&domain, |value| Arc::ptr_eq(value, &gone)));
            reader.join().unwrap();
        },
    },
];

/// The value in an `RcuArc` or an `RcuList`: written when it is created and when it is freed.
struct Value(RaceCell<bool>);

impl Value {
    fn new() -> Arc<Self> {
        let value = Self(RaceCell::new(false));
        value.0.set(true);
        Arc::new(value)
    }

    fn look(&self) {
        assert!(self.0.get(), "seen before it was created, or after it was freed");
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

fn rcu_arc() -> (Arc<Domain>, Arc<RcuArc<Value>>) {
    let domain = domain();
    let cell = RcuArc::new(&domain, Value::new());
    (Arc::new(domain), Arc::new(cell))
}

type Values = Arc<RcuList<Arc<Value>>>;

fn rcu_list() -> (Arc<Domain>, Values) {
    let domain = domain();
    let list = RcuList::new(&domain);
    (Arc::new(domain), Arc::new(list))
}

fn start_reader(domain: &Arc<Domain>, list: &Values) -> thread::JoinHandle<()> {
    let (domain, list) = (Arc::clone(domain), Arc::clone(list));
    thread::spawn(move || list.iter(&domain.read_lock()).for_each(|value| value.look()))
}

fn domain() -> Domain {
    Domain::with(Options { coalesce: Duration::ZERO, ..Options::default() })
}

/// A callback that uses what its caller wrote just before.
fn call(domain: &Domain) {
    let captured = Arc::new(RaceCell::new(0));
    captured.set(1);
    domain.call(move || assert_eq!(captured.get(), 1));
}

/// Two objects, of which one is current. The other does not exist yet or was freed.
struct Shared {
    domain: Domain,
    current: AtomicUsize,
    objects: [RaceCell<bool>; 2],
}

impl Shared {
    fn new() -> Self {
        Self { domain: domain(), current: AtomicUsize::new(0), objects: [true; 2].map(RaceCell::new) }
    }

    fn read(&self) {
        let _section = self.domain.read_lock();
        self.look();
    }

    fn look(&self) {
        assert!(self.objects[self.current.load(Ordering::Relaxed)].get(), "used after it was freed");
    }

    fn replace(&self, wait: impl FnOnce(&Domain)) {
        self.current.store(1, Ordering::Relaxed);
        wait(&self.domain);
        self.objects[0].set(false);
    }
}

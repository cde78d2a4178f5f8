//! The primitives under random schedules: deadlocks and lost wakes, with more threads than loom supports.
#![cfg(slackwater_shuttle)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use slackwater_sync::rcu::{Domain, Options};
use slackwater_sync::shim::atomic::{AtomicBool, AtomicUsize, Ordering};
use slackwater_sync::shim::{Arc, model, thread};
use slackwater_sync::{InFlight, Mutex, PercpuRef, Rank, Registry, RwWord, lock_two};

const EXECUTIONS: usize = 2000;

type Job = Box<dyn FnOnce() + Send>;

fn job(run: impl FnOnce() + Send + 'static) -> Job {
    Box::new(run)
}

/// Runs each job on a thread of its own, and waits for all.
fn run(jobs: Vec<Job>) {
    let threads: Vec<_> = jobs.into_iter().map(thread::spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn readers_and_writers_of_a_word_all_get_the_lock() {
    model::check(EXECUTIONS, || {
        let word = Arc::new(RwWord::new());
        let readers = (0..3).map(|_| {
            let word = Arc::clone(&word);
            job(move || {
                word.read();
                word.read_unlock();
            })
        });
        let writers = (0..3).map(|_| {
            let word = Arc::clone(&word);
            job(move || {
                word.write();
                word.write_unlock();
            })
        });
        run(readers.chain(writers).collect());
        assert!(!word.is_locked());
    });
}

#[test]
fn lock_two_does_not_deadlock_in_any_order() {
    const LIST: Rank = Rank::new(50, "LIST");
    model::check(EXECUTIONS, || {
        let locks: Arc<[Mutex<u32>; 3]> = Arc::new([1, 2, 3].map(|key| Mutex::keyed(LIST, key, 0)));
        let movers = [(0, 1), (1, 2), (2, 0), (1, 0)].map(|(from, to)| {
            let locks = Arc::clone(&locks);
            job(move || {
                let (mut from, mut to) = lock_two(&locks[from], &locks[to]);
                *from += 1;
                *to += 1;
            })
        });
        // By key, like a thread that takes the two one after the other.
        let nested = {
            let locks = Arc::clone(&locks);
            job(move || {
                let _first = locks[0].lock();
                let _second = locks[2].lock();
            })
        };
        run(movers.into_iter().chain([nested]).collect());
        assert_eq!(locks.iter().map(|lock| *lock.lock()).sum::<u32>(), 8);
    });
}

#[test]
fn grace_periods_of_both_kinds_end_and_protect_readers() {
    model::check(EXECUTIONS, || {
        let domain = Arc::new(Domain::with(Options { coalesce: Duration::from_millis(1), ..Options::default() }));
        let is_freed: Arc<[AtomicBool; 4]> = Arc::new([const { AtomicBool::new(false) }; 4]);
        let current = Arc::new(AtomicUsize::new(0));
        let readers = (0..3).map(|_| {
            let (domain, is_freed, current) = (Arc::clone(&domain), Arc::clone(&is_freed), Arc::clone(&current));
            job(move || {
                for _ in 0..2 {
                    let _section = domain.read_lock();
                    let object = current.load(Ordering::Acquire);
                    assert!(!is_freed[object].load(Ordering::Relaxed), "used after it was freed");
                }
            })
        });
        let writers = [Domain::synchronize, Domain::synchronize_expedited, Domain::synchronize].into_iter().zip(1..);
        let writers = writers.map(|(wait, new)| {
            let (domain, is_freed, current) = (Arc::clone(&domain), Arc::clone(&is_freed), Arc::clone(&current));
            job(move || {
                let old = current.swap(new, Ordering::AcqRel);
                wait(&domain);
                is_freed[old].store(true, Ordering::Relaxed);
            })
        });
        run(readers.chain(writers).collect());
    });
}

#[test]
fn barrier_runs_the_callbacks_of_every_thread() {
    model::check(EXECUTIONS, || {
        let domain = Arc::new(Domain::with(Options { coalesce: Duration::ZERO, ..Options::default() }));
        let count = Arc::new(AtomicUsize::new(0));
        let callers = (0..3).map(|_| {
            let (domain, count) = (Arc::clone(&domain), Arc::clone(&count));
            job(move || {
                domain.call(move || _ = count.fetch_add(1, Ordering::Relaxed));
            })
        });
        run(callers.collect());
        domain.barrier();
        assert_eq!(count.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn several_drains_wait_for_several_workers() {
    model::check(EXECUTIONS, || {
        let owner = Arc::new((InFlight::new(), AtomicBool::new(true), AtomicBool::new(false)));
        let workers = (0..3).map(|_| {
            let owner = Arc::clone(&owner);
            job(move || {
                let (in_flight, is_open, is_freed) = &*owner;
                in_flight.pin();
                assert!(!is_open.load(Ordering::Relaxed) || !is_freed.load(Ordering::Relaxed));
                in_flight.unpin();
            })
        });
        let drains = (0..2).map(|_| {
            let owner = Arc::clone(&owner);
            job(move || {
                let (in_flight, is_open, is_freed) = &*owner;
                is_open.store(false, Ordering::Relaxed);
                in_flight.drain();
                is_freed.store(true, Ordering::Relaxed);
            })
        });
        run(workers.chain(drains).collect());
    });
}

#[test]
fn a_ref_is_released_once_by_the_last_put() {
    model::check(EXECUTIONS, || {
        let domain = Arc::new(Domain::with(Options { coalesce: Duration::ZERO, ..Options::default() }));
        let releases = Arc::new(AtomicUsize::new(0));
        let count = Arc::new(PercpuRef::new(Arc::clone(&domain), {
            let releases = Arc::clone(&releases);
            move || _ = releases.fetch_add(1, Ordering::Relaxed)
        }));
        let kills = Arc::new(AtomicUsize::new(0));
        let killers = (0..2).map(|_| {
            let (count, kills) = (Arc::clone(&count), Arc::clone(&kills));
            Box::new(move || _ = kills.fetch_add(usize::from(count.kill()), Ordering::Relaxed))
                as Box<dyn FnOnce() + Send>
        });
        let users = [PercpuRef::tryget, PercpuRef::tryget_live, PercpuRef::tryget].into_iter().map(|take| {
            let (count, releases) = (Arc::clone(&count), Arc::clone(&releases));
            job(move || {
                for _ in 0..2 {
                    if take(&count) {
                        count.get();
                        assert_eq!(releases.load(Ordering::Relaxed), 0, "used after its release");
                        count.put_many(2);
                    }
                }
            })
        });
        run(killers.chain(users).collect());
        domain.barrier();
        assert_eq!((kills.load(Ordering::Relaxed), releases.load(Ordering::Relaxed)), (1, 1));
    });
}

#[test]
fn neighbours_in_a_registry_can_be_unregistered_beside_walks() {
    model::check(EXECUTIONS, || {
        let domain = Arc::new(Domain::with(Options { coalesce: Duration::ZERO, ..Options::default() }));
        let registry = Arc::new(Registry::new(Arc::clone(&domain)));
        let owners = (0..3).map(|_| {
            let registry = Arc::clone(&registry);
            // These exist before the walks begin; others are registered and removed during them.
            let mut registered = Some(registry.register(Arc::new(AtomicBool::new(false))));
            job(move || {
                for _ in 0..2 {
                    let fresh = || registry.register(Arc::new(AtomicBool::new(false)));
                    let registration = registered.take().unwrap_or_else(fresh);
                    let is_gone = Arc::clone(&registration);
                    assert!(registry.unregister(registration).is_ok());
                    is_gone.store(true, Ordering::Relaxed);
                }
            })
        });
        let owners: Vec<_> = owners.collect();
        let walkers = (0..2).map(|_| {
            let registry = Arc::clone(&registry);
            job(move || {
                registry.for_each(|is_gone| {
                    thread::yield_now();
                    assert!(!is_gone.load(Ordering::Relaxed), "used after it was unregistered");
                });
            })
        });
        run(owners.into_iter().chain(walkers).collect());
        let mut left = 0;
        registry.for_each(|_| left += 1);
        assert_eq!(left, 0);
    });
}

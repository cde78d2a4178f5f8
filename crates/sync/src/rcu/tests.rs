//! RCU on real threads, in both modes of the fences.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::Completion;
use crate::shim::atomic::AtomicUsize;
use crate::shim::thread;

fn domains() -> [Arc<Domain>; 2] {
    [Fences::Membarrier, Fences::Full].map(|fences| {
        let domain = Domain::with(Options { fences, coalesce: Duration::ZERO, ..Options::default() });
        assert_eq!(domain.fences(), fences, "this kernel has no membarrier");
        Arc::new(domain)
    })
}

#[test]
fn a_grace_period_waits_for_an_open_section() {
    for domain in domains() {
        for wait in [Domain::synchronize, Domain::synchronize_expedited] {
            let has_waited = Arc::new(AtomicBool::new(false));
            let section = domain.read_lock();
            let waiter = thread::spawn({
                let (domain, has_waited) = (Arc::clone(&domain), Arc::clone(&has_waited));
                move || {
                    wait(&domain);
                    has_waited.store(true, Ordering::Release);
                }
            });
            // The waiter's mark shows that it is about to sleep.
            while section.record.sleepers.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            assert!(!has_waited.load(Ordering::Acquire));
            drop(section);
            waiter.join().unwrap();
        }
    }
}

#[test]
fn nested_sections_end_with_the_last_guard() {
    let domain = Domain::new();
    let [a, b, c] = [(); 3].map(|()| domain.read_lock());
    let record = a.record;
    drop(a);
    drop(c);
    assert_ne!(record.section.load(Ordering::Relaxed), 0);
    drop(b);
    assert_eq!(record.section.load(Ordering::Relaxed), 0);
}

#[test]
fn waiting_inside_a_section_panics() {
    let [domain, other] = domains();
    let section = domain.read_lock();
    for wait in [Domain::synchronize, Domain::synchronize_expedited, Domain::barrier] {
        assert!(catch_unwind(AssertUnwindSafe(|| wait(&domain))).is_err());
    }
    drop(section);
    other.synchronize_expedited();
    domain.synchronize_expedited();
}

#[test]
fn a_record_outlives_its_thread_and_is_reused() {
    let domain = Arc::new(Domain::new());
    for _ in 0..20 {
        let reader = thread::spawn({
            let domain = Arc::clone(&domain);
            move || drop(domain.read_lock())
        });
        reader.join().unwrap();
    }
    assert_eq!(domain.core.records.len(), 1);
}

#[test]
fn a_thread_outlives_its_domains() {
    for _ in 0..3 {
        let [a, b] = domains();
        let section = a.read_lock();
        drop(b.read_lock());
        drop(section);
        drop(a.read_lock());
    }
}

#[test]
fn callbacks_run_in_order_and_before_the_barrier_ends() {
    for domain in domains() {
        let last = Arc::new(AtomicUsize::new(0));
        for index in 0..100 {
            let last = Arc::clone(&last);
            domain.call(move || assert_eq!(last.fetch_add(1, Ordering::Relaxed), index));
        }
        domain.barrier();
        assert_eq!(last.load(Ordering::Relaxed), 100);
    }
}

#[test]
fn a_dropped_domain_runs_its_callbacks() {
    let has_run = Arc::new(AtomicBool::new(false));
    let domain = Domain::new();
    domain.call({
        let has_run = Arc::clone(&has_run);
        move || has_run.store(true, Ordering::Relaxed)
    });
    drop(domain);
    assert!(has_run.load(Ordering::Relaxed));
}

#[test]
fn a_callback_may_drop_its_domain() {
    let domain = Arc::new(Domain::new());
    let dropped = Arc::new(Completion::new());
    domain.call({
        let (domain, dropped) = (Arc::clone(&domain), Arc::clone(&dropped));
        move || {
            drop(domain);
            dropped.complete();
        }
    });
    drop(domain);
    dropped.wait();
}

#[test]
fn a_stalled_grace_period_names_its_reader() {
    let reported = Arc::new(Completion::new());
    let on_stall = Box::new({
        let reported = Arc::clone(&reported);
        move |stall: &Stall<'_>| {
            // A reader that gets no CPU is reported again.
            if !reported.is_complete() {
                assert_eq!((stall.reader, stall.waited.as_secs()), ("slow reader", 1));
            }
            reported.complete_all();
        }
    });
    let domain = Arc::new(Domain::with(Options { on_stall, ..Options::default() }));
    let inside = Arc::new(Completion::new());
    let reader = thread::spawn_named("slow reader", {
        let (domain, inside, reported) = (Arc::clone(&domain), Arc::clone(&inside), Arc::clone(&reported));
        move || {
            let _section = domain.read_lock();
            inside.complete();
            // Not `wait`: a section must not sleep. This one spins, to stall.
            while !reported.is_complete() {
                thread::yield_now();
            }
        }
    });
    inside.wait();
    domain.synchronize_expedited();
    reader.join().unwrap();
}

#[test]
fn the_domain_of_the_process_is_set_up_once() {
    init_global(Options::default());
    assert!(!init_global(Options::default()));
    drop(global().read_lock());
    global().synchronize_expedited();
}

/// Two readers follow a pointer to one of many objects while two writers replace it and mark the old object as freed.
#[test]
fn readers_never_find_a_freed_object() {
    const OBJECTS: usize = 8;
    const TURNS: usize = 400;
    for domain in domains() {
        let is_freed: Arc<[AtomicBool; OBJECTS]> = Arc::new([const { AtomicBool::new(false) }; OBJECTS]);
        let current = Arc::new(AtomicUsize::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (domain, is_freed) = (Arc::clone(&domain), Arc::clone(&is_freed));
                let (current, is_over) = (Arc::clone(&current), Arc::clone(&is_over));
                thread::spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let _section = domain.read_lock();
                        let object = current.load(Ordering::Acquire);
                        for _ in 0..10 {
                            assert!(!is_freed[object].load(Ordering::Relaxed), "used after it was freed");
                        }
                    }
                })
            })
            .collect();
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (domain, is_freed, current) = (Arc::clone(&domain), Arc::clone(&is_freed), Arc::clone(&current));
                thread::spawn(move || {
                    // Each writer has objects of its own, so that none becomes current again before it is reset.
                    for turn in 0..TURNS {
                        let new = 2 * (turn % (OBJECTS / 2)) + writer;
                        is_freed[new].store(false, Ordering::Relaxed);
                        let old = current.swap(new, Ordering::AcqRel);
                        if turn % 40 == 0 {
                            domain.synchronize()
                        } else {
                            domain.synchronize_expedited()
                        }
                        // The other writer waits for its own objects; this one knows only that its own are out of use.
                        if old % 2 == writer && old != new {
                            is_freed[old].store(true, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    }
}

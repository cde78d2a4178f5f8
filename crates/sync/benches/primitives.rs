//! The cost of each primitive, compared with two libraries for a similar purpose.
//!
//! The threads that run beside a measured thread use the machine's other CPUs. With more threads than CPUs, the
//! scheduler's time slices are measured too.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use slackwater_sync::rcu::{Domain, Options, Srcu};
use slackwater_sync::shim::atomic::{AtomicBool, AtomicI64, Ordering};
use slackwater_sync::shim::{Arc, Fences, spin_loop, thread};
use slackwater_sync::{InFlight, Kick, PercpuCounter, PercpuRef, Registry, RwWord};

fn domain(fences: Fences) -> Arc<Domain> {
    Arc::new(Domain::with(Options { fences, coalesce: Duration::ZERO, ..Options::default() }))
}

/// Runs `measure` while `count` threads repeat `work`.
fn in_company(count: usize, work: impl Fn() + Clone + Send + 'static, measure: impl FnOnce()) {
    let is_over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..count)
        .map(|_| {
            let (is_over, work) = (Arc::clone(&is_over), work.clone());
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    work();
                }
            })
        })
        .collect();
    measure();
    is_over.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("the work does not panic");
    }
}

/// Work that the compiler must do under the guard, without moving the guard through memory.
#[inline(always)]
fn in_section<G>(_guard: G) {
    black_box(());
}

fn read_sections(c: &mut Criterion) {
    let mut group = c.benchmark_group("read section");
    for (name, fences) in [("membarrier", Fences::Membarrier), ("full fence", Fences::Full)] {
        let domain = domain(fences);
        group.bench_function(name, |b| b.iter(|| in_section(domain.read_lock())));
    }
    let domain = slackwater_sync::rcu::global();
    group.bench_function("membarrier, nested", |b| {
        let _outer = domain.read_lock();
        b.iter(|| in_section(domain.read_lock()));
    });
    group.bench_function("crossbeam-epoch pin", |b| b.iter(|| in_section(crossbeam_epoch::pin())));
    let collector = seize::Collector::new();
    group.bench_function("seize enter", |b| b.iter(|| in_section(collector.enter())));
    group.finish();
}

fn grace_periods(c: &mut Criterion) {
    let mut group = c.benchmark_group("synchronize_expedited");
    for (mode, fences) in [("membarrier", Fences::Membarrier), ("full fence", Fences::Full)] {
        for (readers, pauses, name) in [(0, 0, "no reader"), (1, 0, "1 tight reader"), (2, 200, "2 readers of 10 us")] {
            let domain = domain(fences);
            let work = {
                let domain = Arc::clone(&domain);
                move || {
                    let _section = domain.read_lock();
                    (0..pauses).for_each(|_| spin_loop());
                }
            };
            in_company(readers, work, || {
                group.bench_function(format!("{mode}, {name}"), |b| b.iter(|| domain.synchronize_expedited()));
            });
        }
    }
    group.finish();
    let domain = domain(Fences::Membarrier);
    c.bench_function("synchronize, no reader, no delay", |b| b.iter(|| domain.synchronize()));
}

fn in_flight(c: &mut Criterion) {
    let in_flight = InFlight::new();
    c.bench_function("in-flight pin and unpin", |b| {
        b.iter(|| {
            in_flight.pin();
            in_flight.unpin();
        });
    });
    c.bench_function("in-flight drain, idle", |b| b.iter(|| in_flight.drain()));
}

fn kicks(c: &mut Criterion) {
    let kick = Kick::new();
    c.bench_function("kick and take", |b| b.iter(|| (kick.kick(), kick.take())));
    let _ = kick.kick();
    c.bench_function("kick, set already", |b| b.iter(|| kick.kick()));
}

fn counters(c: &mut Criterion) {
    for company in [0, 1] {
        let mut group = c.benchmark_group(format!("add, {} threads", company + 1));
        let counter = Arc::new(PercpuCounter::new());
        let shared = Arc::new(AtomicI64::new(0));
        let add = {
            let counter = Arc::clone(&counter);
            move || counter.add(black_box(1))
        };
        in_company(company, add.clone(), || {
            group.bench_function("percpu counter", |b| b.iter(&add));
        });
        let add = {
            let shared = Arc::clone(&shared);
            move || _ = shared.fetch_add(black_box(1), Ordering::Relaxed)
        };
        in_company(company, add.clone(), || {
            group.bench_function("shared atomic", |b| b.iter(&add));
        });
        group.finish();
    }
    let counter = PercpuCounter::new();
    c.bench_function("percpu counter sum", |b| b.iter(|| counter.sum()));
}

fn references(c: &mut Criterion) {
    for company in [0, 1] {
        let mut group = c.benchmark_group(format!("get and put, {} threads", company + 1));
        for (name, fences) in [("percpu ref", Fences::Membarrier), ("percpu ref, full fence", Fences::Full)] {
            let count = Arc::new(PercpuRef::new(domain(fences), || ()));
            let pair = move || {
                count.get();
                count.put();
            };
            in_company(company, pair.clone(), || {
                group.bench_function(name, |b| b.iter(&pair));
            });
        }
        let arc = Arc::new(());
        let pair = move || drop(black_box(Arc::clone(&arc)));
        in_company(company, pair.clone(), || {
            group.bench_function("arc clone and drop", |b| b.iter(&pair));
        });
        group.finish();
    }
    let domain = domain(Fences::Membarrier);
    c.bench_function("percpu ref, made and dropped", |b| b.iter(|| PercpuRef::new(Arc::clone(&domain), || ())));
}

fn registries(c: &mut Criterion) {
    for registered in [0, 1000] {
        let mut group = c.benchmark_group(format!("registry of {registered}"));
        let registry = Registry::new(domain(Fences::Membarrier));
        let _registrations: Vec<_> = (0..registered).map(|n| registry.register(n)).collect();
        group.bench_function("register and unregister", |b| {
            b.iter(|| registry.unregister(registry.register(black_box(0))).is_ok());
        });
        group.bench_function("walk", |b| b.iter(|| registry.for_each(|n| _ = black_box(n))));
        group.finish();
    }
    let mut group = c.benchmark_group("srcu");
    for (name, coalesce) in [("at once", Duration::ZERO), ("1 ms to join", Duration::from_millis(1))] {
        let srcu = Srcu::new(coalesce);
        group.bench_function(format!("synchronize, no reader, {name}"), |b| b.iter(|| srcu.synchronize()));
    }
    let srcu = Srcu::new(Duration::ZERO);
    group.bench_function("section", |b| b.iter(|| in_section(srcu.read_lock())));
    group.finish();
}

fn locks(c: &mut Criterion) {
    let word = RwWord::new();
    c.bench_function("rw word read and unlock", |b| {
        b.iter(|| {
            word.read();
            word.read_unlock();
        });
    });
    c.bench_function("rw word write and unlock", |b| {
        b.iter(|| {
            word.write();
            word.write_unlock();
        });
    });
}

criterion_group!(primitives, read_sections, grace_periods, in_flight, kicks, counters, references, registries, locks);
criterion_main!(primitives);

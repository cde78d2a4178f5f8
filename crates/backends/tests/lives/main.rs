//! Volumes and tenants that live and die while backends fail, slow down and hang. Nothing of them is left.
//!
//! A run of the test has some hundreds of lives. A hundred thousand take some minutes, and are a part of `cargo xtask
//! heavy`: `cargo test --release -p slackwater-backends --test lives -- --ignored --nocapture`. `SLACKWATER_SEED`
//! repeats a run, as far as threads can be repeated.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod gauges;
mod life;
mod memory;
#[path = "../rig/mod.rs"]
#[allow(dead_code, reason = "shared with other tests, which use the rest")]
mod rig;
mod volume;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::{Duration, Instant};

use slackwater::backend::MemBackend;
use slackwater::{Engine, Memcg, Namespace, Tunables, UmountGrace};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::SystemClock;
use slackwater_testkit::Random;

use gauges::Gauges;
use life::Life;
use rig::{ARENA_BYTES, PAGE, count_engine_panics, turn};

/// Lives that run side by side.
const THREADS: u64 = 3;
const TENANTS: u64 = 5;
/// Lives between two checks of the gauges.
const ROUND: u64 = 150;
/// Far longer than a round takes.
const PATIENCE: Duration = Duration::from_secs(300);
/// After this many lives, every cache that is kept for the next life has been filled.
const SETTLED: u64 = 1000;
/// Allowed growth of memory after that. Half of it was observed, from pages that are partly used. A leak of 60 bytes in
/// each of a hundred thousand lives would exceed it.
const GROWTH_BYTES: u64 = 6 << 20;

/// State shared by all lives.
struct World {
    engine: Engine,
    namespace: Namespace,
    tenants: Mutex<Vec<Arc<Memcg>>>,
    /// Backends of volumes that have ended.
    gone: Mutex<Vec<Weak<MemBackend>>>,
    /// How often each ending was reached.
    ends: [AtomicU64; volume::ENDS.len()],
}

/// An engine that is always at work.
fn hasty() -> Tunables {
    Tunables {
        dirty_writeback: Duration::from_millis(5),
        dirty_expire: Duration::from_millis(10),
        commit_interval: Duration::from_millis(5),
        retry_min: Duration::from_millis(1),
        retry_max: Duration::from_millis(5),
        ..Tunables::default()
    }
}

fn limit(random: &mut Random) -> Option<u64> {
    match random.below(4) {
        0 => None,
        1 => Some(random.below(4) * PAGE as u64),
        _ => Some(random.below(200) * PAGE as u64),
    }
}

impl World {
    fn new() -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).unwrap();
        let engine = Engine::new(arena, Arc::new(SystemClock), hasty());
        let namespace = Namespace::new(&engine, UmountGrace::default());
        Self { engine, namespace, tenants: Mutex::default(), gone: Mutex::default(), ends: Default::default() }
    }

    /// A random tenant of those that exist.
    fn tenant(&self, random: &mut Random) -> Arc<Memcg> {
        let tenants = self.tenants.lock().unwrap();
        Arc::clone(&tenants[random.below(TENANTS) as usize])
    }

    /// Takes a tenant offline and replaces it by another, which may be below another tenant.
    fn replace_tenant(&self, random: &mut Random) {
        let (nth, parent) = (random.below(TENANTS) as usize, random.below(3 * TENANTS) as usize);
        let mut tenants = self.tenants.lock().unwrap();
        let parent = tenants.get(parent).filter(|_| parent != nth).cloned();
        let fresh = self.engine.memcg_create("fresh", parent.as_ref(), limit(random));
        let old = std::mem::replace(&mut tenants[nth], fresh);
        drop(tenants);
        assert!(self.engine.memcg_offline(&old));
    }

    /// Lives that begin together and end before the next round.
    fn round(self: &Arc<Self>, seed: u64, lives: u64) {
        *self.tenants.lock().unwrap() =
            (0..TENANTS).map(|nth| self.engine.memcg_create(&nth.to_string(), None, None)).collect();
        let (ended, end) = mpsc::channel();
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (world, ended) = (Arc::clone(self), ended.clone());
                std::thread::spawn(move || {
                    let random = Random::new(seed ^ thread << 56);
                    let mut life = Life { world: &world, thread, random };
                    (0..lives.div_ceil(THREADS)).for_each(|_| life.live());
                    ended.send(()).unwrap();
                })
            })
            .collect();
        drop(ended);
        let deadline = Instant::now() + PATIENCE;
        for _ in 0..THREADS {
            match end.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(()) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break, // the join below says why
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    rig::stacks::write_all();
                    let volumes: Vec<_> = self.engine.volumes().iter().map(|sb| sb.name().to_owned()).collect();
                    // A thread that a signal wakes up here has missed its wake-up.
                    let then = end.recv_timeout(Duration::from_secs(5));
                    panic!("a life does not end; mounted are {volumes:?}; after a signal to each thread: {then:?}");
                }
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        for tenant in std::mem::take(&mut *self.tenants.lock().unwrap()) {
            assert!(self.engine.memcg_offline(&tenant));
        }
    }
}

#[test]
fn nothing_is_left_of_hundreds_of_lives() {
    nothing_is_left_of(4 * ROUND);
}

#[test]
#[ignore = "long: some minutes"]
fn nothing_is_left_of_a_hundred_thousand_lives_nor_has_memory_grown() {
    nothing_is_left_of(100_000);
}

fn nothing_is_left_of(lives: u64) {
    let _turn = turn(); // the gauges are those of the whole process
    let seed = std::env::var("SLACKWATER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(u64::from(std::process::id()));
    println!("seed {seed}");
    count_engine_panics();
    let world = Arc::new(World::new());
    // Threads that the engine starts when they are first needed, and keeps.
    world.round(seed, ROUND);
    let gauges = Gauges::new(&world);
    let (begun, mut lived, mut settled_bytes) = (Instant::now(), ROUND, None);
    while lived < lives {
        world.round(seed + lived, ROUND);
        lived += ROUND;
        gauges.expect_zero(&world);
        let bytes = memory::bytes_in_use();
        let settled = *settled_bytes.get_or_insert(bytes);
        if lived <= SETTLED {
            settled_bytes = None;
        } else {
            assert!(bytes < settled + GROWTH_BYTES, "{bytes} bytes after {lived} lives, {settled} after the first");
        }
        if lived % (20 * ROUND) == 0 || lived >= lives {
            let ends = world.ends.each_ref().map(|end| end.load(Ordering::Relaxed));
            assert!(ends.iter().all(|count| *count > 0), "{ends:?}");
            let ends: Vec<_> = volume::ENDS.iter().zip(ends).map(|(end, count)| format!("{end:?} {count}")).collect();
            println!("{lived} lives in {:?}: {}", begun.elapsed(), ends.join(", "));
            println!("{bytes} bytes of memory, {settled} after the first thousand");
        }
    }
    assert!(world.engine.inodes_switched() > 0, "tenants took files over from each other");
    println!("{} inodes switched, {:?}", world.engine.inodes_switched(), world.engine.drain_stats());
}

//! Random histories of the backend against a plain model, with failing requests and crashes between any two requests.
//!
//! A history is a few dozen calls at the storage interface, on few names and files, so that they meet. Requests to the
//! store fail, are lost or hang, and at a random request the store goes away. The tree that the next process finds is
//! compared with the model:
//!
//! - After a crash of the machine, which leaves the store alone, the tree is that of *one* moment between the last
//!   successful sync and the crash.
//! - After a kill of the process, which leaves its local log too, the tree is that of the last moment.
//!
//! At the end, the check of the volume finds no fault, and the collector leaves no orphan and takes nothing that lives.
//!
//! Each history runs on one thread, and its choices are its seed; the order of background requests is not.
//! `SLACKWATER_SEED=n` runs that one alone, `SLACKWATER_HISTORIES=n` that many; together, that many from that seed on.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../bucket/mod.rs"]
#[allow(dead_code, reason = "a part of what other test programs use")]
mod bucket;
mod history;
mod memory;
mod object;
mod tree;
mod walk;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use history::{Tally, run};
use memory::Memory;
use object::Object;
use world::Subject;

const FIRST_SEED: u64 = 0x0b1e_0000;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Runs `count` histories on all cores, from the first seed on.
fn run_many<S: Subject>(count: u64) -> Tally {
    let first = variable("SLACKWATER_SEED").unwrap_or(FIRST_SEED);
    let next = AtomicU64::new(first);
    let total = Mutex::new(Tally::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return;
            }
            match std::panic::catch_unwind(|| run::<S>(seed)) {
                Ok(tally) => total.lock().unwrap().add(&tally),
                Err(panic) => {
                    eprintln!("model: history failed; repeat it with SLACKWATER_SEED={seed}");
                    std::panic::resume_unwind(panic);
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let tally = total.into_inner().unwrap();
    println!("model: histories {count}, seeds {first}..{}: {tally:?}", first + count);
    tally
}

/// How many histories run unless `SLACKWATER_HISTORIES` is set.
const HISTORIES: u64 = 30;
/// In that many histories, every kind of fault and crash occurs.
const VARIED_HISTORIES: u64 = 300;

/// How many histories to run: one if a seed is given, and `default` otherwise.
fn histories(default: u64) -> u64 {
    variable("SLACKWATER_HISTORIES").unwrap_or_else(|| variable("SLACKWATER_SEED").map_or(default, |_| 1))
}

#[test]
fn the_model_agrees_with_the_reference_backend() {
    let tally = run_many::<Memory>(histories(100));
    let is_varied = variable("SLACKWATER_SEED").is_some() || (tally.names > 0 && tally.reads > 0);
    assert!(is_varied, "{tally:?}");
}

#[test]
fn after_a_crash_the_volume_is_that_of_one_moment() {
    let count = histories(HISTORIES);
    let missing = run_many::<Object>(count).missing();
    assert!(count < VARIED_HISTORIES || missing.is_empty(), "never happened: {missing:?}");
}

//! Random histories against a plain model. A read always returns the written data, and a backend that crashes has every
//! byte for which an fsync returned 0.
//!
//! A history is a few dozen operations on a few files: writes, appends, truncations, reads, syncs, clock steps,
//! failing, short and held units, failing commits, death of the process, crash of the machine, a backend that forgets,
//! unlinks and remounts. All of it runs on one thread with a clock that is moved by hand, so a history is its seed.
//! `SLACKWATER_SEED=n` runs that one alone, `SLACKWATER_HISTORIES=n` that many.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod history;
mod world;

use history::run;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

fn run_many(count: u64) {
    if let Some(seed) = variable("SLACKWATER_SEED") {
        println!("{:#?}", run(seed));
        return;
    }
    let count = variable("SLACKWATER_HISTORIES").unwrap_or(count);
    let first = 0x5eed_0000;
    println!("model: histories {count}, seeds {first}..{}", first + count);
    let mut total = history::Tally::default();
    for seed in first..first + count {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(tally) => total.add(&tally),
            Err(panic) => {
                eprintln!("model: history failed; repeat it with SLACKWATER_SEED={seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("model: {total:?}");
    assert!(count < 1000 || total.is_varied(), "some operation never ran: {total:?}");
}

#[test]
fn hundreds_of_random_histories_lose_no_byte() {
    run_many(300);
}

#[test]
#[ignore = "long: for a release build"]
fn ten_thousand_random_histories_lose_no_byte() {
    run_many(10_000);
}

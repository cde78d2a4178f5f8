//! Mounts that are killed at any moment; and machines that crash, so that arena and local log are gone too.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::programs::{Programs, State};
use crate::rig::{Scratch, bytes, is_enough, need_fuse};
use crate::store::{Store, stores};

const RUNS_VARIABLE: &str = "SLACKWATER_MOUNT_KILLS";
const RUNS: u64 = 6;
/// The longest time that the programs work.
const LIFE_US: u64 = 400_000;
/// Old data is written back all the time, so that the kill hits every step.
const OPTIONS: [&str; 2] = ["--dirty-expire", "100ms"];

/// A random time, at most `LIFE_US`.
fn life(run: u64) -> Duration {
    let seed = bytes(run ^ u64::from(std::process::id()) << 20, 8);
    Duration::from_micros(u64::from_le_bytes(seed.try_into().unwrap()) % LIFE_US)
}

fn live_and_die(memory_is_lost: bool) {
    need_fuse();
    let scratch = Scratch::new();
    for store in stores(&scratch) {
        let [mountpoint] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        let mut state = State::default();
        let mut run = 0;
        while !is_enough(run, RUNS_VARIABLE, RUNS, state.is_idle()) {
            let mut mount = store.mount(&scratch, &mountpoint, &OPTIONS);
            let programs = Programs::start(&mountpoint, &state);
            thread::sleep(life(run));
            mount.kill();
            let works = programs.join();
            if memory_is_lost {
                store.lose_memory();
            }
            println!("{}: run {run}", store.url);
            state = look(&scratch, &store, &mountpoint, |found| match memory_is_lost {
                true => found.check_after_crash(&mountpoint, &works),
                false => found.check_after_kill(&mountpoint, &works),
            });
            run += 1;
        }
        println!("{}: {state:?}", store.url);
        state.assert_work();
        assert_eq!(store.left(), Vec::<String>::new());
        store.fsck(&scratch);
    }
}

/// Mounts the volume for a check of its state.
fn look(scratch: &Scratch, store: &Store, mountpoint: &Path, check: impl FnOnce(&State)) -> State {
    let mut mount = store.mount(scratch, mountpoint, &[]);
    let state = State::of(mountpoint);
    check(&state);
    scratch.umount(mountpoint);
    mount.wait().expect(0, &[]);
    state
}

#[test]
fn p09_a_killed_mount_loses_nothing_that_returned() {
    live_and_die(false);
}

#[test]
fn p01_a_crash_of_the_machine_loses_nothing_that_was_synced() {
    live_and_die(true);
}

#[test]
fn a_dead_mount_is_shown_with_what_to_do() {
    need_fuse();
    let scratch = Scratch::new();
    for store in stores(&scratch) {
        let [mountpoint] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        let mut mount = store.mount(&scratch, &mountpoint, &[]);
        fs::create_dir(mountpoint.join("dir")).unwrap();
        mount.kill();
        scratch.status_after_death().expect(0, &[&store.url, "which died", "mount", "again"]);
        // Another arena would not find the log of that one.
        let other = scratch.arena("other");
        let other = other.to_str().unwrap();
        let words = ["mount", &store.url, mountpoint.to_str().unwrap(), "--cache", "64MiB", "--arena", other];
        store.run(&scratch, &words).expect(1, &["died with changes", "mount it with --arena", "move the log away"]);
        let mut mount = store.mount(&scratch, &mountpoint, &[]);
        assert!(mountpoint.join("dir").is_dir());
        scratch.umount(&mountpoint);
        mount.wait().expect(0, &[]);
    }
}

//! An idle volume has no thread.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use slackwater_testkit::{Rule, pattern};

use crate::programs::{LONG, in_own_process, spawn, until, wait};
use crate::rig::{Rig, TestVolume, threads};

const VOLUMES: u64 = 20;
/// Callers are blocked on one volume out of this many.
const WAITING: u64 = 10;
/// Larger than the volumes' dirty limit together.
const ARENA_BYTES: u64 = 16 << 20;

/// Creates, writes, reads, lists and removes.
fn use_briefly(volume: &TestVolume, seed: u64) {
    fs::create_dir(volume.file("d")).unwrap();
    fs::write(volume.file("d/a"), pattern(seed, 300_000)).unwrap();
    fs::rename(volume.file("d/a"), volume.file("a")).unwrap();
    fs::File::open(volume.file("a")).unwrap().sync_all().unwrap();
    assert!(fs::read(volume.file("a")).unwrap() == pattern(seed, 300_000));
    fs::write(volume.file("gone"), b"x").unwrap();
    fs::remove_file(volume.file("gone")).unwrap();
    assert_eq!(fs::read_dir(&volume.path).unwrap().count(), 2);
}

/// Makes two callers wait: one is interrupted and keeps waiting, the other's write finds no free frame. Both need the
/// worker.
fn block_two_callers(volume: &TestVolume) {
    let workers = || threads().get("sw-worker").copied().unwrap_or_default();
    let rule = volume.faults.add(Rule::hold().on("make"));
    let mut mkdir = spawn("mkdir", &[volume.file("slow").to_str().unwrap()]);
    assert_eq!(volume.faults.wait_held(1, LONG).len(), 1);
    kill_process(Pid::from_child(&mkdir), Signal::INT).unwrap();
    until("the caller is watched", || workers() > 0);
    volume.faults.remove(rule);
    volume.faults.release_all();
    assert!(wait(&mut mkdir).is_some());

    volume.faults.add(Rule::hold().on("write"));
    let of = format!("of={}", volume.file("large").display());
    let mut dd = spawn("dd", &["if=/dev/zero", &of, "bs=64K", "count=320"]);
    until_it_waits(volume);
    // On a very busy machine dd may not be there yet.
    until("the write is parked, or its reply is held", || {
        volume.mounted.parked_writes() + volume.mounted.paused_writes() > 0 && workers() > 0
    });
    assert!(dd.try_wait().unwrap().is_none(), "dd has more to write");
    volume.let_through();
    assert!(wait(&mut dd).expect("dd continues").success());
}

/// Waits until the volume takes no more dirty data.
fn until_it_waits(volume: &TestVolume) {
    let mut last = (0, 0);
    until("the writer is blocked", || {
        let dirty_bytes = volume.mounted.super_block().status().dirty_bytes;
        last = if dirty_bytes == last.0 { (dirty_bytes, last.1 + 1) } else { (dirty_bytes, 0) };
        dirty_bytes > 0 && last.1 == 150
    });
}

#[test]
fn volumes_have_no_thread_after_use() {
    in_own_process("idle::volumes_have_no_thread_after_use", || {
        let rig = Rig::new(ARENA_BYTES);
        let before = {
            // Threads that the engine and the pool start on first use remain.
            let first = rig.mount();
            use_briefly(&first, 0);
            first.umount().unwrap();
            until("the first volume's threads have ended", || {
                let names = ["sw-worker", "sw-parked", "sw-fuse-notify", "sw-own-mount", "sw-umount", "slackwater-dir"];
                threads().keys().all(|name| names.iter().all(|other| !name.starts_with(other)))
            });
            threads()
        };
        println!("{before:?}");
        let volumes: Vec<_> = (0..VOLUMES).map(|_| rig.mount()).collect();
        for (seed, volume) in (0..).zip(&volumes) {
            use_briefly(volume, seed);
            if seed % WAITING == 0 {
                block_two_callers(volume);
            }
        }
        let sum = || threads().values().sum::<usize>();
        println!("in use: {:?}", threads());
        assert!(sum() > before.values().sum(), "the volumes had threads");
        until("no volume has a thread", || threads() == before);
        // The volumes still work.
        for (seed, volume) in (0..).zip(&volumes) {
            fs::write(volume.file("again"), b"again").unwrap();
            volume.umount().unwrap();
            assert_eq!(fs::read(volume.stored("again")).unwrap(), b"again");
            let large = fs::metadata(volume.stored("large")).map_or(0, |large| large.len());
            assert_eq!(large, if seed % WAITING == 0 { 20 << 20 } else { 0 });
        }
    });
}

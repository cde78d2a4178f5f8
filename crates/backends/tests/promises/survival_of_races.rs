//! P9 between two steps: a kill inside a truncation, a discard, an eviction.

use std::sync::Arc;

use slackwater::backend::{AttrChange, Call};
use slackwater::{ErrorKind, UmountOptions};
use slackwater_testkit::{Random, Rule, pattern};

use crate::rig::{
    Disk, PAGE, PATIENCE, Rig, assert_same, busy, create, eventually, open, read_all, recover, remount, snapshot, spawn,
};
use crate::survival::unmount;

fn sizes(call: &Call) -> bool {
    matches!(call, Call::Setattr { change: AttrChange { size_bytes: Some(_), .. }, .. })
}

/// The truncation was in flight: the file is as before, or it is truncated.
#[test]
fn p09_a_kill_inside_a_truncate_leaves_the_old_bytes_or_the_cut() {
    for cut in [0, 100, PAGE as u64, 2 * PAGE as u64 + 1] {
        let rig = Rig::by_hand();
        let wanted = pattern(1, 5 * PAGE + 100);
        let file = Arc::new(rig.create("a"));
        file.write_at(0, &wanted).unwrap();
        rig.disk.faults.add(Rule::hold().matching(sizes));
        let own = file.clone();
        let truncate = spawn("truncate", move || own.set_len(cut));
        rig.disk.faults.wait_held(1, PATIENCE);
        let left = snapshot(&rig.engine);
        let mem = rig.disk.mem.clone();
        rig.disk.faults.clear();
        rig.disk.faults.add(Rule::fail(ErrorKind::Abandoned));
        let held = rig.disk.faults.held();
        rig.disk.faults.fail(held[0].ticket, ErrorKind::Abandoned);
        truncate.wait().unwrap_err();
        drop((file, rig));
        let (engine, _) = recover(left);
        let volume = remount(&engine, &mem).unwrap();
        let found = read_all(&open(&volume, "a"));
        assert!(found.len() as u64 == cut || found.len() == wanted.len(), "{} bytes", found.len());
        assert_same(&found, &wanted[..found.len()], "a");
        open(&volume, "a").set_len(wanted.len() as u64).unwrap();
        let mut expected = found.clone();
        expected.resize(wanted.len(), 0);
        assert_same(&read_all(&open(&volume, "a")), &expected, "extended again");
        unmount(&engine, &volume);
        assert_same(&mem.durable_file("a").unwrap(), &expected, "durable");
    }
}

/// A discarded volume with units in flight leaves records behind until they end. Data of other volumes in the arena
/// must be found nevertheless.
#[test]
fn p09_a_kill_after_a_discard_with_units_in_flight_loses_nothing_of_others() {
    let rig = Rig::by_hand();
    let (disk, other) = rig.mount("other");
    let wanted = pattern(2, 100_000);
    create(&other, "b").write_at(0, &wanted).unwrap();
    rig.create("a").write_at(0, &[1; 100_000]).unwrap();
    rig.disk.faults.add(Rule::hold());
    disk.faults.add(Rule::hold());
    rig.flush_without_waiting();
    assert!(!rig.disk.faults.held().is_empty());
    rig.volume.umount(UmountOptions { discard: true, ..UmountOptions::default() }).unwrap();
    let left = snapshot(&rig.engine);
    let mem = disk.mem.clone();
    let (engine, _) = recover(left);
    let volume = engine.mount("other", mem.clone()).unwrap();
    assert_same(&read_all(&open(&volume, "b")), &wanted, "other");
    volume.umount(UmountOptions::default()).unwrap();
    assert_same(&mem.durable_file("b").unwrap(), &wanted, "other");
}

/// Snapshots of a live engine while all operations run. Threads pause for the copy, units do not.
#[test]
fn p09_a_live_engine_can_be_killed_between_any_two_writes() {
    const FILES: u64 = 6;
    for seed in 0..4 {
        println!("seed {seed}");
        let rig = Rig::live(Disk::new(), busy());
        let mut random = Random::new(seed);
        let mut wanted: Vec<Vec<u8>> = vec![Vec::new(); FILES as usize];
        let files: Vec<_> = (0..FILES).map(|nth| rig.create(&format!("f{nth}"))).collect();
        for _ in 0..300 {
            let nth = random.below(FILES) as usize;
            let (file, bytes) = (&files[nth], &mut wanted[nth]);
            match random.below(10) {
                0 => {
                    let len = random.below(2_000_000);
                    file.set_len(len).unwrap();
                    bytes.resize(len as usize, 0);
                }
                1 => file.fsync().unwrap(),
                _ => {
                    let at = random.below(2_000_000) as usize;
                    let part = pattern(random.next(), random.below(100_000) as usize + 1);
                    file.write_at(at as u64, &part).unwrap();
                    bytes.resize(bytes.len().max(at + part.len()), 0);
                    bytes[at..at + part.len()].copy_from_slice(&part);
                }
            }
        }
        // Nothing reaches the backend after this, so that the copy's state and the backend's belong together.
        rig.disk.faults.add(Rule::hold());
        eventually("the engine has nothing more to submit", || {
            let held = rig.disk.faults.held().len();
            std::thread::sleep(std::time::Duration::from_millis(500));
            held == rig.disk.faults.held().len()
        });
        let left = snapshot(&rig.engine);
        let mem = rig.disk.mem.clone();
        let (engine, _) = recover(left);
        let volume = remount(&engine, &mem).unwrap();
        for (nth, bytes) in wanted.iter().enumerate() {
            assert_same(&read_all(&open(&volume, &format!("f{nth}"))), bytes, &format!("seed {seed}"));
        }
        unmount(&engine, &volume);
        for (nth, bytes) in wanted.iter().enumerate() {
            assert_same(&mem.durable_file(&*format!("f{nth}")).unwrap(), bytes, &format!("seed {seed}"));
        }
        rig.disk.faults.clear();
        drop(files);
    }
}

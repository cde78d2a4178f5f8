//! P3 with a backend that does not answer: the deadline holds, and nothing else is affected.

use std::sync::Arc;
use std::time::{Duration, Instant};

use slackwater::backend::{AttrChange, Call, Limits, Removal};
use slackwater::{SuperBlock, UmountError, UmountOptions};
use slackwater_testkit::{Rule, pattern};

use crate::rig::{
    Disk, PAGE, PATIENCE, Rig, assert_idle, assert_same, busy, create, eventually, limits, open, read_all, spawn,
    within,
};

const DEADLINE: Duration = Duration::from_millis(200);
/// Allowance for a slow machine.
const SLACK: Duration = Duration::from_secs(60);

#[track_caller]
fn umount_in_vain(volume: &Arc<SuperBlock>, options: UmountOptions) -> u64 {
    let started = Instant::now();
    let volume = volume.clone();
    let outcome = within("umount", move || volume.umount(options));
    assert!(started.elapsed() < DEADLINE + SLACK, "{:?}", started.elapsed());
    let error = outcome.unwrap_err();
    let UmountError::Deadline { dirty_bytes, .. } = error else { panic!("{error}") };
    dirty_bytes
}

fn soon() -> UmountOptions {
    UmountOptions { deadline: Some(DEADLINE), ..UmountOptions::default() }
}

#[test]
fn p03_past_its_deadline_a_hanging_volume_is_still_mounted_and_loses_nothing() {
    for kind in ["write", "sync_volume", "setattr"] {
        let rig = Rig::live(Disk::new(), busy());
        let mut wanted = pattern(5, 3_000_000);
        let file = rig.create("a");
        rig.disk.faults.add(Rule::hold().on(kind));
        file.write_at(0, &wanted).unwrap();
        drop(file);
        let left = umount_in_vain(&rig.volume, soon());
        assert!(kind == "setattr" || left > 0, "{kind}: {left} bytes left");
        let file = rig.open("a");
        assert_same(&read_all(&file), &wanted, kind);
        file.write_at(1000, &[7; 70_000]).unwrap();
        wanted[1000..71_000].fill(7);
        create(&rig.volume, "b").write_at(0, b"new").unwrap();
        assert_same(&read_all(&file), &wanted, kind);
        drop(file);
        umount_in_vain(&rig.volume, soon());
        rig.disk.faults.clear();
        rig.disk.faults.release_all();
        eventually("everything arrives", || rig.volume.status().bytes_left() == 0);
        let mem = rig.disk.mem.clone();
        rig.unmount_and_find_nothing_left();
        assert_same(&mem.durable_file("a").unwrap(), &wanted, kind);
        assert_same(&mem.durable_file("b").unwrap(), b"new", kind);
    }
}

#[test]
fn p03_other_volumes_work_and_unmount_while_one_hangs() {
    let rig = Rig::live(Disk::new(), busy());
    let (other_disk, other) = rig.mount("other");
    let file = rig.create("a");
    rig.disk.faults.add(Rule::hold());
    file.write_at(0, &pattern(1, 2_000_000)).unwrap();
    drop(file);
    let hanging = rig.volume.clone();
    let umount = spawn("umount", move || hanging.umount(UmountOptions::default()));
    rig.disk.faults.wait_held(1, PATIENCE);

    let wanted = pattern(2, 20_000_000);
    let (volume, bytes) = (other.clone(), wanted.clone());
    within("work on another volume", move || {
        let file = create(&volume, "a");
        file.write_at(0, &bytes).unwrap();
        file.fsync().unwrap();
        volume.sync().unwrap();
        assert_same(&read_all(&file), &bytes, "other");
        drop(file);
        volume.umount(UmountOptions::default()).unwrap();
    });
    assert_same(&other_disk.mem.durable_file("a").unwrap(), &wanted, "other");
    let (_, third) = rig.mount("third");
    within("umount of an empty volume", move || third.umount(UmountOptions::default())).unwrap();
    assert!(umount.is_running_after(Duration::ZERO));
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    eventually("the umount ends", || rig.engine.volumes().is_empty());
    assert_same(&rig.durable("a").unwrap(), &pattern(1, 2_000_000), "rig");
}

/// Dirty pages of a file without a name need not be written, but one of its units is in flight.
#[test]
fn p03_the_deadline_holds_with_a_unit_of_an_unlinked_file_in_flight() {
    let rig = Rig::live(Disk::new(), busy());
    let file = rig.create("a");
    rig.disk.faults.add(Rule::hold().on("write"));
    file.write_at(0, &[1; 100_000]).unwrap();
    rig.disk.faults.wait_held(1, PATIENCE);
    rig.unlink("a");
    drop(file);
    umount_in_vain(&rig.volume, soon());
    create(&rig.volume, "b").write_at(0, b"mounted").unwrap();
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    eventually("it unmounts", || rig.volume.umount(soon()).is_ok());
    assert_eq!(rig.durable("b").unwrap(), b"mounted");
    assert_idle(&rig.engine, &rig.volume);
}

/// Units have one page, so that the reader gets its own page and continues while the next ones are still being read.
#[test]
fn p03_the_deadline_holds_with_a_read_ahead_in_flight() {
    let rig = Rig::live(Disk::with_limits(Limits { unit_bytes: PAGE as u32, ..limits() }), busy());
    let wanted = pattern(3, 16 * PAGE);
    rig.create("a").write_at(0, &wanted).unwrap();
    rig.volume.umount(UmountOptions::default()).unwrap();
    let volume = rig.engine.mount("rig", rig.disk.backend.clone()).unwrap();
    let file = open(&volume, "a");
    let behind = |call: &Call| call.range_bytes().is_some_and(|(offset_bytes, _)| offset_bytes > 0);
    rig.disk.faults.add(Rule::hold().on("read").matching(behind));
    let mut first = [0; PAGE];
    file.read_at(0, &mut first).unwrap();
    assert_same(&first, &wanted[..PAGE], "the first page");
    assert!(!rig.disk.faults.held().is_empty(), "the next ones are being read");
    drop(file);
    umount_in_vain(&volume, soon());
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    assert_same(&read_all(&open(&volume, "a")), &wanted, "mounted");
    eventually("it unmounts", || volume.umount(soon()).is_ok());
    assert_idle(&rig.engine, &volume);
}

/// The flush succeeds. Meanwhile a program opened a file, and hangs in a truncation when writes are frozen.
#[test]
fn p03_the_deadline_holds_against_a_truncate_that_hangs() {
    let rig = Rig::live(Disk::new(), busy());
    rig.create("b").set_len(10).unwrap();
    rig.disk.faults.add(Rule::hold().on("write"));
    rig.create("a").write_at(0, b"x").unwrap();
    let started = Instant::now();
    let volume = rig.volume.clone();
    let umount = spawn("umount", move || volume.umount(UmountOptions { deadline: Some(5 * DEADLINE), discard: false }));
    rig.disk.faults.wait_held(1, PATIENCE);
    std::thread::sleep(Duration::from_millis(50)); // past the first look for open files
    let sizes = |call: &Call| matches!(call, Call::Setattr { change: AttrChange { size_bytes: Some(_), .. }, .. });
    rig.disk.faults.add(Rule::hold().on("setattr").matching(sizes));
    let file = Arc::new(rig.open("b"));
    let cut = file.clone();
    let truncate = spawn("truncate", move || cut.set_len(5));
    let held = rig.disk.faults.wait_held(2, PATIENCE);
    for unit in held.iter().filter(|held| held.name == "write") {
        rig.disk.faults.release(unit.ticket);
    }
    assert!(matches!(umount.wait(), Err(UmountError::Busy { .. } | UmountError::Deadline { .. })));
    assert!(started.elapsed() < 5 * DEADLINE + SLACK);
    rig.create("c").write_at(0, b"writable").unwrap();
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    truncate.wait().unwrap();
    drop(file);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p03_discard_of_a_hanging_volume_waits_for_nothing_and_frees_all_when_it_answers() {
    let rig = Rig::live(Disk::new(), busy());
    let (other_disk, other) = rig.mount("other");
    let file = rig.create("a");
    rig.disk.faults.add(Rule::hold());
    file.write_at(0, &[1; 1_000_000]).unwrap();
    drop(file);
    rig.disk.faults.wait_held(1, PATIENCE);
    let volume = rig.volume.clone();
    let options = UmountOptions { discard: true, ..UmountOptions::default() };
    within("a discarding umount", move || volume.umount(options)).unwrap();
    create(&other, "a").write_at(0, &[2; 5_000_000]).unwrap();
    other.sync().unwrap();
    assert_same(&other_disk.mem.durable_file("a").unwrap(), &[2; 5_000_000], "other");
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    other.umount(UmountOptions::default()).unwrap();
    eventually("every frame is back", || rig.engine.arena().free_frames() == u64::from(rig.engine.arena().frames()));
    assert_idle(&rig.engine, &rig.volume);
}

/// The reads in flight are those of a file with a name, or without one.
#[test]
fn p03_discard_frees_the_frames_of_reads_in_flight() {
    for unlinked in [false, true] {
        let rig = Rig::with(Disk::with_limits(Limits { unit_bytes: PAGE as u32, ..limits() }), crate::rig::by_hand());
        rig.create("a").write_at(0, &pattern(3, 16 * PAGE)).unwrap();
        rig.volume.umount(UmountOptions::default()).unwrap();
        let volume = rig.engine.mount("rig", rig.disk.backend.clone()).unwrap();
        let file = open(&volume, "a");
        let behind = |call: &Call| call.range_bytes().is_some_and(|(offset_bytes, _)| offset_bytes > 0);
        rig.disk.faults.add(Rule::hold().on("read").matching(behind));
        file.read_at(0, &mut [0; PAGE]).unwrap();
        assert!(!rig.disk.faults.held().is_empty(), "the next ones are being read");
        if unlinked {
            let root = volume.root().unwrap();
            volume.remove(&root, "a", Removal::File).unwrap();
        }
        drop(file);
        if unlinked {
            rig.disk.faults.release_all();
            volume.umount(UmountOptions::default()).unwrap();
        } else {
            volume.umount(UmountOptions { discard: true, ..UmountOptions::default() }).unwrap();
            rig.disk.faults.release_all();
        }
        println!("unlinked: {unlinked}");
        assert_idle(&rig.engine, &volume);
    }
}

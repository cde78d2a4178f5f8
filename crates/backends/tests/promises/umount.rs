//! P3: an unmount succeeds with all data in the backend, or changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slackwater::backend::{NewNode, Removal};
use slackwater::{ErrorKind, File, FileError, MountError, UmountError, UmountOptions};
use slackwater_testkit::{Rule, pattern};

use crate::rig::{
    Disk, PAGE, PATIENCE, Rig, assert_idle, assert_same, busy, count_engine_panics, create, engine_panics, eventually,
    open, spawn, within,
};

fn discard() -> UmountOptions {
    UmountOptions { discard: true, ..UmountOptions::default() }
}

#[test]
fn p03_open_files_and_held_references_make_a_volume_busy() {
    let rig = Rig::by_hand();
    let (first, second, other) = (rig.create("a"), rig.open("a"), rig.create("b"));
    first.write_at(0, b"still here").unwrap();
    let busy = |files, inodes| {
        let error = rig.volume.umount(UmountOptions::default()).unwrap_err();
        let UmountError::Busy { open_files, open_inodes } = error else { panic!("{error}") };
        assert_eq!((open_files, open_inodes), (files, inodes));
    };
    busy(3, 2);
    drop(second);
    busy(2, 2);
    let inode = other.inode().clone();
    drop(other);
    busy(1, 2);
    first.write_at(10, b", and writable").unwrap();
    drop(first);
    busy(0, 1);
    drop(inode);
    let mem = rig.disk.mem.clone();
    rig.unmount_and_find_nothing_left();
    assert_eq!(mem.durable_file("a").unwrap(), b"still here, and writable");
}

#[test]
fn p03_after_an_unmount_nothing_works_and_the_name_is_free() {
    let rig = Rig::by_hand();
    let root = rig.volume.root().unwrap();
    assert!(matches!(rig.engine.mount("rig", rig.disk.backend.clone()), Err(MountError::NameTaken(_))));
    drop(root);
    rig.volume.umount(UmountOptions::default()).unwrap();
    assert!(matches!(rig.volume.umount(UmountOptions::default()), Err(UmountError::NotMounted)));
    assert!(matches!(rig.volume.umount(discard()), Err(UmountError::NotMounted)));
    assert!(matches!(rig.volume.root(), Err(FileError::NotMounted)));
    assert!(matches!(rig.volume.sync(), Err(FileError::NotMounted)));
    assert!(matches!(rig.volume.statfs(), Err(FileError::NotMounted)));
    assert!(matches!(rig.volume.walk("a"), Err(FileError::NotMounted)));
    assert!(rig.engine.volumes().is_empty());
    let again = rig.engine.mount("rig", rig.disk.backend.clone()).unwrap();
    create(&again, "a").write_at(0, b"again").unwrap();
    again.umount(UmountOptions::default()).unwrap();
    assert_eq!(rig.disk.mem.durable_file("a").unwrap(), b"again");
}

#[test]
fn p03_a_second_unmount_at_the_same_time_is_refused() {
    let rig = Rig::live(Disk::new(), busy());
    let file = rig.create("a");
    rig.disk.faults.add(Rule::hold());
    file.write_at(0, b"x").unwrap();
    drop(file);
    let volume = rig.volume.clone();
    let first = spawn("umount", move || volume.umount(UmountOptions::default()));
    rig.disk.faults.wait_held(1, PATIENCE);
    eventually("the first one runs", || {
        let short = UmountOptions { deadline: Some(Duration::from_millis(1)), ..UmountOptions::default() };
        matches!(rig.volume.umount(short), Err(UmountError::InProgress))
    });
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    // The other attempts may have kept it out.
    match first.wait() {
        Ok(()) => assert_idle(&rig.engine, &rig.volume),
        Err(UmountError::InProgress) => rig.unmount_and_find_nothing_left(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn p03_discard_loses_exactly_what_would_lose_named() {
    let rig = Rig::by_hand();
    let (kept, cut, gone) = (rig.create("kept"), rig.create("cut"), rig.create("gone"));
    let wanted = pattern(1, 100_000);
    for file in [&kept, &cut, &gone] {
        file.write_at(0, &wanted).unwrap();
    }
    rig.volume.sync().unwrap();
    assert!(rig.volume.would_lose().is_empty());
    cut.write_at(0, &[9; 3 * PAGE]).unwrap();
    gone.write_at(500_000, &[9; 10]).unwrap();
    rig.create("new").write_at(0, &[9; PAGE + 1]).unwrap();
    let named: Vec<_> = rig.volume.would_lose().iter().map(|file| (file.id, file.bytes)).collect();
    let new = rig.volume.walk("new").unwrap().id();
    let mut expected =
        vec![(cut.inode().id(), 3 * PAGE as u64), (gone.inode().id(), PAGE as u64), (new, 2 * PAGE as u64)];
    expected.sort();
    assert_eq!(named, expected);
    assert!(matches!(rig.volume.umount(discard()), Err(UmountError::Busy { open_files: 3, .. })));
    drop((kept, cut, gone));
    rig.volume.umount(discard()).unwrap();
    assert_idle(&rig.engine, &rig.volume);
    assert_same(&rig.stored("kept").unwrap(), &wanted, "kept");
    assert_same(&rig.stored("cut").unwrap(), &wanted, "cut");
    assert_same(&rig.stored("gone").unwrap(), &wanted, "gone");
    assert_same(&rig.stored("new").unwrap(), &[], "new");
}

#[test]
fn p03_unmounting_one_volume_leaves_writers_of_others_alone() {
    const OTHERS: usize = 3;
    let rig = Rig::live(Disk::new(), busy());
    let others: Vec<_> = (0..OTHERS).map(|nth| rig.mount(&format!("other{nth}"))).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = others
        .iter()
        .map(|(_, volume)| {
            let (volume, stop) = (volume.clone(), stop.clone());
            spawn("a writer of another volume", move || {
                let file = create(&volume, "a");
                let mut wanted = Vec::new();
                while !stop.load(Ordering::Relaxed) || wanted.is_empty() {
                    let part = pattern(wanted.len() as u64, 10_000);
                    let at = wanted.len() as u64 % 1_000_000;
                    file.write_at(at, &part).unwrap();
                    wanted.resize(wanted.len().max(at as usize + part.len()), 0);
                    wanted[at as usize..at as usize + part.len()].copy_from_slice(&part);
                    if at == 0 {
                        file.fsync().unwrap();
                    }
                }
                wanted
            })
        })
        .collect();
    for round in 0..20 {
        let (disk, volume) = rig.mount("brief");
        create(&volume, "a").write_at(0, &pattern(round, 300_000)).unwrap();
        within("umount", move || volume.umount(UmountOptions::default())).unwrap();
        assert_same(&disk.mem.durable_file("a").unwrap(), &pattern(round, 300_000), "brief");
    }
    stop.store(true, Ordering::Relaxed);
    for (writer, (disk, volume)) in writers.into_iter().zip(others) {
        let wanted = writer.wait();
        within("umount", move || volume.umount(UmountOptions::default())).unwrap();
        assert_same(&disk.mem.durable_file("a").unwrap(), &wanted, "another volume");
    }
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p03_a_failing_backend_keeps_the_volume_mounted_and_names_the_cause() {
    let rig = Rig::live(Disk::new(), busy());
    let wanted = pattern(5, 200_000);
    let file = rig.create("a");
    rig.disk.faults.add(Rule::fail(ErrorKind::NoSpace).on("write"));
    file.write_at(0, &wanted).unwrap();
    drop(file);
    eventually("a write fails", || rig.volume.status().failing == Some(ErrorKind::NoSpace));
    let deadline = UmountOptions { deadline: Some(Duration::from_millis(200)), ..UmountOptions::default() };
    let error = rig.volume.umount(deadline).unwrap_err();
    let UmountError::Deadline { dirty_bytes, cause } = error else { panic!("{error}") };
    assert!(dirty_bytes >= 200_000);
    assert_eq!(cause, Some(ErrorKind::NoSpace));
    rig.open("a").write_at(0, b"writable").unwrap();
    rig.disk.faults.clear();
    let mem = rig.disk.mem.clone();
    rig.unmount_and_find_nothing_left();
    assert_eq!(mem.durable_file("a").unwrap()[..8], *b"writable");
    assert_same(&mem.durable_file("a").unwrap()[8..], &wanted[8..], "kept");
}

/// The directory below a mount can be unmounted in turn.
#[test]
fn p03_the_backend_is_closed_when_unmount_returns() {
    for options in [UmountOptions::default(), discard()] {
        let rig = Rig::by_hand();
        let file = rig.create("a");
        file.write_at(0, &[1; 100_000]).unwrap();
        rig.advance(Duration::from_secs(36)); // written, with timers for what comes next
        file.write_at(0, &[2; 100_000]).unwrap();
        file.fsync().unwrap();
        file.write_at(0, &[2; 100_000]).unwrap();
        drop(file);
        let Rig { engine, disk, volume, .. } = rig;
        volume.umount(options).unwrap();
        drop(volume);
        assert_eq!(Arc::strong_count(&disk.backend), 1, "discard: {}", options.discard);
        drop(engine);
    }
}

/// The last user of a volume closes its backend, which may take locks and time: a flusher holds no lock of its own by
/// then.
#[test]
fn p03_a_flusher_may_be_the_last_user_of_a_backend() {
    count_engine_panics();
    let rig = Rig::live(Disk::new(), busy());
    for round in 0..500 {
        let (disk, volume) = rig.mount("brief");
        if round % 2 == 0 {
            create(&volume, "a").write_at(0, b"x").unwrap();
        }
        drop(disk.backend);
        let unmounted = volume.clone();
        within("umount", move || unmounted.umount(UmountOptions::default())).unwrap();
        drop(volume);
        assert_eq!(engine_panics(), 0, "after round {round}");
    }
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p03_an_unlinked_file_does_not_keep_a_volume_from_being_unmounted() {
    let rig = Rig::by_hand();
    let root = rig.volume.root().unwrap();
    let file = File::open(&rig.volume.make(&root, "a", NewNode::File, 0o644).unwrap()).unwrap();
    file.write_at(0, &[1; 100_000]).unwrap();
    rig.volume.remove(&root, "a", Removal::File).unwrap();
    drop(root);
    rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write"));
    rig.flush_without_waiting();
    drop(file);
    assert!(rig.volume.would_lose().is_empty(), "nobody can ask for it any more");
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p03_a_volume_can_be_mounted_and_unmounted_many_times() {
    let rig = Rig::by_hand();
    let wanted = pattern(1, 50_000);
    let mut volume = rig.volume.clone();
    for round in 0..50 {
        let file = if round == 0 { create(&volume, "a") } else { open(&volume, "a") };
        file.write_at(round * 50_000, &wanted).unwrap();
        drop(file);
        volume.umount(UmountOptions::default()).unwrap();
        assert_idle(&rig.engine, &volume);
        volume = rig.engine.mount("rig", rig.disk.backend.clone()).unwrap();
    }
    assert_same(&rig.durable("a").unwrap(), &wanted.repeat(50), "a");
}

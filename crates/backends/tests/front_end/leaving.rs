//! The steps of an unmount, driven by a front end with references of its own.

use std::time::Duration;

use slackwater::{FileError, UmountError, UmountOptions};
use slackwater_testkit::{Rule, pattern};

use crate::rig::{Disk, Rig, busy, eventually, spawn};

#[test]
fn flush_freeze_flush_and_leave() {
    let rig = Rig::live(Disk::new(), busy());
    let file = rig.create("a");
    file.write_at(0, &pattern(1, 500_000)).unwrap();
    rig.volume.flush_until(None).unwrap();
    file.write_at(0, b"written meanwhile").unwrap();
    rig.volume.freeze_writes(None, &|| {}).unwrap();
    assert!(matches!(file.write_at(0, b"x"), Err(FileError::NotMounted)));
    assert!(matches!(rig.volume.freeze_writes(None, &|| {}), Err(UmountError::NotMounted)), "once");
    rig.volume.flush_until(None).unwrap();
    assert_eq!(&rig.durable("a").unwrap()[..17], b"written meanwhile");
    assert!(matches!(rig.volume.umount(UmountOptions::default()), Err(UmountError::Busy { .. })));
    assert!(rig.volume.is_frozen(), "as it was before");
    drop(file);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn a_refused_writer_waits_for_the_thaw() {
    let rig = Rig::live(Disk::new(), busy());
    let file = rig.create("a");
    rig.volume.freeze_writes(None, &|| {}).unwrap();
    assert!(matches!(file.write_at(0, b"x"), Err(FileError::NotMounted)));
    let volume = rig.volume.clone();
    let waiter = spawn("a writer", move || {
        assert!(volume.wait_while_frozen(None));
        file.write_at(0, b"x").unwrap();
    });
    rig.volume.thaw();
    waiter.wait();
    assert!(!rig.volume.is_frozen());

    rig.volume.freeze_writes(None, &|| {}).unwrap();
    let volume = rig.volume.clone();
    let waiter = spawn("one who comes too late", move || volume.wait_while_frozen(None));
    rig.volume.umount(UmountOptions::default()).unwrap();
    assert!(!waiter.wait(), "gone");
    rig.volume.thaw();
    assert!(matches!(rig.volume.flush_until(None), Err(UmountError::NotMounted)), "what is gone stays gone");
}

#[test]
fn a_flush_that_hangs_ends_at_its_deadline_and_reports_its_progress() {
    let rig = Rig::live(Disk::new(), busy());
    let file = rig.create("a");
    rig.disk.faults.add(Rule::hold().on("write"));
    file.write_at(0, &pattern(1, 500_000)).unwrap();
    let soon = || Some(rig.volume.now() + Duration::from_millis(50));
    assert!(matches!(rig.volume.flush_until(soon()), Err(UmountError::Deadline { .. })));
    assert!(rig.volume.status().bytes_left() >= 500_000);
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    eventually("the rest", || rig.volume.flush_until(soon()).is_ok());
    assert_eq!(rig.volume.status().bytes_left(), 0);
    drop(file);
    rig.unmount_and_find_nothing_left();
}

//! A volume is frozen or discarded while units of it end and a flusher works on it, replayed. Nothing of it is left. It
//! is a test target of its own whose tests take turns, since every unmount of the process stops at the gates that they
//! hold.

#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[allow(dead_code, reason = "shared with other tests, which use the rest")]
mod rig;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use slackwater::backend::{Backend, Call, Limits, NewNode};
use slackwater::{File, UmountError, UmountOptions, WriteFlags, WriteRequest, Written};
use slackwater_sync::gate;
use slackwater_testkit::{Rule, pattern};

use crate::rig::{Disk, PAGE, Rig, assert_idle, busy, by_hand, create, inodes_of, limits, spawn, turn, within};

const DISCARD: UmountOptions = UmountOptions { deadline: None, discard: true };

/// Units of one page, this many at a time.
fn narrow(units_in_flight: u32) -> Disk {
    Disk::with_limits(Limits { unit_bytes: PAGE as u32, units_in_flight, ..limits() })
}

/// The unit ends when its inode has been evicted and is still on a list. Its completion leaves the inode to the
/// flusher, which does not come any more.
#[test]
fn a_unit_that_ends_before_its_list_does_leaves_no_record_behind() {
    let _turn = turn();
    let rig = Rig::with(narrow(1), by_hand());
    rig.create("a").write_at(0, &pattern(1, 3 * PAGE)).unwrap();
    rig.disk.faults.add(Rule::hold().on("write"));
    rig.flush_without_waiting();
    assert_eq!(rig.disk.faults.held().len(), 1, "the rest waits for the flusher");
    let hold = gate::hold("umount.evicted");
    let volume = Arc::clone(&rig.volume);
    let umount = spawn("a discarding umount", move || volume.umount(DISCARD));
    hold.wait_reached();
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    drop(hold);
    umount.wait().unwrap();
    assert_idle(&rig.engine, &rig.volume);
}

/// A freeze checks an inode when its last unit ends. Each of the two would keep the other from returning the record.
#[test]
fn a_unit_that_ends_while_its_inode_is_being_frozen_leaves_no_record_behind() {
    let _turn = turn();
    let rig = Rig::by_hand();
    // A freeze visits the inodes in the order of their hash: this one before the root.
    let file = (0..64).map(|nth| rig.create(&nth.to_string())).find(|file| file.inode().id().ino % 16 == 0).unwrap();
    assert_eq!(
        file.write(WriteRequest::at(0).flags(WriteFlags::DONTCACHE), &pattern(1, PAGE)).unwrap(),
        Written::Bytes(PAGE)
    );
    drop(file);
    rig.disk.faults.add(Rule::hold().on("sync_volume"));
    while rig.disk.faults.held().is_empty() {
        rig.advance(Duration::from_millis(500));
    }
    let hold = gate::hold("freeze.looking");
    let volume = Arc::clone(&rig.volume);
    let freeze = spawn("freeze", move || volume.freeze_writes(None, &|| {}));
    hold.wait_reached();
    let faults = rig.disk.faults.clone();
    let commit = spawn("the end of a commit", move || faults.release_all());
    std::thread::sleep(Duration::from_millis(50)); // it gets as far as it can
    drop(hold);
    freeze.wait().unwrap();
    commit.wait();
    assert_eq!(rig.engine.arena().free_inodes(), inodes_of(rig.engine.arena()));
    rig.disk.faults.clear();
    rig.volume.thaw();
    rig.unmount_and_find_nothing_left();
}

/// The flusher has chosen pages of a file but not sent them when the file is removed, so no lookup finds it any more.
/// The volume would end without it, and an unmount would wait past any deadline for the calls that then reach the
/// backend.
#[test]
fn pages_chosen_by_a_flusher_count_before_they_are_sent() {
    let _turn = turn();
    let rig = Rig::live(Disk::new(), busy());
    let hold = gate::hold("unit.chosen");
    let file = rig.create("a");
    file.write_at(0, &pattern(1, PAGE)).unwrap();
    hold.wait_reached();
    rig.disk.faults.add(Rule::hold().on("write"));
    drop(file);
    rig.unlink("a");
    let volume = Arc::clone(&rig.volume);
    let soon = UmountOptions { deadline: Some(Duration::from_millis(50)), discard: false };
    let refused = within("an umount with a deadline", move || volume.umount(soon));
    assert!(matches!(refused, Err(UmountError::Deadline { .. })), "{refused:?}");
    drop(hold);
    assert_eq!(rig.disk.faults.wait_held(1, rig::PATIENCE).len(), 1);
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    // Flushers work again on new data.
    rig.create("b").write_at(0, &pattern(2, PAGE)).unwrap();
    rig::eventually("it is written back", || rig.stored("b").is_some_and(|bytes| bytes == pattern(2, PAGE)));
    rig.unmount_and_find_nothing_left();
}

/// The backend hangs when all data has been flushed. A tenant ends, which makes flushers check the volume. They send
/// the backend nothing.
#[test]
fn a_flusher_begins_nothing_on_a_volume_that_is_about_to_end() {
    let _turn = turn();
    let rig = Rig::live(Disk::new(), busy());
    let tenant = rig.engine.memcg_create("a", None, None);
    let inode = rig.volume.make(&rig.volume.root().unwrap(), "a", NewNode::File, 0o644).unwrap();
    File::open_for(&inode, &tenant).unwrap().write_at(0, &pattern(1, PAGE)).unwrap();
    drop(inode);
    let hold = gate::hold("umount.quiet");
    let volume = Arc::clone(&rig.volume);
    let umount = spawn("umount", move || volume.umount(UmountOptions::default()));
    hold.wait_reached();
    rig.disk.faults.add(Rule::hold());
    std::thread::sleep(Duration::from_millis(1100)); // its last answer on free space is out of date by then
    assert!(rig.engine.memcg_offline(&tenant));
    assert_eq!(rig.disk.faults.wait_held(1, Duration::from_millis(300)), []);
    drop(hold);
    umount.wait().unwrap();
    assert_idle(&rig.engine, &rig.volume);
}

type Then = Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// Runs a function once, in the middle of a flusher's run: as soon as this many units are held.
struct WhenHeld {
    units: usize,
    disk: Disk,
    then: Arc<Then>,
}

impl Backend for WhenHeld {
    fn submit(&self, call: Call) {
        self.disk.backend.submit(call);
        let then = if self.disk.faults.held().len() == self.units { self.then.lock().unwrap().take() } else { None };
        if let Some(then) = then {
            then();
        }
    }

    fn limits(&self) -> Limits {
        self.disk.backend.limits()
    }
}

/// The flusher continues with its inode and finds no slot. No flusher may wait for one on behalf of an unmounted
/// volume, or it would keep the backend open.
#[test]
fn a_flusher_at_work_does_not_keep_the_backend_of_an_unmounted_volume() {
    const UNITS: u32 = 3;
    let _turn = turn();
    let rig = Rig::with(Disk::new(), by_hand());
    let (disk, then) = (narrow(UNITS), Arc::new(Then::default()));
    let faults = disk.faults.clone();
    let backend = Arc::new(WhenHeld { units: UNITS as usize, disk, then: Arc::clone(&then) });
    let is_kept = Arc::downgrade(&backend);
    let volume = rig.engine.mount("thrown away", backend).unwrap();
    // The first may use all slots but one.
    for name in ["a", "b"] {
        create(&volume, name).write_at(0, &pattern(1, UNITS as usize * PAGE)).unwrap();
    }
    faults.add(Rule::hold().on("write"));
    *then.lock().unwrap() = Some(Box::new(move || volume.umount(DISCARD).unwrap()));
    rig.flush_without_waiting();
    assert!(then.lock().unwrap().is_none(), "all slots were taken");
    faults.clear();
    faults.release_all();
    rig.engine.step(); // run the work that its end has woken
    assert_eq!(is_kept.strong_count(), 0, "the backend is still in use");
    assert_idle(&rig.engine, &rig.volume);
}

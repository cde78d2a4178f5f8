//! P2 and P5: a store that fails, throttles, hangs or is gone. Nothing is silent, nothing is lost, and what is stuck
//! delays itself alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use slackwater::{ErrorKind, Tunables, Written};
use slackwater_object::layers::{Failure, Operation, Rule};
use slackwater_testkit::pattern;

use crate::rig::{PAGE, assert_same, eventually, fill, spawn, try_write, within};
use crate::volume::{Volume, fast, slow};

/// A unit of this size is uploaded as a segment, and does not wait for a commit.
const LARGE: usize = 300_000;

#[test]
fn p02_a_failed_upload_reaches_every_open_description_once_and_its_data_is_kept() {
    for (len, part) in [(LARGE, "seg/"), (3000, "meta/")] {
        let volume = Volume::new(slow());
        let wanted = pattern(len as u64, len);
        let (first, second) = (volume.create("a"), volume.open("a"));
        first.write_at(0, &wanted).unwrap();
        volume.fault.add(Rule::fail(Failure::Permission).under(part));
        let failed = first.fsync().unwrap_err().kind();
        assert_eq!(failed, ErrorKind::Permission, "{part}");
        assert_eq!(second.take_write_error(), Some(failed));
        assert_eq!(second.take_write_error(), None);
        assert_same(&volume.content("a").unwrap(), &wanted, "cached");
        volume.fault.clear();
        second.fsync().unwrap();
        drop((first, second));
        assert_same(&volume.crash().content("a").unwrap(), &wanted, "in the store");
    }
}

/// The PUT has succeeded and its answer is lost. The commit finds its own object and neither fails nor repeats anything
/// that it must not.
#[test]
fn p02_a_lost_reply_is_not_an_error() {
    let volume = Volume::patient(slow());
    for round in 0..6_u64 {
        let wanted = pattern(round, if round % 2 == 0 { LARGE } else { 2000 });
        let file = volume.create(&format!("f{round}"));
        file.write_at(0, &wanted).unwrap();
        volume.fault.add(Rule::lose_reply().next(1 + round % 3));
        file.fsync().unwrap();
        volume.fault.clear();
    }
    let volume = volume.crash();
    for round in 0..6_u64 {
        let wanted = pattern(round, if round % 2 == 0 { LARGE } else { 2000 });
        assert_same(&volume.content(&format!("f{round}")).unwrap(), &wanted, "acknowledged");
    }
}

#[test]
fn p02_a_throttled_store_is_tried_again() {
    let volume = Volume::patient(slow());
    let wanted = pattern(1, LARGE);
    let file = volume.create("a");
    file.write_at(0, &wanted).unwrap();
    let before = volume.fault.requests();
    for failure in [Failure::Throttled, Failure::Server, Failure::Timeout] {
        volume.fault.add(Rule::fail(failure).on(Operation::Put).under("seg/").next(1));
    }
    file.fsync().unwrap();
    assert!(volume.fault.requests() - before >= 4, "three failed requests and their repetitions");
    drop(file);
    assert_same(&volume.crash().content("a").unwrap(), &wanted, "in the store");
}

/// An outage: writers go on until their share of the cache is full, then wait; another volume does not notice. When the
/// store is back, everything arrives without a request of the user.
#[test]
fn p06_an_outage_of_the_store_blocks_its_own_writers_when_their_share_is_full() {
    let volume = Volume::new(fast());
    let file = volume.create("a");
    file.fsync().unwrap();
    // It shrinks while write-back fails.
    let share = volume.volume.bdi().share_frames();
    volume.fault.add(Rule::fail(Failure::Unreachable));
    // Units that are uploaded meanwhile fail and stay dirty.
    eventually("the share is full", || {
        fill(&file, 0) == 0 && matches!(try_write(&file, 1 << 30, b"x"), Written::NoFrames)
    });
    assert!(volume.volume.bdi().pinned_frames() <= share);
    let (_bucket, _fault, other) = volume.beside("other");
    let next = crate::rig::create(&other, "b");
    within("a write to another volume", move || next.write_at(0, &pattern(1, LARGE)).and_then(|_| next.fsync()))
        .unwrap();
    let waiting = spawn("a writer that waits", {
        let file = volume.open("a");
        move || file.write_at(1 << 30, b"waited").map_err(|error| error.kind())
    });
    assert!(waiting.is_running_after(Duration::from_millis(50)), "there is no space");
    volume.fault.clear();
    waiting.wait().unwrap();
    eventually("all data is in the store", || volume.volume.status().bytes_left() == 0);
    // Uploads that failed meanwhile are an error event, which counts once.
    file.take_write_error();
    file.fsync().unwrap();
    drop(file);
    let volume = volume.crash();
    let found = volume.open("a");
    assert_eq!(found.inode().size_bytes(), (1 << 30) + 6);
    let mut end = [0; 6];
    found.read_at(1 << 30, &mut end).unwrap();
    assert_eq!(&end, b"waited");
}

/// Names go on during an outage too, until the running transaction is full.
#[test]
fn p02_names_that_are_changed_during_an_outage_arrive_after_it() {
    let volume = Volume::new(fast());
    volume.volume.sync().unwrap();
    volume.fault.add(Rule::fail(Failure::Unreachable));
    for nth in 0..200 {
        volume.create(&format!("f{nth}"));
    }
    volume.volume.sync().unwrap_err();
    volume.fault.clear();
    within("a sync", {
        let volume = volume.volume.clone();
        move || volume.sync()
    })
    .unwrap();
    let volume = volume.crash();
    assert!((0..200).all(|nth| volume.content(&format!("f{nth}")).is_some()));
}

#[test]
fn p05_dirty_data_and_names_reach_the_store_by_themselves() {
    let volume = Volume::new(fast());
    let (small, large) = (pattern(1, 2000), pattern(2, LARGE));
    volume.create("small").write_at(0, &small).unwrap();
    volume.create("large").write_at(0, &large).unwrap();
    volume.create("empty");
    eventually("everything is durable", || {
        volume.volume.status().bytes_left() == 0 && volume.backend.status().uncommitted_changes == 0
    });
    let volume = volume.crash();
    assert_same(&volume.content("small").unwrap(), &small, "small");
    assert_same(&volume.content("large").unwrap(), &large, "large");
    assert_eq!(volume.content("empty").unwrap(), b"");
}

/// An upload hangs. All other files arrive.
#[test]
fn p05_an_upload_that_hangs_delays_its_own_file_alone() {
    let volume = Volume::patient(fast());
    let stuck = volume.create("stuck");
    volume.fault.add(Rule::hang().under("seg/").next(1));
    stuck.write_at(0, &pattern(1, LARGE)).unwrap();
    volume.wait_held(1);
    for nth in 0..10 {
        let name = format!("f{nth}");
        let file = volume.create(&name);
        file.write_at(0, &pattern(nth, LARGE)).unwrap();
        within("an fsync of another file", move || file.fsync()).unwrap();
    }
    volume.fault.clear();
    volume.fault.release();
    stuck.fsync().or_else(|_| stuck.fsync()).unwrap();
    drop(stuck);
    let volume = volume.crash();
    assert_same(&volume.content("stuck").unwrap(), &pattern(1, LARGE), "stuck");
    for nth in 0..10 {
        assert_same(&volume.content(&format!("f{nth}")).unwrap(), &pattern(nth, LARGE), "other");
    }
}

/// A store that does not answer at all: an fsync fails after its time limit, and the data stays.
#[test]
fn p02_an_fsync_on_a_store_that_hangs_fails_in_bounded_time() {
    let volume = Volume::new(slow());
    let file = Arc::new(volume.create("a"));
    file.write_at(0, b"kept").unwrap();
    volume.fault.add(Rule::hang());
    let (own, start) = (file.clone(), Instant::now());
    let outcome = spawn("an fsync", move || own.fsync().map_err(|error| error.kind()));
    let failed = outcome.wait().unwrap_err();
    assert!(matches!(failed, ErrorKind::TimedOut | ErrorKind::Io), "{failed:?} after {:?}", start.elapsed());
    // Before the limit of a sync, 30 s, would end it.
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    volume.fault.clear();
    volume.fault.release();
    file.fsync().or_else(|_| file.fsync()).unwrap();
    drop(file);
    assert_eq!(volume.crash().content("a").unwrap(), b"kept");
}

/// P7: the data of other files that cannot be uploaded is not in the way of an fsync.
#[test]
fn p07_fsync_does_not_wait_for_uploads_of_other_files() {
    let volume = Volume::new(Tunables { dirty_background_percent: 1, ..fast() });
    let large = volume.create("large");
    volume.fault.add(Rule::hang().under("seg/"));
    large.write_at(0, &pattern(1, 3_000_000)).unwrap();
    volume.wait_held(1);
    for nth in 0..5_u64 {
        let small = volume.create(&format!("f{nth}"));
        small.write_at(0, &pattern(nth, PAGE)).unwrap();
        within("an fsync of a small file", move || small.fsync()).unwrap();
    }
    drop(large);
    let volume = volume.crash();
    for nth in 0..5_u64 {
        assert_same(&volume.content(&format!("f{nth}")).unwrap(), &pattern(nth, PAGE), "small");
    }
}

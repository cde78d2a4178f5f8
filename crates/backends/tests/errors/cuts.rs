//! Truncations that meet units in flight, refusals and hangs.

use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::{AttrChange, Call};
use slackwater::{Engine, ErrorKind, Tunables};
use slackwater_testkit::{Rule, pattern};

use crate::rig::{Disk, PAGE, PATIENCE, Rig, assert_same, by_hand, read_all, spawn, within};

const A_WHILE: Duration = Duration::from_millis(50);

fn sizes(call: &Call) -> bool {
    matches!(call, Call::Setattr { change: AttrChange { size_bytes: Some(_), .. }, .. })
}

/// Flushes on a thread of its own, since a flusher that never ends would hang the test.
fn step(engine: &Engine) {
    let engine = engine.clone();
    within("a step of the flusher", move || engine.step());
}

#[test]
fn a_file_never_becomes_longer_than_it_is_cut_to() {
    for cut in [0, 1, PAGE as u64 - 1, PAGE as u64, 3 * PAGE as u64 + 5] {
        let rig = Rig::by_hand();
        let file = Arc::new(rig.create("a"));
        let wanted = pattern(1, 10 * PAGE + 50);
        file.write_at(0, &wanted).unwrap();
        let hold = rig.disk.faults.add(Rule::hold().on("write"));
        rig.flush_without_waiting();
        file.write_at(8 * PAGE as u64, &[9; 100]).unwrap(); // rewritten under write-back
        assert_eq!(rig.disk.faults.held().len(), 1);
        let own = file.clone();
        let truncate = spawn("truncate", move || own.set_len(cut));
        assert!(truncate.is_running_after(A_WHILE), "a unit beyond the cut is in flight");
        rig.disk.faults.remove(hold);
        rig.disk.faults.release_all();
        let size = rig.stored("a").unwrap().len() as u64;
        assert!(size <= 10 * PAGE as u64 + 50);
        truncate.wait().unwrap();
        let own = file.clone();
        // Nothing lengthens the file after the truncation.
        within("fsync", move || own.fsync()).unwrap();
        rig.flush_without_waiting();
        rig.volume.sync().unwrap();
        assert_same(&rig.durable("a").unwrap(), &wanted[..cut as usize], "durable");
        assert_same(&read_all(&file), &wanted[..cut as usize], "cached");
    }
}

/// While the truncation is in flight, the flusher sees the short file and writes the last page only up to its end. If
/// the backend then refuses, the rest of that page is still to be written.
#[test]
fn a_refused_cut_loses_no_byte_of_a_page_written_meanwhile() {
    let rig = Rig::by_hand();
    let file = Arc::new(rig.create("a"));
    let wanted = pattern(1, 3 * PAGE);
    file.write_at(0, &wanted).unwrap();
    let rule = rig.disk.faults.add(Rule::hold().matching(sizes));
    let own = file.clone();
    let truncate = spawn("truncate", move || own.set_len(PAGE as u64 + 100));
    let held = rig.disk.faults.wait_held(1, PATIENCE);
    rig.disk.faults.remove(rule);
    for _ in 0..80 {
        rig.clock.advance(Duration::from_millis(500));
        step(&rig.engine);
    }
    assert!(rig.disk.faults.fail(held[0].ticket, ErrorKind::Io));
    assert_eq!(truncate.wait().unwrap_err().kind(), ErrorKind::Io);
    assert_same(&read_all(&file), &wanted, "the file is as before");
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "durable");
    drop(file);
    rig.unmount_and_find_nothing_left();
}

/// Pages beyond the new end are dirty and cannot be submitted. A flusher finds them and has to leave them.
#[test]
fn a_hanging_cut_does_not_keep_a_flusher_busy() {
    // More than the threshold at which background write-back starts.
    let rig = Rig::with(Disk::new(), Tunables { dirty_background_percent: 1, ..by_hand() });
    let file = Arc::new(rig.create("a"));
    let rule = rig.disk.faults.add(Rule::hold().matching(sizes));
    file.write_at(0, &vec![1; 1500 * PAGE]).unwrap();
    let own = file.clone();
    let truncate = spawn("truncate", move || own.set_len(100));
    rig.disk.faults.wait_held(1, PATIENCE);
    for _ in 0..10 {
        rig.clock.advance(Duration::from_secs(5));
        step(&rig.engine);
    }
    rig.disk.faults.remove(rule);
    rig.disk.faults.release_all();
    truncate.wait().unwrap();
    file.fsync().unwrap();
    assert_eq!(rig.durable("a").unwrap(), [1; 100]);
}

#[test]
fn no_page_of_a_cut_is_written_back_before_it_is_over() {
    let rig = Rig::by_hand();
    let file = Arc::new(rig.create("a"));
    file.write_at(0, &[1; PAGE]).unwrap();
    let rule = rig.disk.faults.add(Rule::hold().matching(sizes));
    let own = file.clone();
    let truncate = spawn("truncate", move || own.set_len(100));
    let size = rig.disk.faults.wait_held(1, PATIENCE)[0];
    rig.disk.faults.remove(rule);
    rig.disk.faults.add(Rule::hold().on("write"));
    for _ in 0..80 {
        rig.clock.advance(Duration::from_millis(500));
        step(&rig.engine);
    }
    assert_eq!(rig.disk.faults.held().len(), 1, "the size alone");
    rig.disk.faults.clear();
    rig.disk.faults.release(size.ticket);
    truncate.wait().unwrap();
    file.set_len(PAGE as u64).unwrap();
    let mut wanted = vec![1; 100];
    wanted.resize(PAGE, 0);
    assert_same(&read_all(&file), &wanted, "zeroes behind the cut");
}

#[test]
fn a_refused_extension_leaves_the_file_as_it_was() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, b"as it was").unwrap();
    rig.disk.faults.add(Rule::fail(ErrorKind::NoSpace).matching(sizes).next(1));
    assert_eq!(file.set_len(100_000).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(file.inode().size_bytes(), 9);
    assert_eq!(read_all(&file), b"as it was");
    file.set_len(100).unwrap();
    file.fsync().unwrap();
    assert_eq!(rig.durable("a").unwrap().len(), 100);
}

//! Holes and allocated ranges, in cached and in stored data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use slackwater::ErrorKind;
use slackwater::backend::{FallocateMode, SeekWhence};
use slackwater_testkit::{Random, Rule, pattern};

use crate::rig::{Disk, PAGE, Rig, assert_same, busy, read_all, spawn};

const PAGE_U64: u64 = PAGE as u64;

#[test]
fn a_hole_drops_the_dirty_data_in_it_and_leaves_the_rest() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let mut wanted = pattern(1, 10 * PAGE + 100);
    file.write_at(0, &wanted).unwrap();
    file.fsync().unwrap();
    file.write_at(2 * PAGE_U64, &pattern(2, 5 * PAGE)).unwrap();
    wanted[2 * PAGE..7 * PAGE].copy_from_slice(&pattern(2, 5 * PAGE));
    for (from, to) in [(2 * PAGE + 100, 6 * PAGE + 7), (8 * PAGE, 9 * PAGE), (10, 20), (10 * PAGE, 20 * PAGE)] {
        file.fallocate(FallocateMode::PunchHole, from as u64, (to - from) as u64).unwrap();
        let end = to.min(wanted.len());
        wanted[from..end].fill(0);
        assert_same(&read_all(&file), &wanted, "read after a punch");
    }
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "durable");
    drop(file);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn a_hole_that_is_refused_changes_nothing() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let wanted = pattern(1, 4 * PAGE);
    file.write_at(0, &wanted).unwrap();
    rig.disk.faults.add(Rule::fail(ErrorKind::Unsupported).on("fallocate").next(1));
    let refused = file.fallocate(FallocateMode::PunchHole, 5, 3 * PAGE_U64).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert_same(&read_all(&file), &wanted, "read");
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "durable");
    assert_eq!(file.fallocate(FallocateMode::Zero, 5, 0).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn allocated_space_extends_a_file_unless_keep_size_is_set() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, b"abc").unwrap();
    file.fallocate(FallocateMode::AllocateKeepSize, 0, PAGE_U64).unwrap();
    assert_eq!(file.inode().size_bytes(), 3);
    file.fallocate(FallocateMode::Allocate, 0, 2 * PAGE_U64).unwrap();
    assert_eq!(file.inode().attr().size_bytes, 2 * PAGE_U64);
    file.fallocate(FallocateMode::Zero, 1, 3 * PAGE_U64).unwrap();
    let mut wanted = vec![0; 3 * PAGE + 1];
    wanted[0] = b'a';
    assert_same(&read_all(&file), &wanted, "read");
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "durable");
}

#[test]
fn what_is_dirty_is_data() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.set_len(100 * PAGE_U64).unwrap();
    let seek = |at: u64, whence| file.seek(at, whence).unwrap();
    assert_eq!(seek(0, SeekWhence::Data), None);
    assert_eq!(seek(5, SeekWhence::Hole), Some(5));
    file.write_at(50 * PAGE_U64 + 7, b"x").unwrap();
    for state in ["dirty", "written", "durable"] {
        assert_eq!(seek(0, SeekWhence::Data), Some(50 * PAGE_U64), "{state}");
        assert_eq!(seek(50 * PAGE_U64 + 9, SeekWhence::Data), Some(50 * PAGE_U64 + 9), "{state}");
        assert_eq!(seek(50 * PAGE_U64, SeekWhence::Hole), Some(51 * PAGE_U64), "{state}");
        assert_eq!(seek(51 * PAGE_U64, SeekWhence::Data), None, "{state}");
        if state == "dirty" { file.write_back().unwrap() } else { file.fsync().unwrap() }
    }
    assert_eq!(seek(100 * PAGE_U64, SeekWhence::Hole), None, "behind the end is nothing");
    rig.disk.faults.add(Rule::fail(ErrorKind::Unsupported).on("seek"));
    assert_eq!(seek(5, SeekWhence::Data), Some(5), "all is data to who cannot tell");
    assert_eq!(seek(5, SeekWhence::Hole), Some(100 * PAGE_U64));
}

#[test]
fn holes_beside_readers_and_flushers_show_nothing_old() {
    const PAGES: u64 = 40;
    let rig = Rig::live(Disk::new(), busy());
    let file = Arc::new(rig.create("a"));
    let mut wanted = vec![0; PAGES as usize * PAGE];
    file.set_len(PAGES * PAGE_U64).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (file, stop) = (file.clone(), stop.clone());
            spawn("a reader", move || {
                while !stop.load(Ordering::Relaxed) {
                    let _ = read_all(&file);
                }
            })
        })
        .collect();
    let mut random = Random::new(11);
    for round in 0..600 {
        let from = random.below(wanted.len() as u64);
        let len = 1 + random.below(5 * PAGE_U64).min(wanted.len() as u64 - from - 1);
        let range = from as usize..(from + len) as usize;
        if round % 2 == 0 {
            file.write_at(from, &pattern(round, len as usize)).unwrap();
            wanted[range].copy_from_slice(&pattern(round, len as usize));
        } else {
            let mode = if round % 4 == 1 { FallocateMode::PunchHole } else { FallocateMode::ZeroKeepSize };
            file.fallocate(mode, from, len).unwrap();
            wanted[range].fill(0);
        }
        assert_same(&read_all(&file), &wanted, "read");
        if round % 37 == 0 {
            file.fsync().unwrap();
        }
    }
    stop.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(super::rig::Running::wait);
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "durable");
    drop(file);
    rig.unmount_and_find_nothing_left();
}

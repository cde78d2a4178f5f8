//! The values in `status`: each counts correctly and changes only for its own reason.

#![cfg(not(any(slackwater_loom, slackwater_shuttle)))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[allow(dead_code, reason = "shared with other tests, which use the rest")]
#[path = "dontcache/rig.rs"]
mod rig;

use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::MemBackend;
use slackwater::{ErrorKind, File, PAGE_BYTES, ReadRequest, Tunables, UmountOptions, VolumeStatus};

use crate::rig::{PAGE, Rig, pages, pass_through, read, stored, write};

/// A separate description for one read, which reports its counts when closed.
fn reader(file: &File) -> File {
    File::open(file.inode()).unwrap()
}

/// Pages found by reads, pages fetched for reads, and pages filled from the backend.
fn reads(rig: &Rig) -> (u64, u64, u64) {
    let VolumeStatus { read_hits, read_misses, filled_bytes, .. } = rig.volume.status();
    (read_hits, read_misses, filled_bytes / PAGE_BYTES)
}

#[test]
fn the_first_read_of_a_page_is_a_miss_and_later_ones_are_hits() {
    let rig = Rig::small();
    let file = stored(&rig, "x", 300);
    assert_eq!(reads(&rig), (0, 0, 0), "writes are not reads");
    read(&reader(&file), 10, 10);
    assert_eq!(reads(&rig), (0, 10, 10));
    read(&reader(&file), 15, 10);
    assert_eq!(reads(&rig), (5, 15, 15));
    assert_eq!(reader(&file).peek(ReadRequest::at(11 * PAGE_BYTES), 2 * PAGE, |slices| slices.len()), Some(2));
    assert_eq!(reads(&rig), (7, 15, 15));
    assert!(reader(&file).peek(ReadRequest::at(24 * PAGE_BYTES), 2 * PAGE, |_| ()).is_none());
    assert_eq!(reads(&rig), (7, 15, 15), "it is read then, and counted as filled");
    reader(&file).read_at(10 * PAGE_BYTES + 5, &mut [0; 3]).unwrap();
    assert_eq!(reads(&rig), (8, 15, 15), "a part of a page counts as a page");
    // In the middle of missing pages, and longer than a unit.
    read(&reader(&file), 0, 300);
    assert_eq!(reads(&rig), (8 + 15, 300, 300));
    drop(file);
    rig.umount();
}

#[test]
fn pages_read_ahead_in_time_are_hits() {
    let rig = Rig::with(16 << 20, |tunables| Tunables { readahead_pages: 64, ..tunables });
    let file = stored(&rig, "x", 300);
    let reader = reader(&file);
    (0..300).for_each(|index| drop(read(&reader, index, 1)));
    assert_eq!(reads(&rig), (256, 1, 300), "the first page is a miss; the others are reported in batches of 64");
    drop(reader);
    assert_eq!(reads(&rig), (299, 1, 300));
    drop(file);
    rig.umount();
}

#[test]
fn holes_are_hits_and_failed_reads_and_writes_are_not_counted() {
    let rig = Rig::small();
    let file = stored(&rig, "x", 10);
    write(&file, 20, 1, 1);
    read(&reader(&file), 10, 10);
    assert_eq!(reads(&rig), (10, 0, 0));
    rig.backend.fail_reads_from(5 * PAGE_BYTES);
    reader(&file).read_at(5 * PAGE_BYTES, &mut pages(2, 0)).unwrap_err();
    assert_eq!(reads(&rig), (10, 0, 0));
    rig.backend.fail_reads_from(u64::MAX);
    file.write_at(3 * PAGE_BYTES + 7, b"a part").unwrap();
    assert_eq!(reads(&rig), (10, 0, 1), "the rest of the page came from the backend");
    drop(file);
    rig.umount();
}

#[test]
fn every_failed_attempt_is_counted_and_lowers_the_share() {
    let rig = Rig::small();
    let file = rig.create("x");
    let share = rig.volume.status().share_bytes;
    assert_eq!(share, 8 << 20, "half of the arena");
    write(&file, 0, 3, 1);
    rig.backend.fail(2, 0);
    for failures in 1..3 {
        file.fsync().unwrap_err();
        let status = rig.volume.status();
        assert_eq!((status.failures, status.failing), (failures, Some(ErrorKind::Abandoned)));
        assert!(status.share_bytes < share / 2);
    }
    file.fsync().unwrap();
    let status = rig.volume.status();
    assert_eq!((status.failures, status.failing, status.share_bytes), (2, None, share));
    write(&file, 0, 1, 2);
    rig.backend.fail(0, 1);
    file.fsync().unwrap_err();
    assert_eq!(rig.volume.status().failures, 3, "a commit that fails");
    file.fsync().unwrap();
    drop(file);
    rig.umount();
}

#[test]
fn the_age_is_that_of_the_oldest_dirty_file() {
    let rig = Rig::small();
    let (first, second) = (rig.create("x"), rig.create("y"));
    rig.volume.sync().unwrap();
    assert_eq!(rig.volume.status().oldest, None);
    write(&first, 0, 1, 1);
    rig.clock.advance(Duration::from_secs(7));
    write(&second, 0, 1, 1);
    write(&first, 0, 1, 2);
    rig.clock.advance(Duration::from_secs(1));
    assert_eq!(rig.volume.status().oldest, Some(Duration::from_secs(8)));
    first.fsync().unwrap();
    assert_eq!(rig.volume.status().oldest, Some(Duration::from_secs(1)));
    rig.volume.sync().unwrap();
    assert_eq!(rig.volume.status().oldest, None);
    drop((first, second));
    rig.umount();
}

#[test]
fn only_the_dontcache_write_that_wakes_a_flusher_is_a_kick() {
    let rig = Rig::small();
    let file = rig.create("x");
    write(&file, 100, 1, 1);
    let figures = || (rig.volume.status().dontcache_kicks, rig.volume.status().dontcache_passes);
    assert_eq!(figures(), (0, 0));
    (0..50).for_each(|index| pass_through(&file, index, 1, 1));
    assert_eq!(figures(), (1, 0));
    rig.engine.step();
    assert_eq!(figures(), (1, 1));
    pass_through(&file, 0, 1, 1);
    assert_eq!(figures(), (2, 1));
    drop(file);
    rig.umount();
}

#[test]
fn every_frame_of_the_arena_is_free_dirty_in_flight_or_clean() {
    let rig = Rig::small();
    let file = rig.create("x");
    let frames = || {
        let status = rig.engine.status();
        let parts = [status.dirty_bytes, status.writeback_bytes, status.clean_bytes];
        assert_eq!((status.arena_bytes, parts.iter().sum::<u64>() + status.free_bytes), (16 << 20, 16 << 20));
        parts.map(|bytes| bytes / PAGE_BYTES)
    };
    assert_eq!(frames(), [0, 0, 0]);
    write(&file, 0, 12, 1);
    assert_eq!(frames(), [12, 0, 0]);
    rig.backend.hold_units();
    rig.clock.advance(Duration::from_secs(60));
    rig.engine.step();
    assert_eq!(frames(), [0, 12, 0]);
    rig.backend.release();
    assert_eq!(frames(), [0, 12, 0], "written, but not durable");
    rig.volume.sync().unwrap();
    assert_eq!(frames(), [0, 0, 12]);
    drop(file);
    rig.umount();
}

#[test]
fn an_engine_counts_volumes_and_tenants_created_and_ended() {
    let rig = Rig::small();
    let figures = || (rig.engine.status().volumes, rig.engine.status().tenants, rig.engine.status().drains.drains);
    assert_eq!(figures(), (1, 1, 0));
    let second = rig.engine.mount("second", Arc::new(MemBackend::new())).unwrap();
    let tenant = rig.engine.memcg_create("a", None, None);
    assert_eq!(figures(), (2, 2, 0));
    second.umount(UmountOptions::default()).unwrap();
    assert!(rig.engine.memcg_offline(&tenant));
    drop(tenant);
    assert_eq!(figures(), (1, 1, 1));
    rig.umount();
}

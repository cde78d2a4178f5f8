//! When the flusher runs for DONTCACHE writes, and what it then writes.

use std::sync::Arc;
use std::thread;

use slackwater::{File, PAGE_BYTES};

use crate::rig::{Rig, pages, pass_through, write};

#[test]
fn many_writes_share_one_pass() {
    let rig = Rig::small();
    let file = rig.create("x");
    for index in 0..500 {
        pass_through(&file, index, 1, 1);
    }
    assert_eq!(rig.volume.status().dontcache_passes, 0);
    rig.engine.step();
    assert_eq!((rig.volume.status().dontcache_passes, rig.volume.status().dirty_bytes), (1, 0));
    rig.engine.step();
    assert_eq!(rig.volume.status().dontcache_passes, 1);
    drop(file);
    rig.umount();
}

#[test]
fn ordinary_writes_start_no_pass() {
    let rig = Rig::small();
    let file = rig.create("x");
    write(&file, 0, 100, 1);
    rig.engine.step();
    assert_eq!((rig.volume.status().dontcache_passes, rig.volume.status().dirty_bytes), (0, 100 * PAGE_BYTES));
    drop(file);
    rig.umount();
}

/// The kick is taken before the pages are counted, so a writer that dirties more during the pass gets another one.
#[test]
fn a_write_in_the_middle_of_a_pass_gets_a_pass_of_its_own() {
    let rig = Rig::small();
    let (first, second) = (rig.create("x"), Arc::new(rig.create("y")));
    pass_through(&first, 0, 3, 1);
    let late = Arc::clone(&second);
    // On another thread: this one runs the flusher.
    rig.backend.at_next_unit(move || thread::spawn(move || pass_through(&late, 0, 5, 2)).join().unwrap());
    rig.engine.step();
    assert_eq!((rig.volume.status().dontcache_passes, rig.volume.status().dirty_bytes), (2, 0));
    assert!(rig.backend.mem.volatile_file(second.inode().id()).unwrap() == pages(5, 2));
    drop((first, second));
    rig.umount();
}

#[test]
fn writes_to_a_file_whose_units_are_in_flight_share_the_pass_that_follows_them() {
    let rig = Rig::small();
    let file = rig.create("x");
    pass_through(&file, 0, 1, 1);
    rig.backend.hold_units();
    rig.engine.step();
    for index in 1..100 {
        pass_through(&file, index, 1, 1);
        rig.engine.step();
    }
    assert_eq!((rig.volume.status().dontcache_passes, rig.dontcache_dirty()), (1, 99));
    rig.backend.release();
    rig.engine.step();
    assert_eq!((rig.volume.status().dontcache_passes, rig.dontcache_dirty()), (2, 0));
    drop(file);
    rig.umount();
}

/// A pass writes as many pages as are counted, from the inodes that have been dirty longest, rounded up to chunks of
/// 1024.
#[test]
fn the_count_limits_a_pass_and_age_selects_its_inodes() {
    let rig = Rig::small();
    let (old, young, new) = (rig.create("old"), rig.create("young"), rig.create("new"));
    write(&old, 0, 1100, 1);
    rig.advance(1);
    write(&young, 0, 10, 1);
    rig.advance(1);
    pass_through(&new, 0, 20, 1);
    let unwritten = || [&old, &young, &new].map(|file| file.inode().unclean_bytes() / PAGE_BYTES);
    assert_eq!(unwritten(), [1100, 10, 20]);
    rig.engine.step();
    let status = rig.volume.status();
    assert_eq!((status.unstable_bytes / PAGE_BYTES, rig.dontcache_dirty()), (1024, 20), "a chunk of the oldest");
    let stored = || {
        let len = |file: &File| rig.backend.mem.volatile_file(file.inode().id()).unwrap().len();
        [&old, &young, &new].map(|file| len(file) as u64 / PAGE_BYTES)
    };
    pass_through(&new, 20, 1, 1);
    rig.engine.step();
    assert_eq!((stored(), rig.dontcache_dirty()), ([1100, 0, 0], 21), "the rest of it");
    pass_through(&new, 0, 1, 1);
    rig.engine.step();
    assert_eq!((stored(), rig.dontcache_dirty()), ([1100, 10, 21], 0));
    assert_eq!(rig.volume.status().dontcache_passes, 3);
    drop((old, young, new));
    rig.umount();
}

#[test]
fn a_sync_overtakes_a_blocked_pass() {
    let rig = Rig::small();
    let (file, other) = (rig.create("x"), rig.create("y"));
    for index in 0..6 {
        pass_through(&file, 256 * index, 256, 1);
    }
    rig.backend.hold_units();
    rig.engine.step();
    assert_ne!(rig.volume.status().writeback_bytes, 0);
    rig.backend.release();
    write(&other, 0, 1, 1);
    rig.volume.sync().unwrap();
    assert_eq!((rig.volume.status().bytes_left(), rig.cached()), (0, 1));
    drop((file, other));
    rig.umount();
}

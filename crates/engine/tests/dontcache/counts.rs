//! The count of dirty drop-behind pages, through everything that changes it.

use std::time::{Duration, Instant};

use slackwater::{File, PAGE_BYTES, UmountOptions};

use crate::rig::{PAGE, Rig, pages, pass_through, read, write};

#[test]
fn truncation_and_removal_subtract_their_pages() {
    let rig = Rig::small();
    let (file, removed) = (rig.create("x"), rig.create("y"));
    pass_through(&file, 0, 10, 1);
    pass_through(&removed, 0, 5, 1);
    file.set_len(PAGE_BYTES * 13 / 2).unwrap();
    assert_eq!((rig.dontcache_dirty(), rig.cached()), (12, 12));
    drop(removed);
    rig.volume.remove(&rig.volume.root().unwrap(), "y", slackwater::backend::Removal::File).unwrap();
    assert_eq!((rig.dontcache_dirty(), rig.cached()), (7, 7));
    rig.engine.step();
    file.set_len(PAGE_BYTES).unwrap();
    rig.engine.check_counts().unwrap();
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), 0);
    drop(file);
    rig.umount();
}

#[test]
fn pages_redirtied_by_a_failed_unit_are_counted_and_leave_later() {
    let rig = Rig::small();
    let file = rig.create("x");
    pass_through(&file, 0, 10, 1);
    rig.backend.fail(2, 0);
    rig.engine.step();
    assert_eq!(rig.dontcache_dirty(), 10);
    assert!(read(&file, 0, 10) == pages(10, 1));
    rig.advance(8);
    assert_eq!((rig.dontcache_dirty(), rig.cached()), (0, 0));
    assert!(rig.backend.mem.durable_file(file.inode().id()).unwrap() == pages(10, 1));
    drop(file);
    rig.umount();
}

#[test]
fn pages_redirtied_by_a_failed_commit_are_counted_and_leave_later() {
    for by_fsync in [true, false] {
        let rig = Rig::small();
        let file = rig.create("x");
        pass_through(&file, 0, 10, 1);
        rig.engine.step();
        write(&file, 4, 1, 2);
        rig.backend.fail(0, 1);
        if by_fsync {
            file.fsync().unwrap_err();
        } else {
            rig.volume.sync().unwrap_err();
        }
        assert_eq!((rig.dontcache_dirty(), rig.cached()), (9, 10), "all but the one written ordinarily");
        rig.advance(8);
        assert_eq!((rig.dontcache_dirty(), rig.cached()), (0, 1));
        drop(file);
        rig.umount();
    }
}

/// After nine rounds of another tenant's writes, the file moves together with its first owner's dirty pages.
#[test]
fn the_count_moves_with_the_file_to_another_tenant() {
    let rig = Rig::small();
    let (a, b) = (rig.engine.memcg_create("a", None, None), rig.engine.memcg_create("b", None, None));
    let first = rig.create("x");
    let inode = first.inode().clone();
    let (theirs, ours) = (File::open_for(&inode, &a).unwrap(), File::open_for(&inode, &b).unwrap());
    drop(first);
    pass_through(&theirs, 0, 1, 1);
    theirs.fsync().unwrap();
    for _ in 0..8 {
        write(&ours, 100, 1, 1);
        ours.fsync().unwrap();
    }
    write(&ours, 100, 1, 1);
    assert_eq!(inode.memcg().id(), a.id());
    rig.backend.at_next_unit({
        let theirs = File::open_for(&inode, &a).unwrap();
        move || std::thread::spawn(move || pass_through(&theirs, 0, 10, 2)).join().unwrap()
    });
    ours.fdatasync().unwrap();
    let began = Instant::now();
    while inode.memcg().id() != b.id() {
        assert!(began.elapsed() < Duration::from_secs(60), "timed out waiting for the switch");
        rig.engine.step();
        std::thread::yield_now();
    }
    rig.engine.check_counts().unwrap();
    rig.volume.sync().unwrap();
    assert_eq!((rig.dontcache_dirty(), rig.cached()), (0, 1), "the page of the ordinary write");
    assert!(rig.engine.memcg_offline(&a) && rig.engine.memcg_offline(&b));
    drop((theirs, ours, inode));
    rig.umount();
}

#[test]
fn the_count_is_zero_after_a_flushing_and_a_discarding_unmount() {
    for discard in [false, true] {
        let rig = Rig::small();
        let file = rig.create("x");
        pass_through(&file, 0, 100, 1);
        rig.engine.step();
        pass_through(&file, 50, 100, 2);
        drop(file);
        rig.volume.umount(UmountOptions { discard, ..UmountOptions::default() }).unwrap();
        assert_eq!(rig.cached(), 0);
        assert_eq!(rig.volume.status().dontcache_dirty_bytes, 0);
        if !discard {
            let stored = rig.backend.mem.durable_file("x").unwrap();
            assert!(stored == [pages(50, 1), pages(100, 2)].concat() && stored.len() == 150 * PAGE);
        }
    }
}

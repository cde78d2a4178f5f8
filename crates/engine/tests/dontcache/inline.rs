//! The inline form: the writer itself submits the pages it wrote.

use std::thread;
use std::time::{Duration, Instant};

use slackwater::backend::Backend;
use slackwater::{DontcacheForm, PAGE_BYTES, WaitFor, WriteFlags, WriteRequest, Written};

use crate::rig::{PAGE, Rig, pages, pass_through, read, write};

/// Timeout; reached only if a test fails.
const LONG: Duration = Duration::from_secs(60);

fn inline() -> Rig {
    Rig::formed(DontcacheForm::Inline)
}

#[test]
fn a_writer_writes_back_its_own_pages_and_no_others() {
    let rig = inline();
    let (file, other) = (rig.create("x"), rig.create("y"));
    write(&other, 0, 10, 1);
    write(&file, 100, 10, 1);
    pass_through(&file, 0, 5, 2);
    assert_eq!(
        file.write(WriteRequest::at(7 * PAGE_BYTES + 5).flags(WriteFlags::DONTCACHE), b"a part").unwrap(),
        Written::Bytes(6)
    );
    let status = rig.volume.status();
    assert_eq!((status.dirty_bytes / PAGE_BYTES, status.unstable_bytes / PAGE_BYTES), (20, 6));
    assert_eq!((status.dontcache_passes, rig.dontcache_dirty()), (0, 0));
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), 20);
    assert!(read(&file, 0, 5) == pages(5, 2));
    drop((file, other));
    rig.umount();
}

#[test]
fn a_writer_waits_where_every_slot_is_taken() {
    let rig = inline();
    let slots = rig.backend.limits().units_in_flight as usize;
    let file = rig.create("x");
    rig.backend.hold_units();
    let writer = thread::spawn(move || {
        for unit in 0..=slots as u64 {
            pass_through(&file, 256 * unit, 256, 1);
        }
        file
    });
    let start = Instant::now();
    while rig.backend.held() < slots {
        assert!(start.elapsed() < LONG, "timed out");
        thread::yield_now();
    }
    // Its last bytes are in the cache, and no flusher takes them from there.
    while rig.volume.status().dirty_bytes < 1 << 20 {
        assert!(start.elapsed() < LONG, "timed out");
        thread::yield_now();
    }
    assert!(!writer.is_finished());
    rig.backend.release();
    let file = writer.join().unwrap();
    assert_eq!(rig.volume.status().dirty_bytes, 0);
    drop(file);
    rig.umount();
}

#[test]
fn a_writer_that_may_not_wait_leaves_its_pages_to_the_flusher() {
    let rig = inline();
    let slots = rig.backend.limits().units_in_flight as u64;
    let file = rig.create("x");
    rig.backend.hold_units();
    for unit in 0..=slots {
        let request = WriteRequest::at(unit << 20).flags(WriteFlags::DONTCACHE).wait(WaitFor::Nothing);
        assert_eq!(file.write(request, &pages(256, 1)).unwrap(), Written::Bytes(256 * PAGE));
    }
    assert_eq!((rig.backend.held() as u64, rig.volume.status().dirty_bytes), (slots, 1 << 20));
    rig.backend.release();
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), 0);
    drop(file);
    rig.umount();
}

/// The flusher writes it once it is old.
#[test]
fn a_page_that_is_under_write_back_is_left_dirty() {
    let rig = inline();
    let file = rig.create("x");
    rig.backend.hold_units();
    pass_through(&file, 0, 1, 1);
    pass_through(&file, 0, 1, 2);
    rig.backend.release();
    rig.engine.step();
    assert_eq!((rig.dontcache_dirty(), rig.volume.status().dontcache_passes), (1, 0));
    rig.advance(45);
    assert_eq!((rig.volume.status().bytes_left(), rig.cached()), (0, 0));
    assert!(read(&file, 0, 1) == pages(1, 2));
    drop(file);
    rig.umount();
}

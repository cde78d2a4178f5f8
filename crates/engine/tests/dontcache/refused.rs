//! Obstacles to a DONTCACHE write or read: no free frame, no space, a truncation, a reader that must wait.

use std::thread;
use std::time::{Duration, Instant};

use slackwater::backend::Removal;
use slackwater::{File, PAGE_BYTES, ReadFlags, ReadRequest, Tunables, WaitFor, WriteFlags, WriteRequest, Written};

use crate::rig::{PAGE, Rig, pages, pass_through, read, write};

/// Timeout; reached only if a test fails.
const LONG: Duration = Duration::from_secs(60);

/// A volume that may pin all frames.
fn greedy(arena_bytes: u64) -> Rig {
    Rig::with(arena_bytes, |tunables| Tunables { volume_share_percent: 100, ..tunables })
}

#[test]
fn a_write_is_refused_without_free_frames_and_continues_with_them() {
    let rig = greedy(16 << 20);
    let frames = u64::from(rig.engine.arena().frames());
    let file = rig.create("x");
    rig.backend.hold_units();
    let mut taken = 0;
    let request = |at| WriteRequest::at(at).flags(WriteFlags::DONTCACHE).wait(WaitFor::Backend);
    while let Written::Bytes(bytes) = file.write(request(taken), &pages(64, 1)).unwrap() {
        taken += bytes as u64;
        rig.engine.step();
        assert!(taken <= frames * PAGE_BYTES);
    }
    rig.engine.check_counts().unwrap();
    assert_eq!(file.inode().size_bytes(), taken);
    rig.backend.release();
    rig.advance(6);
    assert_eq!((rig.cached(), rig.volume.status().bytes_left()), (0, 0));
    pass_through(&file, taken / PAGE_BYTES, 64, 2);
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), 0);
    drop(file);
    rig.umount();
}

#[test]
fn a_reader_waits_for_a_free_frame() {
    let rig = greedy(4 << 20);
    let file = rig.create("x");
    pass_through(&file, 0, 8, 1);
    rig.volume.sync().unwrap();
    let full = rig.create("y");
    rig.backend.hold_units();
    let mut taken = 0;
    while let Written::Bytes(bytes) = full.write(WriteRequest::at(taken).wait(WaitFor::Backend), &pages(1, 2)).unwrap()
    {
        taken += bytes as u64;
    }
    let reader = thread::spawn(move || {
        let mut bytes = pages(8, 0);
        assert_eq!(file.read(ReadRequest::at(0).flags(ReadFlags::DONTCACHE), &mut bytes).unwrap(), 8 * PAGE);
        assert!(bytes == pages(8, 1));
        file
    });
    let start = Instant::now();
    while rig.backend.held() == 0 {
        assert!(start.elapsed() < LONG, "timed out: the reader should start write-back");
        thread::yield_now();
    }
    rig.backend.release();
    while !reader.is_finished() {
        assert!(start.elapsed() < LONG, "timed out: the reader should get a frame");
        rig.clock.advance(Duration::from_millis(500));
        rig.engine.step();
    }
    let file = reader.join().unwrap();
    rig.volume.sync().unwrap();
    drop(full);
    rig.volume.remove(&rig.volume.root().unwrap(), "y", Removal::File).unwrap();
    assert_eq!(rig.cached(), 0);
    drop(file);
    rig.umount();
}

#[test]
fn a_full_backend_refuses_a_dontcache_write_like_any_other() {
    let rig = Rig::of_space(16 << 20, 10 * PAGE_BYTES);
    let file = rig.create("x");
    let write_at = |index: u64| {
        let request = WriteRequest::at(index * PAGE_BYTES).flags(WriteFlags::DONTCACHE);
        file.write(request.wait(WaitFor::Backend), &pages(1, 1)).unwrap()
    };
    let taken = (0..=10).take_while(|index| write_at(*index) == Written::Bytes(PAGE)).count() as u64;
    assert!((1..=10).contains(&taken), "{taken} pages");
    assert_eq!(write_at(taken), Written::NoSpace);
    rig.volume.sync().unwrap();
    assert_eq!((rig.cached(), write_at(taken)), (0, Written::NoSpace));
    assert_eq!(write_at(taken - 1), Written::Bytes(PAGE), "an allocated page");
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), 0);
    drop(file);
    rig.umount();
}

#[test]
fn a_truncation_drops_pages_read_ahead() {
    let rig = Rig::with(16 << 20, |tunables| Tunables { readahead_pages: 32, ..tunables });
    let file = rig.create("x");
    pass_through(&file, 0, 32, 1);
    rig.volume.sync().unwrap();
    let read_page = |index: u64| {
        file.read(ReadRequest::at(index * PAGE_BYTES).flags(ReadFlags::DONTCACHE), &mut pages(1, 0)).unwrap()
    };
    assert_eq!((read_page(0), rig.cached()), (PAGE, 15));
    file.set_len(4 * PAGE_BYTES).unwrap();
    assert_eq!(rig.cached(), 3);
    assert_eq!([1, 2, 3, 4].map(read_page), [PAGE, PAGE, PAGE, 0]);
    assert_eq!(rig.cached(), 0);
    drop(file);
    rig.umount();
}

/// In either order, the bytes read are from one of the two, and no page is left.
#[test]
fn readers_racing_with_truncations_and_writers_read_valid_bytes() {
    let rig = Rig::small();
    let file = rig.create("x");
    write(&file, 0, 16, 1);
    rig.volume.sync().unwrap();
    let inode = file.inode().clone();
    let reader = thread::spawn(move || {
        let file = File::open(&inode).unwrap();
        for round in 0..400_u64 {
            let mut bytes = pages(4, 0xee);
            let len =
                file.read(ReadRequest::at(round % 16 * PAGE_BYTES).flags(ReadFlags::DONTCACHE), &mut bytes).unwrap();
            assert!(bytes[..len].iter().all(|byte| matches!(byte, 0..=2)), "round {round}");
        }
    });
    for round in 0..100_u64 {
        file.set_len(round % 16 * PAGE_BYTES + 7).unwrap();
        pass_through(&file, round % 13, 4, 2);
        rig.volume.sync().unwrap();
    }
    reader.join().unwrap();
    rig.engine.check_counts().unwrap();
    let size_bytes = file.inode().size_bytes() as usize;
    assert_eq!(read(&file, 0, size_bytes.div_ceil(PAGE)).len(), size_bytes);
    drop(file);
    rig.umount();
}

#[test]
fn a_switched_file_leaves_nothing() {
    let rig = Rig::with(16 << 20, |tunables| Tunables { readahead_pages: 16, ..tunables });
    let (a, b) = (rig.engine.memcg_create("a", None, None), rig.engine.memcg_create("b", None, None));
    let inode = rig.create("x").inode().clone();
    let of = |memcg| File::open_for(&inode, memcg).unwrap();
    pass_through(&of(&a), 0, 16, 1);
    rig.volume.sync().unwrap();
    let reader = of(&a);
    reader.read(ReadRequest::at(0).flags(ReadFlags::DONTCACHE), &mut pages(1, 0)).unwrap();
    pass_through(&of(&a), 0, 2, 2);
    assert!(rig.engine.memcg_offline(&a));
    pass_through(&of(&b), 1, 2, 3);
    rig.volume.sync().unwrap();
    let start = Instant::now();
    while inode.memcg().id() == a.id() || rig.engine.switches_in_flight() != 0 {
        assert!(start.elapsed() < LONG, "timed out: the file should move to the other tenant");
        rig.engine.step();
        thread::yield_now();
    }
    let mut bytes = pages(16, 0);
    reader.read(ReadRequest::at(0).flags(ReadFlags::DONTCACHE), &mut bytes).unwrap();
    assert!(bytes == [pages(1, 2), pages(2, 3), pages(13, 1)].concat());
    assert_eq!((rig.cached(), rig.dontcache_dirty()), (0, 0));
    drop((reader, inode));
    rig.umount();
}

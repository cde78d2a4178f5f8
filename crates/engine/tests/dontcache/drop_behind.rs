//! Which pages leave the cache once they are durable, and which stay.

use slackwater::{PAGE_BYTES, ReadRequest, WaitFor, WriteFlags, WriteRequest, Written};

use crate::rig::{PAGE, Rig, pages, pass_through, read, write};

#[test]
fn p10_a_dontcache_write_leaves_no_pages_once_it_is_durable() {
    let rig = Rig::small();
    let file = rig.create("x");
    pass_through(&file, 0, 300, 1);
    assert_eq!(
        file.write(WriteRequest::at(300 * PAGE_BYTES).flags(WriteFlags::DONTCACHE), b"a tail").unwrap(),
        Written::Bytes(6)
    );
    assert_eq!((rig.cached(), rig.dontcache_dirty()), (301, 301));
    rig.engine.step();
    assert_eq!((rig.volume.status().dirty_bytes, rig.cached()), (0, 301), "written, and kept until durable");
    rig.advance(6);
    assert_eq!((rig.cached(), rig.volume.status().bytes_left()), (0, 0));
    let stored = rig.backend.mem.durable_file(file.inode().id()).unwrap();
    assert!(stored == [&pages(300, 1)[..], b"a tail"].concat());
    assert!(read(&file, 0, 301) == stored, "from the backend");
    drop(file);
    rig.umount();
}

#[test]
fn p10_no_kind_of_write_leaves_pages() {
    let rig = Rig::small();
    let file = rig.create("x");
    let dontcache = |at| WriteRequest::at(at).flags(WriteFlags::DONTCACHE);
    file.write_at(0, &pages(3, 9)).unwrap();
    file.fsync().unwrap();
    file.set_len(0).unwrap();
    assert_eq!(file.write(dontcache(0).wait(WaitFor::Nothing), &pages(64, 1)).unwrap(), Written::Bytes(64 * PAGE));
    let mut landed = rig.volume.landing_frames(1 << 20).unwrap();
    landed.slices_mut().for_each(|slice| slice.fill(2));
    let written = file.write_landed(dontcache(64 * PAGE_BYTES), &mut landed, 0..1 << 20);
    assert_eq!(written.unwrap(), Written::Bytes(1 << 20));
    // Again, in place and by an exchange of dirty pages.
    assert_eq!(file.write(dontcache(0).wait(WaitFor::Backend), b"one").unwrap(), Written::Bytes(3));
    let written = file.write_landed(dontcache(0), &mut landed, 0..1 << 20);
    assert_eq!(written.unwrap(), Written::Bytes(1 << 20));
    drop(landed);
    assert_eq!(rig.dontcache_dirty(), 64 + 256);
    let lent = 256;
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), lent);
    assert_eq!(file.write(dontcache(10), b"a part of a page that is not here").unwrap(), Written::Bytes(33));
    assert_eq!((rig.cached(), rig.dontcache_dirty()), (lent + 1, 1));
    file.fsync().unwrap();
    assert_eq!(rig.cached(), lent);
    drop(file);
    rig.umount();
}

/// Dirty, under write-back, and written but not yet durable.
#[test]
fn an_ordinary_write_keeps_the_page_whatever_its_state() {
    for state in 0..3 {
        let rig = Rig::small();
        let file = rig.create("x");
        pass_through(&file, 0, 10, 1);
        if state == 1 {
            rig.backend.hold_units();
        }
        if state != 0 {
            rig.engine.step();
        }
        file.write_at(3 * PAGE_BYTES + 5, b"kept").unwrap();
        assert_eq!(rig.dontcache_dirty(), if state == 0 { 9 } else { 0 }, "state {state}");
        rig.backend.release();
        rig.volume.sync().unwrap();
        assert_eq!(rig.cached(), 1, "state {state}");
        let mut want = pages(1, 1);
        want[5..9].copy_from_slice(b"kept");
        assert!(read(&file, 3, 1) == want);
        drop(file);
        rig.umount();
    }
}

#[test]
fn a_store_from_a_mapping_and_an_exchange_keep_the_page() {
    let rig = Rig::small();
    let file = rig.create("x");
    pass_through(&file, 0, 300, 1);
    assert_eq!(file.write(WriteRequest::from_mapping(2 * PAGE_BYTES), &pages(1, 2)).unwrap(), Written::Bytes(PAGE));
    let mut landed = rig.volume.landing_frames(1 << 20).unwrap();
    landed.slices_mut().for_each(|slice| slice.fill(3));
    assert_eq!(
        file.write_landed(WriteRequest::at(44 * PAGE_BYTES), &mut landed, 0..1 << 20).unwrap(),
        Written::Bytes(1 << 20)
    );
    drop(landed);
    assert_eq!(rig.dontcache_dirty(), 43);
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), 1 + 256 + 256, "and the frames on loan");
    drop(file);
    rig.umount();
}

#[test]
fn a_page_rewritten_under_write_back_leaves_after_the_second_unit() {
    let rig = Rig::small();
    let file = rig.create("x");
    pass_through(&file, 0, 4, 1);
    rig.backend.hold_units();
    rig.engine.step();
    pass_through(&file, 0, 2, 2);
    assert_eq!(rig.dontcache_dirty(), 2);
    rig.backend.release();
    rig.engine.step();
    assert_eq!(rig.volume.status().dirty_bytes, 0, "the kick waited for the unit");
    rig.advance(6);
    assert_eq!(rig.cached(), 0);
    assert!(read(&file, 0, 4) == [pages(2, 2), pages(2, 1)].concat());
    drop(file);
    rig.umount();
}

#[test]
fn a_read_neither_keeps_a_page_nor_drops_it() {
    let rig = Rig::small();
    let file = rig.create("x");
    pass_through(&file, 0, 4, 1);
    assert!(read(&file, 0, 2) == pages(2, 1));
    assert_eq!((rig.cached(), rig.dontcache_dirty()), (4, 4));
    rig.engine.step();
    assert!(read(&file, 1, 2) == pages(2, 1));
    assert_eq!(rig.cached(), 4);
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), 0);
    assert!(read(&file, 0, 2) == pages(2, 1));
    assert_eq!(rig.cached(), 2, "read from the backend, like any page");
    drop(file);
    rig.umount();
}

#[test]
fn a_page_being_read_when_it_becomes_clean_stays_as_an_ordinary_one() {
    let rig = Rig::small();
    let file = rig.create("x");
    pass_through(&file, 0, 4, 1);
    let seen = file.peek(ReadRequest::at(PAGE_BYTES), PAGE, |slices| {
        rig.volume.sync().unwrap();
        slices.concat()
    });
    assert!(seen == Some(pages(1, 1)));
    assert_eq!(rig.cached(), 1);
    pass_through(&file, 1, 1, 2);
    assert_eq!(rig.dontcache_dirty(), 0);
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), 1);
    drop(file);
    rig.umount();
}

#[test]
fn a_page_that_was_cached_before_stays() {
    let rig = Rig::small();
    let file = rig.create("x");
    write(&file, 0, 3, 1);
    rig.volume.sync().unwrap();
    write(&file, 1, 1, 2);
    pass_through(&file, 0, 5, 3);
    assert_eq!(rig.dontcache_dirty(), 2, "the third was clean, the second dirty, the last two are new");
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), 3);
    assert_eq!(read(&file, 4, 1).len(), PAGE);
    pass_through(&file, 3, 2, 4);
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), 4, "a read had brought the last one");
    assert!(read(&file, 0, 5) == [pages(3, 3), pages(2, 4)].concat());
    drop(file);
    rig.umount();
}

#[test]
fn a_stream_of_four_times_the_arena_evicts_nothing() {
    let rig = Rig::small();
    let (kept, file) = (rig.create("kept"), rig.create("x"));
    write(&kept, 0, 700, 1);
    rig.volume.sync().unwrap();
    for mebibyte in 0..64_u64 {
        pass_through(&file, 256 * mebibyte, 256, mebibyte as u8);
    }
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), 700);
    let stored = rig.backend.mem.durable_file(file.inode().id()).unwrap();
    assert!(stored.chunks(1 << 20).zip(0_u8..64).all(|(chunk, byte)| chunk.iter().all(|stored| *stored == byte)));
    assert_eq!(stored.len(), 64 << 20);
    drop((kept, file));
    rig.umount();
}

#[test]
fn p10_the_footprint_of_a_stream_is_bounded() {
    let rig = Rig::new(64 << 20);
    let file = rig.create("x");
    let mut most = 0;
    for mebibyte in 0..64_u64 {
        pass_through(&file, 256 * mebibyte, 256, mebibyte as u8);
        most = most.max(rig.cached());
        rig.engine.step();
    }
    assert!(most * PAGE_BYTES <= 9 << 20, "{most} pages: those waiting for a commit, and the last write");
    rig.advance(6);
    assert_eq!(rig.cached(), 0);
    drop(file);
    rig.umount();
}

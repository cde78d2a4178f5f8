//! DONTCACHE reads: only the pages they bring in leave, once they have been read.

use std::sync::Arc;
use std::thread;

use slackwater::{File, PAGE_BYTES, ReadFlags, ReadRequest, Tunables};

use crate::rig::{PAGE, Rig, pages, pass_through, read, stored, write};

/// Reads with DONTCACHE.
fn read_once(file: &File, offset_bytes: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let read = file.read(ReadRequest::at(offset_bytes).flags(ReadFlags::DONTCACHE), &mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

#[test]
fn p10_pages_brought_in_by_a_dontcache_read_leave_once_read() {
    let rig = Rig::small();
    let file = stored(&rig, "x", 300);
    assert!(read_once(&file, 0, 300 * PAGE) == pages(300, 1));
    assert_eq!(rig.cached(), 0);
    assert!(read_once(&file, 70 * PAGE_BYTES + 5, 10) == [1; 10]);
    assert_eq!(rig.cached(), 0);
    drop(file);
    rig.umount();
}

#[test]
fn p10_pages_read_ahead_leave_once_read() {
    let rig = Rig::with(16 << 20, |tunables| Tunables { readahead_pages: 64, ..tunables });
    let file = stored(&rig, "x", 300);
    let mut most = 0;
    for index in 0..300 {
        assert!(read_once(&file, index * PAGE_BYTES, PAGE) == pages(1, 1));
        most = most.max(rig.cached());
    }
    assert!((32..=128).contains(&most), "{most} pages: the current window and the next one");
    assert_eq!(rig.cached(), 0);
    drop(file);
    rig.umount();
}

#[test]
fn a_page_that_was_cached_before_stays() {
    let rig = Rig::small();
    let file = stored(&rig, "x", 10);
    assert!(read(&file, 2, 3) == pages(3, 1));
    write(&file, 7, 1, 2);
    assert!(read_once(&file, 0, 10 * PAGE) == [pages(7, 1), pages(1, 2), pages(2, 1)].concat());
    assert_eq!(rig.cached(), 4);
    assert!(
        file.peek(ReadRequest::at(2 * PAGE_BYTES).flags(ReadFlags::DONTCACHE), 3 * PAGE, |slices| slices.concat())
            == Some(pages(3, 1))
    );
    assert_eq!(rig.cached(), 4);
    drop(file);
    rig.umount();
}

/// The page stays as long as the reader continues there. Otherwise each of its small reads would fetch the whole page
/// from the backend again.
#[test]
fn a_sequential_reader_keeps_the_page_in_whose_middle_it_stopped() {
    let rig = Rig::small();
    let file = stored(&rig, "x", 2);
    for tenth in 0..2 * PAGE / 512 {
        assert_eq!(rig.cached(), u64::from(!tenth.is_multiple_of(8)));
        assert!(read_once(&file, tenth as u64 * 512, 512) == [1; 512]);
    }
    assert_eq!(rig.cached(), 0);
    drop(file);
    rig.umount();
}

#[test]
fn a_plain_read_neither_drops_nor_keeps_pages_read_ahead() {
    let rig = Rig::with(16 << 20, |tunables| Tunables { readahead_pages: 16, ..tunables });
    let file = stored(&rig, "x", 16);
    assert!(read_once(&file, 0, PAGE) == pages(1, 1));
    assert_eq!(rig.cached(), 15);
    assert!(read(&file, 1, 15) == pages(15, 1));
    assert_eq!(rig.cached(), 15);
    assert!(
        file.peek(ReadRequest::at(PAGE_BYTES).flags(ReadFlags::DONTCACHE), 15 * PAGE, |slices| slices.concat())
            == Some(pages(15, 1))
    );
    assert_eq!(rig.cached(), 0);
    drop(file);
    rig.umount();
}

#[test]
fn a_page_written_before_it_is_read_is_treated_as_written() {
    let rig = Rig::with(16 << 20, |tunables| Tunables { readahead_pages: 16, ..tunables });
    let file = stored(&rig, "x", 16);
    assert!(read_once(&file, 0, PAGE) == pages(1, 1));
    write(&file, 3, 1, 2);
    pass_through(&file, 4, 1, 3);
    assert_eq!((rig.dontcache_dirty(), rig.cached()), (1, 15));
    let rest = [pages(2, 1), pages(1, 2), pages(1, 3), pages(11, 1)].concat();
    assert!(read_once(&file, PAGE_BYTES, 15 * PAGE) == rest);
    assert_eq!((rig.dontcache_dirty(), rig.cached()), (1, 2), "dirty pages are kept until durable");
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), 1, "the page of the ordinary write");
    drop(file);
    rig.umount();
}

#[test]
fn a_page_held_by_another_reader_stays_for_the_next_dontcache_read() {
    let rig = Rig::with(16 << 20, |tunables| Tunables { readahead_pages: 4, ..tunables });
    let file = stored(&rig, "x", 4);
    assert!(read_once(&file, 0, PAGE) == pages(1, 1));
    let other = File::open(file.inode()).unwrap();
    file.peek(ReadRequest::at(PAGE_BYTES), PAGE, |_| assert!(read_once(&other, PAGE_BYTES, 3 * PAGE) == pages(3, 1)))
        .unwrap();
    assert_eq!(rig.cached(), 1);
    assert!(read_once(&other, PAGE_BYTES, PAGE) == pages(1, 1));
    assert_eq!(rig.cached(), 0);
    drop((file, other));
    rig.umount();
}

#[test]
fn a_failed_read_leaves_nothing() {
    let rig = Rig::small();
    let file = stored(&rig, "x", 300);
    rig.backend.fail_reads_from(256 * PAGE_BYTES);
    let failed = file.read(ReadRequest::at(0).flags(ReadFlags::DONTCACHE), &mut pages(300, 0));
    assert!(failed.is_err());
    assert_eq!(rig.cached(), 0);
    rig.backend.fail_reads_from(u64::MAX);
    assert!(read_once(&file, 0, 300 * PAGE) == pages(300, 1));
    drop(file);
    rig.umount();
}

#[test]
fn reading_four_times_the_arena_evicts_nothing() {
    let rig = Rig::small();
    let kept = rig.create("kept");
    write(&kept, 0, 700, 2);
    rig.volume.sync().unwrap();
    let file = rig.create("x");
    for mebibyte in 0..64_u64 {
        pass_through(&file, 256 * mebibyte, 256, mebibyte as u8);
    }
    rig.volume.sync().unwrap();
    for mebibyte in 0..64_u64 {
        assert!(read_once(&file, mebibyte << 20, 1 << 20).iter().all(|byte| *byte == mebibyte as u8));
    }
    assert_eq!(rig.cached(), 700);
    drop((kept, file));
    rig.umount();
}

#[test]
fn concurrent_readers_of_both_kinds_read_the_right_bytes() {
    let rig = Rig::with(16 << 20, |tunables| Tunables { readahead_pages: 8, ..tunables });
    let file = Arc::new(stored(&rig, "x", 64));
    let readers: Vec<_> = (0..4_usize)
        .map(|number| {
            let inode = file.inode().clone();
            thread::spawn(move || {
                let file = File::open(&inode).unwrap();
                for at in (0..64).map(|step| (step * (2 * number as u64 + 1)) % 64) {
                    let bytes = if number == 0 { read(&file, at, 1) } else { read_once(&file, at * PAGE_BYTES, PAGE) };
                    assert!(bytes == pages(1, 1), "page {at}");
                }
            })
        })
        .collect();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    rig.engine.check_counts().unwrap();
    drop(file);
    rig.umount();
}

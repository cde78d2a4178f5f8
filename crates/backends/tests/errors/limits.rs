//! Offsets and sizes that no backend can store are refused before anything is cached.

use slackwater::backend::Limits;
use slackwater::{ErrorKind, FileError, WaitFor, WriteRequest, Written};
use slackwater_testkit::pattern;

use crate::rig::{Disk, PAGE, Rig, assert_same, by_hand, limits, read_all};

const MAX: u64 = 100_001;

fn rig() -> Rig {
    Rig::with(Disk::with_limits(Limits { max_file_bytes: MAX, ..limits() }), by_hand())
}

#[test]
fn writes_beyond_the_largest_file_are_refused_whole() {
    let rig = rig();
    let file = rig.create("a");
    for (at, len) in [(MAX, 1), (MAX - 1, 2), (0, MAX + 1), (u64::MAX, 1), (u64::MAX - 5, 6), (i64::MAX as u64, 9)] {
        let bytes = vec![7; len as usize];
        let error = file.write_at(at, &bytes).unwrap_err();
        let FileError::TooLarge { offset_bytes, len_bytes, max_file_bytes } = error else { panic!("{error}") };
        assert_eq!((offset_bytes, len_bytes, max_file_bytes), (at, len, MAX));
        assert_eq!(
            file.write(WriteRequest::at(at).wait(WaitFor::Backend), &bytes).unwrap_err().kind(),
            ErrorKind::TooLarge
        );
    }
    assert_eq!(file.inode().size_bytes(), 0);
    assert_eq!(rig.volume.status().bytes_left(), 0);
    file.write_at(MAX - 1, b"x").unwrap();
    assert_eq!(file.try_append(b"y").unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(file.write_at(u64::MAX, b"").map_err(|error| error.kind()), Ok(()), "nothing fits everywhere");
    file.fsync().unwrap();
    assert_eq!(rig.durable("a").unwrap().len() as u64, MAX);
}

#[test]
fn sizes_beyond_the_largest_file_are_refused() {
    let rig = rig();
    let file = rig.create("a");
    file.write_at(0, b"kept").unwrap();
    for size in [MAX + 1, u64::MAX, 1 << 63] {
        assert!(matches!(file.set_len(size), Err(FileError::TooLarge { .. })));
    }
    file.set_len(MAX).unwrap();
    file.fsync().unwrap();
    assert_eq!(rig.durable("a").unwrap()[..4], *b"kept");
    assert_eq!(rig.durable("a").unwrap().len() as u64, MAX);
}

#[test]
fn reads_beyond_the_end_are_empty_at_any_offset() {
    let rig = rig();
    let file = rig.create("a");
    file.write_at(0, b"four").unwrap();
    for at in [4, 5, PAGE as u64, MAX, MAX + 1, 1 << 52, u64::MAX - 1, u64::MAX] {
        let mut buffer = [9; 10];
        assert_eq!(file.read_at(at, &mut buffer).unwrap(), 0);
        assert_eq!(buffer, [9; 10], "untouched");
    }
    assert_eq!(file.read_at(2, &mut [0; 10]).unwrap(), 2);
    assert_eq!(file.read_at(0, &mut []).unwrap(), 0);
}

#[test]
fn the_last_page_is_written_with_its_exact_length() {
    let rig = Rig::by_hand();
    for (nth, len) in [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE - 1, 256 * PAGE, 256 * PAGE + 1].into_iter().enumerate() {
        let name = format!("f{nth}");
        let wanted = pattern(nth as u64, len);
        let file = rig.create(&name);
        file.write_at(0, &wanted).unwrap();
        rig.flush_without_waiting();
        assert_same(&rig.stored(&name).unwrap(), &wanted, "flushed");
        file.fsync().unwrap();
        assert_same(&rig.durable(&name).unwrap(), &wanted, "synced");
        // Also when it becomes a page in the middle.
        file.write_at(len as u64 + 10, b"x").unwrap();
        file.fsync().unwrap();
        let stored = rig.durable(&name).unwrap();
        assert_eq!(stored.len(), len + 11);
        assert_eq!(stored[len..len + 10], [0; 10]);
        assert_same(&read_all(&file), &stored, "cached");
    }
    rig.unmount_and_find_nothing_left();
}

#[test]
fn a_sparse_file_of_the_largest_size_costs_what_is_in_it() {
    let rig = Rig::by_hand();
    let max = rig.volume.bdi().limits().max_file_bytes;
    let file = rig.create("a");
    for at in [0, 1 << 30, 1 << 40, max - 3] {
        assert_eq!(file.write(WriteRequest::at(at).wait(WaitFor::Backend), b"abc").unwrap(), Written::Bytes(3));
    }
    assert_eq!(rig.volume.bdi().pinned_frames(), 4);
    file.fsync().unwrap();
    for at in [0, 1 << 30, 1 << 40, max - 3] {
        let mut bytes = [9; 4];
        let wanted: &[u8] = if at == max - 3 { b"abc" } else { b"abc\0" };
        assert_eq!(file.read_at(at, &mut bytes).unwrap(), wanted.len());
        assert_eq!(&bytes[..wanted.len()], wanted);
    }
    file.set_len(1).unwrap();
    drop(file);
    rig.unmount_and_find_nothing_left();
}

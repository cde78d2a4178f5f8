//! No byte of another file, and no byte from beyond an end, is ever visible.

use slackwater::Tunables;
use slackwater_testkit::Rule;

use crate::rig::{Disk, PAGE, Rig, assert_same, by_hand, fill, read_all};

/// A rig in which every frame has been used, and holds bytes that are never zero.
fn used_rig() -> Rig {
    let rig = Rig::with(Disk::new(), Tunables { volume_share_percent: 100, ..by_hand() });
    for name in ["secret", "another"] {
        let file = rig.create(name);
        assert!(fill(&file, 0) > 8 << 20);
        file.fsync().unwrap();
        drop(file);
    }
    rig.unlink("secret");
    rig
}

#[test]
fn a_page_that_is_written_in_part_is_zero_elsewhere() {
    let rig = used_rig();
    for (nth, (at, len)) in [(0, 1), (1, 1), (4095, 1), (4095, 2), (5000, 3), (4096, 100)].into_iter().enumerate() {
        let name = format!("f{nth}");
        let file = rig.create(&name);
        file.write_at(at, &vec![7; len]).unwrap();
        let mut wanted = vec![0; at as usize];
        wanted.resize(at as usize + len, 7);
        assert_same(&read_all(&file), &wanted, "cached");
        // Bytes beyond the old end become visible as zeroes.
        file.set_len(at + 10_000).unwrap();
        wanted.resize(at as usize + 10_000, 0);
        assert_same(&read_all(&file), &wanted, "extended");
        file.write_at(at + 20_000, b"x").unwrap();
        wanted.resize(at as usize + 20_000, 0);
        wanted.push(b'x');
        assert_same(&read_all(&file), &wanted, "extended by a write");
        file.fsync().unwrap();
        assert_same(&rig.durable(&name).unwrap(), &wanted, "durable");
    }
}

#[test]
fn holes_are_zero_in_the_cache_and_from_the_backend() {
    let rig = used_rig();
    let file = rig.create("a");
    file.write_at(3_000_000, &[7; 10]).unwrap();
    let mut wanted = vec![0; 3_000_000];
    wanted.extend_from_slice(&[7; 10]);
    assert_same(&read_all(&file), &wanted, "before write-back");
    file.fsync().unwrap();
    assert_same(&read_all(&file), &wanted, "after write-back");
    // Evict the page, and read the hole from the backend.
    fill(&rig.create("filler"), 0);
    rig.volume.sync().unwrap();
    fill(&rig.create("filler2"), 0);
    rig.volume.sync().unwrap();
    assert_same(&read_all(&file), &wanted, "read again");
    assert_same(&rig.durable("a").unwrap(), &wanted, "durable");
}

#[test]
fn cut_bytes_do_not_come_back_when_the_file_grows() {
    let rig = used_rig();
    for evict in [false, true] {
        for (cut, grown) in [(100, 5000), (4096, 9000), (5000, 5001), (0, 20_000), (4095, 4096)] {
            let file = rig.create("a");
            file.write_at(0, &[9; 12_000]).unwrap();
            if evict {
                file.fsync().unwrap();
            }
            file.set_len(cut).unwrap();
            let mut wanted = vec![9; cut as usize];
            wanted.resize(grown, 0);
            wanted[grown - 1] = 1;
            file.write_at(grown as u64 - 1, &[1]).unwrap();
            assert_same(&read_all(&file), &wanted, "cached");
            file.fsync().unwrap();
            assert_same(&rig.durable("a").unwrap(), &wanted, "durable");
            drop(file);
            rig.unlink("a");
        }
    }
}

/// A partial page at the end of the backing file, of which the backend fills only the beginning.
#[test]
fn behind_the_end_of_a_short_read_are_zeroes() {
    let rig = used_rig();
    let file = rig.create("a");
    file.write_at(0, &[5; PAGE + 10]).unwrap();
    file.fsync().unwrap();
    fill(&rig.create("filler"), 0);
    rig.volume.sync().unwrap();
    fill(&rig.create("filler2"), 0);
    rig.volume.sync().unwrap();
    // A write behind the end turns the old last page into one in the middle.
    file.write_at(3 * PAGE as u64, b"x").unwrap();
    let mut wanted = vec![5; PAGE + 10];
    wanted.resize(3 * PAGE, 0);
    wanted.push(b'x');
    assert_same(&read_all(&file), &wanted, "cached");
    file.write_at(PAGE as u64 + 20, b"y").unwrap();
    wanted[PAGE + 20] = b'y';
    assert_same(&read_all(&file), &wanted, "cached");
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "durable");
}

/// A failed read leaves no frame behind for the next reader.
#[test]
fn a_failed_read_shows_nothing() {
    let rig = used_rig();
    let file = rig.create("a");
    file.write_at(0, &[5; 50_000]).unwrap();
    file.fsync().unwrap();
    for nth in 0..3 {
        fill(&rig.create(&format!("filler{nth}")), 0);
        rig.volume.sync().unwrap();
    }
    rig.disk.faults.add(Rule::fail(slackwater::ErrorKind::Io).on("read").next(2));
    for _ in 0..2 {
        let mut buffer = vec![0; 50_000];
        assert_eq!(file.read_at(0, &mut buffer).unwrap_err().kind(), slackwater::ErrorKind::Io);
        assert!(buffer.iter().all(|byte| [0, 5].contains(byte)));
    }
    assert_same(&read_all(&file), &[5; 50_000], "a");
    // A write to part of a page needs the rest of it.
    for nth in 3..6 {
        fill(&rig.create(&format!("filler{nth}")), 0);
        rig.volume.sync().unwrap();
    }
    rig.disk.faults.add(Rule::fail(slackwater::ErrorKind::Io).on("read").next(1));
    assert_eq!(file.write_at(100, b"part").unwrap_err().kind(), slackwater::ErrorKind::Io);
    file.write_at(100, b"part").unwrap();
    let mut wanted = vec![5; 50_000];
    wanted[100..104].copy_from_slice(b"part");
    assert_same(&read_all(&file), &wanted, "a");
}

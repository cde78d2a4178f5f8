//! Reading and writing: appends, truncation, holes, copies and allocation.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};

use rustix::fs::{FallocateFlags, OFlags, copy_file_range, fallocate};
use rustix::io::{ReadWriteFlags, pwritev2};
use slackwater_testkit::pattern;

use crate::acls::as_user;
use crate::rig::{Rig, assert_same};

#[test]
fn written_bytes_are_read_back_and_reach_the_source_with_a_sync() {
    let rig = Rig::new();
    let wanted = pattern(1, 3_000_001);
    fs::write(rig.file("a"), &wanted).unwrap();
    assert_same(&fs::read(rig.file("a")).unwrap(), &wanted);
    rig.mounted.sync().unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &wanted);
    rig.umount().unwrap();
}

/// Overlapping writes of all sizes, with pages in every state.
#[test]
fn overlapping_large_writes_leave_the_last_bytes() {
    let rig = Rig::new();
    let writers: Vec<_> = (0..2_u64)
        .map(|writer| {
            let path = rig.file(format!("large-{writer}"));
            std::thread::spawn(move || {
                let mut wanted = Vec::new();
                for round in 0..60 {
                    let len = [1 << 20, 300_000, 5000, 131_072, (1 << 20) + 4113][round % 5];
                    let offset = (round * 37 % 11) * 65_536 + if round % 7 == 6 { 100 } else { 0 };
                    let bytes = pattern(writer + 3 * round as u64, len);
                    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).unwrap();
                    file.write_all_at(&bytes, offset as u64).unwrap();
                    wanted.resize(wanted.len().max(offset + len), 0);
                    wanted[offset..offset + len].copy_from_slice(&bytes);
                    match round % 9 {
                        3 => file.sync_data().unwrap(),
                        5 | 8 => assert_same(&fs::read(&path).unwrap(), &wanted),
                        _ => {}
                    }
                }
                assert_same(&fs::read(&path).unwrap(), &wanted);
                wanted
            })
        })
        .collect();
    let wanted: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    rig.umount().unwrap();
    for (writer, wanted) in wanted.iter().enumerate() {
        assert_same(&fs::read(rig.stored(format!("large-{writer}"))).unwrap(), wanted);
    }
}

#[test]
fn fsync_writes_one_file_back_to_the_source() {
    let rig = Rig::new();
    let file = File::create(rig.file("a")).unwrap();
    file.write_all_at(&pattern(2, 100_000), 5).unwrap();
    file.sync_all().unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap()[5..], &pattern(2, 100_000));
    // Durable when the call returns.
    let file = OpenOptions::new().write(true).custom_flags(OFlags::SYNC.bits() as i32).open(rig.file("a")).unwrap();
    file.write_all_at(b"synced", 50).unwrap();
    assert_eq!(&fs::read(rig.stored("a")).unwrap()[50..56], b"synced");
}

#[test]
fn appends_of_two_writers_do_not_overlap() {
    let rig = Rig::new();
    let writers: Vec<_> = [b'a', b'b']
        .into_iter()
        .map(|letter| {
            let path = rig.file("log");
            std::thread::spawn(move || {
                let mut log = OpenOptions::new().append(true).create(true).open(path).unwrap();
                (0..200).for_each(|_| log.write_all(&[letter; 100]).unwrap());
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let log = fs::read(rig.file("log")).unwrap();
    assert_eq!(log.len(), 40_000);
    assert!(log.chunks(100).all(|line| line.iter().all(|letter| *letter == line[0])), "an append was torn");
}

#[test]
fn a_truncated_file_has_its_size_at_once_and_zeroes_when_extended() {
    let rig = Rig::new();
    fs::write(rig.file("a"), pattern(3, 10_000)).unwrap();
    let mut file = OpenOptions::new().read(true).write(true).open(rig.file("a")).unwrap();
    file.set_len(5000).unwrap();
    assert_eq!(fs::metadata(rig.file("a")).unwrap().len(), 5000);
    file.set_len(9000).unwrap();
    let mut found = Vec::new();
    file.read_to_end(&mut found).unwrap();
    assert_same(&found[..5000], &pattern(3, 10_000)[..5000]);
    assert!(found[5000..].iter().all(|byte| *byte == 0) && found.len() == 9000);
    drop(OpenOptions::new().write(true).truncate(true).open(rig.file("a")).unwrap());
    assert_eq!(fs::metadata(rig.file("a")).unwrap().len(), 0);
    assert_eq!(fs::metadata(rig.stored("a")).unwrap().len(), 0);
}

#[test]
fn a_truncated_and_rewritten_file_is_in_the_source_when_it_is_closed() {
    let rig = Rig::new();
    fs::write(rig.file("conf"), b"old").unwrap();
    rig.mounted.sync().unwrap();
    fs::write(rig.file("conf"), b"new and longer").unwrap();
    assert_eq!(fs::read(rig.stored("conf")).unwrap(), b"new and longer");
}

#[test]
fn holes_are_found_and_punched() {
    let rig = Rig::new();
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(rig.file("a")).unwrap();
    file.write_all_at(&pattern(4, 65_536), 0).unwrap();
    file.write_all_at(&pattern(5, 4096), 1 << 20).unwrap();
    let seek = |offset, whence: fn(u64) -> rustix::fs::SeekFrom| rustix::fs::seek(&file, whence(offset));
    assert_eq!(seek(0, rustix::fs::SeekFrom::Data), Ok(0));
    assert_eq!(seek(0, rustix::fs::SeekFrom::Hole), Ok(65_536));
    assert_eq!(seek(65_536, rustix::fs::SeekFrom::Data), Ok(1 << 20));
    assert_eq!(seek(2 << 20, rustix::fs::SeekFrom::Data), Err(rustix::io::Errno::NXIO));
    fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 8192).unwrap();
    let mut found = vec![0; 65_536];
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_exact(&mut found).unwrap();
    assert!(found[4096..12_288].iter().all(|byte| *byte == 0));
    assert_same(&found[12_288..], &pattern(4, 65_536)[12_288..]);
    fallocate(&file, FallocateFlags::empty(), 2 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (2 << 20) + 4096);
    assert!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096).is_err());
    file.sync_all().unwrap();
    let stored = fs::read(rig.stored("a")).unwrap();
    assert_same(&stored[..65_536], &found);
    assert_same(&stored[1 << 20..][..4096], &pattern(5, 4096));
}

#[test]
fn the_kernel_copies_within_the_mount() {
    let rig = Rig::new();
    let wanted = pattern(6, 2_500_000);
    fs::write(rig.file("a"), &wanted).unwrap();
    let (from, to) = (File::open(rig.file("a")).unwrap(), File::create(rig.file("b")).unwrap());
    let (mut at, mut there) = (0, 0);
    while copy_file_range(&from, Some(&mut at), &to, Some(&mut there), 1 << 30).unwrap() > 0 {}
    assert_eq!(there, wanted.len() as u64);
    assert_same(&fs::read(rig.file("b")).unwrap(), &wanted);
}

#[test]
fn direct_and_cached_readers_see_each_write() {
    let rig = Rig::new();
    fs::write(rig.file("a"), pattern(7, 8192)).unwrap();
    let cached = File::open(rig.file("a")).unwrap();
    let direct = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(rig.file("a")).unwrap();
    let writer = OpenOptions::new().write(true).open(rig.file("a")).unwrap();
    let (mut byte, mut page) = ([0], vec![0; 8192]);
    for round in 0..=255 {
        writer.write_all_at(&[round], 4097).unwrap();
        cached.read_exact_at(&mut byte, 4097).unwrap();
        assert_eq!(byte[0], round, "cached");
        let from = page.as_ptr().align_offset(4096).min(4096);
        direct.read_at(&mut page[from..from + 4096], 4096).unwrap();
        assert_eq!(page[from + 1], round, "direct");
    }
}

#[test]
fn a_change_in_the_source_is_seen_after_a_while() {
    let rig = Rig::new();
    fs::write(rig.file("a"), b"from here").unwrap();
    rig.mounted.sync().unwrap();
    let open = File::open(rig.file("a")).unwrap();
    let mut found = [0; 9];
    open.read_exact_at(&mut found, 0).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(rig.stored("a"), b"elsewhere, and longer").unwrap();
    crate::programs::until("the change is seen", || {
        let _ = open.metadata().unwrap();
        let mut found = [0; 9];
        open.read_exact_at(&mut found, 0).unwrap();
        &found == b"elsewhere" && fs::read(rig.file("a")).unwrap() == b"elsewhere, and longer"
    });
}

#[test]
fn a_written_file_does_not_look_like_a_hole() {
    let rig = Rig::new();
    fs::write(rig.file("a"), pattern(8, 100_000)).unwrap();
    let stat = fs::metadata(rig.file("a")).unwrap();
    assert!(stat.blocks() * 512 >= 100_000, "{} blocks", stat.blocks());
}

#[test]
fn a_write_by_another_user_clears_setuid() {
    let rig = Rig::new();
    fs::write(rig.file("tool"), b"x").unwrap();
    fs::set_permissions(rig.file("tool"), std::os::unix::fs::PermissionsExt::from_mode(0o4777)).unwrap();
    let script = format!("echo changed > {}", rig.file("tool").display());
    let mut child = std::process::Command::new("setpriv");
    child.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &script]).current_dir("/");
    assert!(child.status().unwrap().success());
    assert_eq!(fs::metadata(rig.file("tool")).unwrap().mode() & 0o7777, 0o777);
    rig.mounted.sync().unwrap();
    assert_eq!(fs::metadata(rig.stored("tool")).unwrap().mode() & 0o7777, 0o777);
    assert_eq!(fs::read(rig.stored("tool")).unwrap(), b"changed\n");
}

/// Setgid without group execution means mandatory locking, and stays. It was cleared.
#[test]
fn a_change_of_owner_clears_setuid_and_setgid_as_on_other_file_systems() {
    let rig = Rig::new();
    for (given, wanted) in [(0o6644, 0o2644), (0o6755, 0o755), (0o2640, 0o2640)] {
        for path in [rig.file("file"), rig.stored("plain")] {
            fs::write(&path, "text").unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(given)).unwrap();
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, wanted, "{}: {given:o}", path.display());
            fs::remove_file(&path).unwrap();
        }
    }
    rig.umount().unwrap();
}

/// Cleared in the source before the bytes are taken, and in the kernel's cached attributes. So if the process dies, no
/// file keeps the owner's rights with another user's bytes.
#[test]
fn every_change_by_another_user_clears_setuid_and_setgid_at_once() {
    type Change = fn(&File);
    let changes: [(&str, Change); 6] = [
        ("write", |file| file.write_all_at(b"theirs", 0).unwrap()),
        ("truncate", |file| file.set_len(10).unwrap()),
        ("allocate", |file| fallocate(file, FallocateFlags::empty(), 0, 20_000).unwrap()),
        ("punch", |file| fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096).unwrap()),
        ("zero", |file| fallocate(file, FallocateFlags::ZERO_RANGE, 0, 4096).unwrap()),
        ("copy", |file| {
            assert_eq!(copy_file_range(file, Some(&mut 0), file, Some(&mut 8192), 100), Ok(100));
        }),
    ];
    let rig = Rig::new();
    for (name, change) in changes {
        for given in [0o6666, 0o4757, 0o6777] {
            let (path, stored) = (rig.file(name), rig.stored(name));
            let _ = fs::remove_file(&path);
            fs::write(&path, pattern(1, 9000)).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(given)).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, given);
            let mode = as_user(65_534, 65_534, || {
                let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
                change(&file);
                file.metadata().unwrap().mode() & 0o7777
            });
            assert_eq!(mode, given & 0o777, "{name}: by the open file");
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, given & 0o777, "{name}: by name");
            assert_eq!(fs::metadata(&stored).unwrap().mode() & 0o7777, given & 0o777, "{name}: in the source");
        }
    }
    rig.umount().unwrap();
}

/// `O_DSYNC` is 0o10000 in the kernel, whatever value a library gives that name.
#[test]
fn a_synchronous_write_is_in_the_source_when_it_returns() {
    let rig = Rig::new();
    let bytes = pattern(3, 10_000);
    for (name, flags) in [("dsync", 0o10_000), ("sync", 0o4_010_000)] {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).custom_flags(flags).open(rig.file(name)).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        assert_same(&fs::read(rig.stored(name)).unwrap(), &bytes);
        // Beyond the end, and into the resulting hole.
        for at in [100_000, 50_000] {
            file.write_all_at(&bytes, at).unwrap();
            assert_same(&fs::read(rig.stored(name)).unwrap()[at as usize..][..bytes.len()], &bytes);
        }
    }
    for (name, flag) in [("one-dsync", ReadWriteFlags::DSYNC), ("one-sync", ReadWriteFlags::SYNC)] {
        let file = File::create_new(rig.file(name)).unwrap();
        assert_eq!(pwritev2(&file, &[IoSlice::new(&bytes)], 0, flag), Ok(bytes.len()));
        assert_same(&fs::read(rig.stored(name)).unwrap(), &bytes);
    }
    let lazy = File::create_new(rig.file("lazy")).unwrap();
    lazy.write_all_at(&bytes, 0).unwrap();
    assert_eq!(fs::metadata(rig.stored("lazy")).unwrap().len(), 0, "other writes are not written back by then");
    drop(lazy);
    rig.umount().unwrap();
}

//! Programs keep everything that they have open at a kill: removed files, half-read directories, locks, mappings,
//! directories, and every mount point.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RawDir, SeekFrom, fcntl_lock, flock, openat, seek};
use rustix::io::Errno;

use super::kept::Kept;
use crate::rig::arena::{damage_record, frame_of};
use crate::rig::{bytes, wait_for_a_later_time, wait_until};
use crate::sys::Mapped;

fn new_file(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

#[track_caller]
fn assert_content(file: &File, wanted: &[u8]) {
    let mut found = vec![0; wanted.len() + 1];
    let mut len = 0;
    while let got @ 1.. = file.read_at(&mut found[len..], len as u64).unwrap() {
        len += got;
    }
    assert!(found[..len] == *wanted, "{len} bytes of {}", wanted.len());
}

#[test]
fn p09_a_file_that_was_removed_while_open_keeps_its_bytes_over_kills() {
    let mut kept = Kept::new(&[]);
    let (unlinked, replaced) = (kept.mountpoint.join("unlinked"), kept.mountpoint.join("replaced"));
    let (one, other) = (new_file(&unlinked), new_file(&replaced));
    let (first, second) = (bytes(1, 3_000_000), bytes(2, 100_000));
    one.write_all_at(&first, 0).unwrap();
    other.write_all_at(&second, 0).unwrap();
    let unnamed =
        openat(CWD, &kept.mountpoint, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o600))
            .unwrap();
    let unnamed = File::from(unnamed);
    unnamed.write_all_at(&second, 0).unwrap();
    fs::remove_file(&unlinked).unwrap();
    fs::write(kept.mountpoint.join("new"), b"new").unwrap();
    fs::rename(kept.mountpoint.join("new"), &replaced).unwrap();
    for round in 0..3 {
        kept.replace_server();
        assert_content(&one, &first);
        assert_content(&other, &second);
        assert_content(&unnamed, &second);
        assert_eq!(one.metadata().unwrap().nlink(), 0, "round {round}");
        assert_eq!(fs::read(&replaced).unwrap(), b"new");
    }
    one.write_all_at(b"changed", 10).unwrap();
    one.sync_all().unwrap();
    kept.replace_server();
    let mut changed = first;
    changed[10..17].copy_from_slice(b"changed");
    assert_content(&one, &changed);
    drop((one, other, unnamed));
    wait_until("the source has its space again", || fs::read_dir(&kept.source).unwrap().count() == 1);
    kept.umount();
}

#[test]
fn p09_a_listing_goes_on_after_a_kill_where_it_was() {
    let mut kept = Kept::new(&[]);
    let mut wanted: Vec<_> = (0..1000).map(|nth| format!("{nth:0>50}")).collect();
    wanted.iter().for_each(|name| drop(new_file(&kept.mountpoint.join(name))));
    let dir = File::open(&kept.mountpoint).unwrap();
    let mut buffer = vec![std::mem::MaybeUninit::uninit(); 2000];
    let mut entries = RawDir::new(&dir, &mut buffer);
    let mut found = Vec::new();
    while let Some(entry) = entries.next() {
        found.push(entry.unwrap().file_name().to_str().unwrap().to_owned());
        if found.len().is_multiple_of(300) {
            kept.replace_server();
        }
    }
    drop(dir);
    found.retain(|name| name != "." && name != "..");
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
    kept.umount();
}

#[test]
fn p09_locks_and_offsets_outlive_the_process() {
    let mut kept = Kept::new(&[]);
    let path = kept.mountpoint.join("locked");
    let mut file = new_file(&path);
    file.write_all(b"0123456789").unwrap();
    seek(&file, SeekFrom::Start(4)).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let of_records = new_file(&kept.mountpoint.join("records"));
    fcntl_lock(&of_records, FlockOperation::LockExclusive).unwrap();
    kept.replace_server();
    let other = File::open(&path).unwrap();
    assert_eq!(flock(&other, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "456789");
    let script = "import fcntl,sys\nf=open(sys.argv[1],'r+')\ntry:\n fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)\nexcept OSError:\n sys.exit(7)";
    let records = kept.mountpoint.join("records");
    let status = std::process::Command::new("python3").args(["-c", script]).arg(records).status().unwrap();
    assert_eq!(status.code(), Some(7), "another process does not get the lock");
    drop((file, other, of_records));
    kept.umount();
}

#[test]
fn p09_stores_to_a_mapping_outlive_the_process() {
    let mut kept = Kept::new(&[]);
    let path = kept.mountpoint.join("mapped");
    let file = new_file(&path);
    file.write_all_at(&[1; 64 << 10], 0).unwrap();
    let mut mapping = Mapped::new(&file);
    for round in 2..6 {
        mapping.store_at(4096 * usize::from(round), &[round]).unwrap();
        kept.replace_server();
        mapping.store_at(4096 * usize::from(round) + 1, &[round]).unwrap();
        file.write_all_at(&[round; 100], u64::from(round) * 4096 + 2000).unwrap();
    }
    mapping.sync().unwrap();
    file.sync_all().unwrap();
    let mut wanted = vec![1; 64 << 10];
    for round in 2..6_u8 {
        let at = 4096 * usize::from(round);
        wanted[at..at + 2].fill(round);
        wanted[at + 2000..at + 2100].fill(round);
    }
    assert!(fs::read(kept.source.join("mapped")).unwrap() == wanted);
    drop((mapping, file));
    kept.umount();
}

#[test]
fn p09_a_working_directory_and_files_known_by_number_are_found_again() {
    let mut kept = Kept::new(&[]);
    let deep = kept.mountpoint.join("a/b/c");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), b"deep").unwrap();
    let dir: OwnedFd = File::open(&deep).unwrap().into();
    kept.replace_server();
    let read = |name: &str| -> io::Result<String> {
        let mut text = String::new();
        File::from(openat(dir.as_fd(), name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
            .read_to_string(&mut text)?;
        Ok(text)
    };
    assert_eq!(read("file").unwrap(), "deep");
    fs::rename(kept.mountpoint.join("a/b"), kept.mountpoint.join("moved")).unwrap();
    kept.replace_server();
    assert_eq!(read("../c/file").unwrap(), "deep");
    assert_eq!(fs::read_to_string(kept.mountpoint.join("moved/c/file")).unwrap(), "deep");
    drop(dir);
    kept.umount();
}

/// A change that another program made to the source while no process served the mount is seen at the next open.
#[test]
fn p09_a_change_of_the_source_during_the_pause_is_seen() {
    let mut kept = Kept::new(&[]);
    let path = kept.mountpoint.join("file");
    fs::write(&path, b"before").unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"before");
    assert_eq!(fs::read(&path).unwrap(), b"before", "from the kernel's cache");
    let changed = fs::metadata(kept.source.join("file")).unwrap();
    wait_for_a_later_time((changed.ctime(), changed.ctime_nsec()));
    fs::write(kept.source.join("file"), b"behind").unwrap();
    kept.replace_server();
    thread::sleep(Duration::from_millis(1100)); // names and attributes are cached for a second
    assert_eq!(fs::read(&path).unwrap(), b"behind");
    kept.umount();
}

/// The same volume at a second mount point: both outlive the process, and each is unmounted alone.
#[test]
fn p09_every_mount_point_of_a_volume_outlives_the_process() {
    let mut kept = Kept::new(&[]);
    let other = kept.scratch.dir("other", 0o755);
    let words = ["mount", kept.source.to_str().unwrap(), other.to_str().unwrap()];
    kept.scratch.run(words).expect(0, &["one more mount point"]);
    let file = new_file(&kept.mountpoint.join("file"));
    file.write_all_at(b"here", 0).unwrap();
    kept.replace_server();
    assert_eq!(fs::read(other.join("file")).unwrap(), b"here");
    fs::write(other.join("file"), b"there").unwrap();
    assert_content(&file, b"there");
    drop(file);
    assert_eq!(kept.status()["more_mountpoints"].as_array().map(Vec::len), Some(1), "{}", kept.status());
    kept.scratch.umount(&other);
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
    kept.replace_server();
    assert_eq!(fs::read(kept.mountpoint.join("file")).unwrap(), b"there");
    kept.umount();
}

#[test]
fn p09_a_damaged_record_is_logged_and_its_arena_kept() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    let (good, bad) = (bytes(1, 1_000_000), bytes(2, 4096));
    fs::write(kept.mountpoint.join("good"), &good).unwrap();
    fs::write(kept.mountpoint.join("bad"), &bad).unwrap();
    let arena = kept.scratch.arena("a-mount");
    let frame = damage_record(&arena, &bad);
    for round in 1.. {
        kept.replace_server();
        let named = format!("frame[{frame}].check is 0x");
        wait_until("the successor names the record", || kept.mount.said(&named) >= round);
        assert!(fs::read(kept.mountpoint.join("good")).unwrap() == good, "round {round}");
        if round == 3 {
            break;
        }
    }
    kept.umount();
    assert!(fs::read(kept.source.join("good")).unwrap() == good);
    let left = arena.with_extension("arena.damaged");
    assert!(!arena.exists() && frame_of(&fs::read(left).unwrap(), frame) == bad);
}

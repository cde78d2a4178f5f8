//! A source that is changed between the death of a mount and the next one: both versions are kept.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::bytes;
use crate::rig::{Mount, Scratch, need_fuse};

const LEN: usize = 8192;

/// A mount that died while the second half of `source/a` was dirty.
fn killed(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let (source, mountpoint) = scratch.pair("a");
    fs::write(source.join("a"), bytes(1, LEN)).unwrap();
    let mut mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    let file = OpenOptions::new().write(true).open(mountpoint.join("a")).unwrap();
    file.write_all_at(&bytes(2, LEN / 2), LEN as u64 / 2).unwrap();
    mount.kill();
    (source, mountpoint)
}

/// The file that received the dirty data, and its content.
#[track_caller]
fn rescued_bytes(source: &Path, again: &Mount) -> Vec<u8> {
    let names = fs::read_dir(source).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let found: Vec<_> = names.filter(|name| name.starts_with("slackwater-conflict-")).collect();
    let [name] = &found[..] else { panic!("one file: {found:?}") };
    // The message names it.
    again.wait_said(&source.join(name).to_string_lossy(), 1);
    fs::read(source.join(name)).unwrap()
}

fn ours() -> Vec<u8> {
    [vec![0; LEN / 2], bytes(2, LEN / 2)].concat()
}

#[test]
fn p12_a_backup_put_in_place_after_a_crash_is_not_written_over() {
    need_fuse();
    for len in [LEN / 4, LEN, 2 * LEN] {
        let scratch = Scratch::new();
        let (source, mountpoint) = killed(&scratch);
        let backup = bytes(3, len);
        let file = OpenOptions::new().write(true).truncate(true).open(source.join("a")).unwrap();
        file.write_all_at(&backup, 0).unwrap();
        drop(file);
        let again = scratch.mount(&source, &mountpoint, &[]);
        assert!(fs::read(mountpoint.join("a")).unwrap() == backup, "the source is unchanged");
        assert!(rescued_bytes(&source, &again) == ours());
        scratch.umount(&mountpoint);
        assert!(fs::read(source.join("a")).unwrap() == backup, "the source is unchanged");
    }
}

#[test]
fn p12_a_file_replaced_after_a_crash_leaves_its_dirty_data_beside_it() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = killed(&scratch);
    fs::write(source.join("new"), "new").unwrap();
    fs::rename(source.join("new"), source.join("a")).unwrap();
    let again = scratch.mount(&source, &mountpoint, &[]);
    assert_eq!(fs::read(mountpoint.join("a")).unwrap(), b"new");
    assert!(rescued_bytes(&source, &again) == ours());
    scratch.umount(&mountpoint);
}

#[test]
fn a_file_only_read_or_renamed_after_a_crash_gets_its_data() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = killed(&scratch);
    fs::read(source.join("a")).unwrap();
    fs::rename(source.join("a"), source.join("b")).unwrap();
    let again = scratch.mount(&source, &mountpoint, &[]);
    assert_eq!(again.said("slackwater-conflict"), 0);
    let wanted = [&bytes(1, LEN)[..LEN / 2], &bytes(2, LEN / 2)].concat();
    assert!(fs::read(mountpoint.join("b")).unwrap() == wanted);
    scratch.umount(&mountpoint);
    assert!(fs::read(source.join("b")).unwrap() == wanted);
}

#[test]
fn p02_a_file_removed_in_the_source_while_it_is_dirty_is_reported_and_kept() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    for name in ["a", "b"] {
        fs::write(mountpoint.join(name), bytes(1, LEN)).unwrap();
        fs::remove_file(source.join(name)).unwrap();
    }
    let output = scratch.run_when_free(["umount", mountpoint.to_str().unwrap()]);
    output.expect(6, &["2 files with unwritten data had been removed", "slackwater-conflict-"]);
    drop(mount);
    for entry in fs::read_dir(&source).unwrap() {
        assert!(fs::read(entry.unwrap().path()).unwrap() == bytes(1, LEN));
    }
    assert_eq!(fs::read_dir(&source).unwrap().count(), 2);
}

#[test]
fn p02_unmounting_a_removed_source_with_dirty_data_reports_it() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    let file = File::create(mountpoint.join("a")).unwrap();
    file.write_all_at(&bytes(1, LEN), 0).unwrap();
    fs::remove_dir_all(&source).unwrap();
    for _ in 0..3 {
        assert!(file.sync_all().is_err());
    }
    drop(file);
    let path = mountpoint.to_str().unwrap();
    let lost = "1 file with 8.0 KiB had been removed in";
    let name = source.join("a");
    let name = name.to_str().unwrap();
    for _ in 0..2 {
        scratch.run(["sync", path]).expect(1, &[lost, name]);
    }
    scratch.run(["status", path]).expect(0, &["unwritten: 8.0 KiB", "WRITE-BACK FAILS", lost, name]);
    let left = scratch.run_when_free(["umount", path, "--deadline", "1s"]);
    left.expect(4, &["8.0 KiB unwritten", lost, "umount --discard lists them"]);
    let parked = scratch.run_when_free(["umount", path, "--park", "--deadline", "1s"]);
    parked.expect(4, &[lost]);
    assert!(!left.text.contains("longer"), "{}", left.text);
    scratch.run(["umount", path, "--discard"]).expect(2, &[&format!("8.0 KiB  {name}"), "cannot ask"]);
    scratch.umount_with(&mountpoint, &["--discard", "--yes"]);
    drop(mount);
}

/// A sync copied the data of removed files to other files, and said nothing.
#[test]
fn p02_a_sync_that_copies_removed_files_names_them() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let _mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    fs::create_dir(mountpoint.join("dir")).unwrap();
    for name in ["a", "b"] {
        fs::write(mountpoint.join("dir").join(name), bytes(1, LEN)).unwrap();
    }
    fs::remove_dir_all(source.join("dir")).unwrap();
    let path = mountpoint.to_str().unwrap();
    let names = ["a", "b"].map(|name| source.join("dir").join(name).to_str().unwrap().to_owned());
    scratch.run(["sync", path]).expect(1, &["2 files with 16.0 KiB had been removed in", &names[0], &names[1]]);
    let copied = scratch.run(["sync", path]);
    copied.expect(6, &["synced, but 2 files with unwritten data had been removed", "slackwater-conflict-"]);
    copied.expect(6, &[&names[0], &names[1]]);
    scratch.run(["sync", path]).expect(0, &[]);
    for entry in fs::read_dir(&source).unwrap() {
        assert!(fs::read(entry.unwrap().path()).unwrap() == bytes(1, LEN));
    }
    assert_eq!(fs::read_dir(&source).unwrap().count(), 2);
    scratch.umount(&mountpoint);
}

/// A mount of a new directory in place of a removed one waited for ever for the process that had its data.
#[test]
fn a_mount_is_refused_while_removed_files_of_its_source_have_no_place() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    fs::write(mountpoint.join("a"), bytes(1, LEN)).unwrap();
    fs::remove_dir_all(&source).unwrap();
    rustix::mount::unmount(&mountpoint, rustix::mount::UnmountFlags::DETACH).unwrap();
    fs::create_dir(&source).unwrap();
    let (from, to) = (source.to_str().unwrap(), mountpoint.to_str().unwrap());
    let refused = scratch.run(["mount", from, to, "--cache", "32MiB", "--background"]);
    refused.expect(3, &["1 file with 8.0 KiB had been removed in"]);
    scratch.umount_with(&mountpoint, &["--discard", "--yes"]);
    drop(mount);
}

/// Times that are not yet written back are recovered like data, even where no data is left.
#[test]
fn unsent_times_survive_without_dirty_data() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mut mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    let file = File::create(mountpoint.join("a")).unwrap();
    file.write_all_at(b"data", 0).unwrap();
    // Writes the data back without the times.
    file.sync_data().unwrap();
    let told = file.metadata().unwrap().modified().unwrap();
    drop(file);
    mount.kill();
    let again = scratch.mount(&source, &mountpoint, &[]);
    drop(again);
    assert_eq!(fs::metadata(source.join("a")).unwrap().modified().unwrap(), told);
}

//! Other programs that write to the file system of a source: an unmount does not wait for their data.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{major, minor, syncfs};
use rustix::mount::{UnmountFlags, unmount};

use crate::bytes;
use crate::full_source::Small;
use crate::rig::wait_until;

const OTHER_BYTES: usize = 8 << 20;

/// Bytes that were written to the device of `path` so far.
fn written_bytes(path: &Path) -> u64 {
    let device = fs::metadata(path).unwrap().dev();
    let counts = fs::read_to_string(format!("/sys/dev/block/{}:{}/stat", major(device), minor(device))).unwrap();
    512 * counts.split_whitespace().nth(6).unwrap().parse::<u64>().unwrap()
}

/// Lets another program overwrite its file, and unmounts a volume of `small` after a change in it. Returns whether the
/// data of that program was written.
fn unmount_writes_other_data(small: &Small, other: &File, dies_first: bool) -> bool {
    let (source, mountpoint) = (small.root.join("source"), small.scratch.dir("mount", 0o755));
    let mut mount = small.scratch.mount(&source, &mountpoint, &[]);
    let mut file = File::create(mountpoint.join("ours")).unwrap();
    file.write_all(&bytes(2, 100_000)).unwrap();
    drop(file);
    let before = written_bytes(&small.root);
    other.write_all_at(&bytes(3, OTHER_BYTES), 0).unwrap();
    if dies_first {
        mount.kill();
        drop(mount); // which frees the mount point
        mount = small.scratch.mount(&source, &mountpoint, &[]);
    }
    small.scratch.umount(&mountpoint);
    mount.wait().expect(0, &[]);
    fs::remove_dir(&mountpoint).unwrap();
    let written = written_bytes(&small.root) - before;
    syncfs(other).unwrap();
    written >= OTHER_BYTES as u64
}

#[test]
fn an_unmount_does_not_wait_for_data_of_other_programs() {
    let Some(small) = Small::ext4(&[]) else { return };
    fs::create_dir(small.root.join("source")).unwrap();
    let other = File::create(small.root.join("other")).unwrap();
    other.write_all_at(&bytes(1, OTHER_BYTES), 0).unwrap();
    syncfs(&other).unwrap();
    // `sync` of another test makes all data durable.
    let unmount_alone = || (0..5).any(|_| !unmount_writes_other_data(&small, &other, false));
    assert!(unmount_alone(), "each unmount wrote the data of another program");
    // The names that a dead mount has changed may not be durable, and the next mount does not know them.
    assert!(unmount_writes_other_data(&small, &other, true), "what the dead mount changed is durable after an unmount");
    assert!(unmount_alone(), "after an unmount in order");
    drop(other);
    wait_until("no process uses it", || unmount(&small.root, UnmountFlags::empty()).is_ok());
}

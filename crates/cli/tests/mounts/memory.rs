//! Memory that names need is returned to the system.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use crate::rig::{Scratch, need_fuse, wait_until};

const FOLDERS: usize = 10;
const EACH: usize = 2000;
const MIB: u64 = 1 << 20;

/// Private anonymous memory of a process: its heap and its stacks.
fn heap_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// The arena of a mount is a file and not part of these figures.
#[test]
fn memory_for_names_is_returned_to_the_system() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    for number in 0..FOLDERS * EACH {
        if number % EACH == 0 {
            fs::create_dir(source.join((number / EACH).to_string())).unwrap();
        }
        File::create(source.join(format!("{}/{number}", number / EACH))).unwrap();
    }
    let mut mount = scratch.mount(&source, &mountpoint, &[]);
    let pid = mount.process.0.id();
    let before = heap_bytes(pid);
    let mut full = before;
    // Another test may have the kernel forget all names.
    wait_until(&format!("{FOLDERS} folders of {EACH} files need memory beside {before} bytes"), || {
        for folder in fs::read_dir(&mountpoint).unwrap() {
            for file in fs::read_dir(folder.unwrap().path()).unwrap() {
                assert_eq!(file.unwrap().metadata().unwrap().len(), 0);
            }
        }
        full = heap_bytes(pid);
        full > before + 8 * MIB
    });
    // The kernel forgets the removed entries.
    for folder in 0..FOLDERS {
        fs::remove_dir_all(mountpoint.join(folder.to_string())).unwrap();
    }
    wait_until("most of it is returned", || heap_bytes(pid) < before + (full - before) / 2);
    assert_eq!(fs::metadata(&mountpoint).unwrap().nlink(), 2);
    scratch.umount(&mountpoint);
    mount.wait();
}

//! Read-only mounts beside the writer.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::rig::{Scratch, need_fuse, wait_until};
use crate::store::stores;

/// A time longer than the ages of the reader's caches together, for a loaded machine.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(30);

#[test]
fn readers_follow_the_writer_and_cannot_write() {
    need_fuse();
    let scratch = Scratch::new();
    for store in stores(&scratch) {
        let [writes, reads, also_reads] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        let mut writer = store.mount(&scratch, &writes, &[]);
        let mut file = File::create(writes.join("file")).unwrap();
        file.write_all(b"one").unwrap();
        file.sync_all().unwrap();

        let mut reader = store.mount(&scratch, &reads, &["--read-only", "--follow", "1s"]);
        assert!(reader.announcement.contains("follows the writer within 1s"), "{}", reader.announcement);
        let mut also_reader = store.mount(&scratch, &also_reads, &["--read-only"]);
        for at in [&reads, &also_reads] {
            assert_eq!(fs::read(at.join("file")).unwrap(), b"one");
            let error = File::create(at.join("new")).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::ROFS.raw_os_error()), "{error}");
            assert!(OpenOptions::new().append(true).open(at.join("file")).is_err());
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|line| line.contains(reads.to_str().unwrap())).unwrap();
        assert!(line.contains(" ro,"), "{line}");
        scratch.run(["status", reads.to_str().unwrap()]).expect(0, &["object store: reading"]);

        file.write_all(b" and two").unwrap();
        fs::create_dir(writes.join("dir")).unwrap();
        file.sync_all().unwrap();
        let since = Instant::now();
        for at in [&reads, &also_reads] {
            wait_until("the reader sees the change", || fs::read(at.join("file")).unwrap() == b"one and two");
            wait_until("the reader sees the name", || at.join("dir").is_dir());
        }
        assert!(since.elapsed() < FOLLOWS_WITHIN, "{:?}", since.elapsed());
        drop(file);
        for at in [&reads, &also_reads, &writes] {
            scratch.umount(at);
        }
        for mount in [&mut reader, &mut also_reader, &mut writer] {
            mount.wait().expect(0, &[]);
        }
        assert_eq!(store.left(), Vec::<String>::new());
    }
}

#[test]
fn a_reader_needs_no_writer_and_takes_nothing_from_a_dead_one() {
    need_fuse();
    let scratch = Scratch::new();
    for store in stores(&scratch) {
        let [writes, reads] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        let mut writer = store.mount(&scratch, &writes, &["--dirty-expire", "1h"]);
        fs::write(writes.join("file"), "in the cache only").unwrap();
        writer.kill();
        let mut reader = store.mount(&scratch, &reads, &["--read-only"]);
        drop(fs::read_dir(&reads).unwrap());
        scratch.umount(&reads);
        reader.wait().expect(0, &[]);

        let mut writer = store.mount(&scratch, &writes, &[]);
        assert_eq!(fs::read(writes.join("file")).unwrap(), b"in the cache only");
        scratch.umount(&writes);
        writer.wait().expect(0, &[]);
        assert_eq!(store.left(), Vec::<String>::new());
    }
}

//! The process dies; the machine lives. The next mount continues where the dead process was.

use std::fs::{self, File};
use std::io::Write;

use crate::rig::{Scratch, need_fuse};
use crate::store::stores;

#[test]
fn p09_a_killed_process_loses_neither_data_nor_names() {
    need_fuse();
    let scratch = Scratch::new();
    for store in stores(&scratch) {
        let [mountpoint] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        for round in 0..5_u32 {
            let mut mount = store.mount(&scratch, &mountpoint, &["--dirty-expire", "200ms"]);
            if round > 0 {
                let before = format!("round-{}", round - 1);
                for n in 0..100_u32 {
                    let text = fs::read_to_string(mountpoint.join(&before).join(format!("{n}.done"))).unwrap();
                    assert_eq!(text, format!("{n}"), "round {round}");
                }
                assert_eq!(fs::read_dir(mountpoint.join(&before)).unwrap().count(), 100, "round {round}");
                assert!(!mountpoint.join(format!("{before}-old")).exists());
                let large = fs::read(mountpoint.join(format!("large-{}", round - 1))).unwrap();
                assert!(large == vec![round as u8 - 1; 3 << 20], "round {round}");
            }
            let dir = mountpoint.join(format!("round-{round}"));
            fs::create_dir(mountpoint.join(format!("round-{round}-old"))).unwrap();
            fs::rename(mountpoint.join(format!("round-{round}-old")), &dir).unwrap();
            for n in 0..100_u32 {
                let (new, done) = (dir.join(format!("{n}")), dir.join(format!("{n}.done")));
                let mut file = File::create(&new).unwrap();
                write!(file, "{n}").unwrap();
                if n % 25 == round {
                    file.sync_all().unwrap();
                }
                drop(file);
                fs::rename(&new, &done).unwrap();
            }
            fs::write(mountpoint.join(format!("large-{round}")), vec![round as u8; 3 << 20]).unwrap();
            mount.kill();
        }
        let mut mount = store.mount(&scratch, &mountpoint, &[]);
        assert_eq!(fs::read_dir(mountpoint.join("round-4")).unwrap().count(), 100);
        scratch.umount(&mountpoint);
        mount.wait().expect(0, &[]);
        assert_eq!(store.left(), Vec::<String>::new());
        store.fsck(&scratch);
    }
}

#[test]
fn a_dead_mount_is_shown_with_what_to_do() {
    need_fuse();
    let scratch = Scratch::new();
    for store in stores(&scratch) {
        let [mountpoint] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        let mut mount = store.mount(&scratch, &mountpoint, &[]);
        fs::create_dir(mountpoint.join("dir")).unwrap();
        mount.kill();
        scratch.run(["status"]).expect(0, &[&store.url, "which died", "mount", "again"]);
        // Another arena would not find the log of that one.
        let other = scratch.arena("other");
        let other = other.to_str().unwrap();
        let words = ["mount", &store.url, mountpoint.to_str().unwrap(), "--cache", "64MiB", "--arena", other];
        store.run(&scratch, &words).expect(1, &["died with changes", "mount it with --arena", "move the log away"]);
        let mut mount = store.mount(&scratch, &mountpoint, &[]);
        assert!(mountpoint.join("dir").is_dir());
        scratch.umount(&mountpoint);
        mount.wait().expect(0, &[]);
    }
}

#[test]
fn p03_a_lost_arena_and_log_leave_everything_that_was_synced() {
    need_fuse();
    let scratch = Scratch::new();
    for store in stores(&scratch) {
        let [mountpoint] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        let mut mount = store.mount(&scratch, &mountpoint, &[]);
        let mut file = File::create(mountpoint.join("synced")).unwrap();
        file.write_all(b"synced").unwrap();
        file.sync_all().unwrap();
        fs::write(mountpoint.join("later"), "later").unwrap();
        mount.kill();
        // A crash of the machine empties its memory.
        for name in store.left() {
            let path = store.arena("x").with_file_name(name);
            if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
        }
        let mut mount = store.mount(&scratch, &mountpoint, &[]);
        assert_eq!(fs::read(mountpoint.join("synced")).unwrap(), b"synced");
        scratch.umount(&mountpoint);
        mount.wait().expect(0, &[]);
        store.fsck(&scratch);
    }
}

//! Kept mounts of object volumes. The next process claims the volume again and goes on from the local log.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat, statvfs};
use rustix::process::Signal;

use super::kept::Kept;
use super::load::load_and_kill;
use crate::bytes;
use crate::rig::{Mount, Scratch, need_fuse, run, wait_until};
use crate::store::{Store, stores};

/// Data stays in the cache until an unmount.
const LATE: [&str; 2] = ["--dirty-expire", "1h"];

fn keep(store: &Store, scratch: &Arc<Scratch>, mountpoint: &Path, more: &[&str]) -> Kept {
    let mount = store.mount(scratch, mountpoint, &[&["--keep"], more].concat());
    let (source, mountpoint) = (PathBuf::from(&store.url), mountpoint.to_path_buf());
    Kept { mount, source, mountpoint, scratch: Arc::clone(scratch), is_of_user: false }
}

/// A new volume on each store, with two mount points.
fn on_each_store(test: impl Fn(&Store, &Arc<Scratch>, [PathBuf; 2])) {
    need_fuse();
    let scratch = Arc::new(Scratch::new());
    for store in stores(&scratch) {
        store.mkfs(&scratch);
        test(&store, &scratch, store.mountpoints(&scratch));
        assert_eq!(store.left(), Vec::<String>::new());
        store.fsck(&scratch);
    }
}

/// A new volume in a directory, with two mount points, and a registry for another user.
fn in_a_directory() -> (Store, Arc<Scratch>, [PathBuf; 2]) {
    need_fuse();
    let scratch = Arc::new(Scratch::new());
    scratch.dir("elsewhere", 0o700);
    let store = Store::directory(&scratch);
    store.mkfs(&scratch);
    let mountpoints = store.mountpoints(&scratch);
    (store, scratch, mountpoints)
}

fn files_in_use(mountpoint: &Path) -> u64 {
    let found = statvfs(mountpoint).unwrap();
    found.f_files - found.f_ffree
}

#[test]
fn p09_programs_on_an_object_volume_notice_nothing_when_their_server_is_killed() {
    on_each_store(|store, scratch, [mountpoint, second]| {
        let mut kept = keep(store, scratch, &mountpoint, &["--dirty-expire", "100ms"]);
        let load = load_and_kill(&kept);
        kept.run(&["restart"]).expect(0, &["programs waited for"]);
        kept.run(&["upgrade"]).expect(0, &["Upgraded"]);
        let mut look = None;
        load.finish(&second, || {
            kept.umount().expect(0, &["everything is written back"]);
            look = Some(store.mount(scratch, &second, &["--read-only"]));
        });
        scratch.umount(&second);
        look.unwrap().wait().expect(0, &[]);
    });
}

#[test]
fn p09_removed_files_of_an_object_volume_keep_their_bytes_and_are_freed_when_closed() {
    on_each_store(|store, scratch, [mountpoint, _]| {
        let mut kept = keep(store, scratch, &mountpoint, &LATE);
        let empty = files_in_use(&mountpoint);
        let path = mountpoint.join("removed");
        let removed = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        let unnamed =
            openat(CWD, &mountpoint, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o600))
                .unwrap();
        let mut unnamed = File::from(unnamed);
        let (first, second) = (bytes(1, 3_000_000), bytes(2, 100_000));
        removed.write_all_at(&first, 0).unwrap();
        unnamed.write_all(&second).unwrap();
        fs::remove_file(&path).unwrap();
        for round in 0..3 {
            kept.replace_server();
            let mut found = vec![0; first.len()];
            removed.read_exact_at(&mut found, 0).unwrap();
            assert!(found == first, "round {round}");
            assert_eq!(removed.metadata().unwrap().nlink(), 0);
            let mut found = Vec::new();
            unnamed.rewind().unwrap();
            unnamed.read_to_end(&mut found).unwrap();
            assert!(found == second, "round {round}");
            // The first round finds all data in the arena, the later ones find a part in the store.
            removed.sync_all().unwrap();
            unnamed.rewind().unwrap();
            unnamed.write_all(&second).unwrap();
            assert_eq!(files_in_use(&mountpoint), empty + 2);
        }
        drop((removed, unnamed));
        wait_until("the volume has its space again", || files_in_use(&mountpoint) == empty);
        kept.umount().expect(0, &["everything is written back"]);
    });
}

#[test]
fn a_reader_that_follows_an_object_volume_outlives_its_process() {
    on_each_store(|store, scratch, [mountpoint, second]| {
        let mut writer = store.mount(scratch, &mountpoint, &[]);
        let mut file = File::create(mountpoint.join("file")).unwrap();
        file.write_all(b"one").unwrap();
        file.sync_all().unwrap();
        let mut kept = keep(store, scratch, &second, &["--read-only", "--follow", "500ms"]);
        let seen = File::open(second.join("file")).unwrap();
        kept.replace_server();
        file.write_all(b" two").unwrap();
        file.sync_all().unwrap();
        drop(file);
        wait_until("the reader sees what was written since", || {
            let mut found = [0; 16];
            let len = seen.read_at(&mut found, 0).unwrap();
            found[..len] == *b"one two"
        });
        drop(seen);
        kept.umount().expect(0, &[]);
        scratch.umount(&mountpoint);
        writer.wait().expect(0, &[]);
    });
}

#[test]
fn a_takeover_waits_for_the_store() {
    let (store, scratch, [mountpoint, _]) = in_a_directory();
    let mut kept = keep(&store, &scratch, &mountpoint, &LATE);
    fs::write(mountpoint.join("file"), "content").unwrap();
    let (objects, away) = (store.objects.clone().unwrap(), scratch.path.join("away"));
    fs::rename(&objects, &away).unwrap();
    kept.kill_server();
    let path = mountpoint.join("file");
    let reading = thread::spawn(move || fs::read(path));
    wait_until("the next process has tried to open the volume", || kept.mount.said("programs wait until it can") > 0);
    assert!(!reading.is_finished());
    // A process that is killed while it waits has a successor too.
    kept.kill_server();
    thread::sleep(Duration::from_millis(300));
    assert!(!reading.is_finished());
    fs::rename(&away, &objects).unwrap();
    assert_eq!(reading.join().unwrap().unwrap(), b"content");
    kept.umount().expect(0, &["everything is written back"]);
    store.fsck(&scratch);
}

/// A server dies, and another machine has the volume since.
#[test]
fn a_volume_that_another_machine_has_taken_is_not_taken_back() {
    let (store, scratch, [mountpoint, second]) = in_a_directory();
    // The first process may take it over, and no later one.
    let mut kept = keep(&store, &scratch, &mountpoint, &[&LATE[..], &["--take-over"]].concat());
    let mut file = File::create(mountpoint.join("file")).unwrap();
    file.write_all(b"durable").unwrap();
    file.sync_all().unwrap();
    file.write_all(b" and not").unwrap();
    let mut winner = Mount::start(store.elsewhere(&scratch, &second, &["--take-over"]), &second);
    kept.kill_server();
    let ended = kept.mount.wait();
    assert_ne!(ended.code, Some(0));
    ended.expect(ended.code.unwrap(), &["is given up", "in use by pid", &winner.process.0.id().to_string()]);
    assert!(file.write_all(b"!").is_err());
    drop(file);
    fs::write(second.join("more"), "of the other").unwrap();
    winner.process.signal(Signal::TERM);
    winner.wait().expect(0, &[]);
    // Its data is older than the volume.
    store.refused(&scratch, &mountpoint, &[]).expect(1, &["overwrite newer data", "mv "]);
    let mut look = store.mount(&scratch, &second, &["--read-only"]);
    assert_eq!(fs::read(second.join("file")).unwrap(), b"durable");
    assert_eq!(fs::read(second.join("more")).unwrap(), b"of the other");
    scratch.umount(&second);
    look.wait().expect(0, &[]);
}

/// The volume is free when the successor looks, which has no data to write. But its open files could be others.
#[test]
fn a_volume_that_another_machine_has_changed_meanwhile_is_not_served() {
    let (store, scratch, [mountpoint, second]) = in_a_directory();
    let mut kept = keep(&store, &scratch, &mountpoint, &LATE);
    let mut file = File::create(mountpoint.join("file")).unwrap();
    let mut winner = Mount::start(store.elsewhere(&scratch, &second, &["--take-over"]), &second);
    fs::write(second.join("another"), "of the other").unwrap();
    winner.process.signal(Signal::TERM);
    winner.wait().expect(0, &[]);
    kept.kill_server();
    let ended = kept.mount.wait();
    assert_ne!(ended.code, Some(0));
    ended.expect(ended.code.unwrap(), &["is given up", "another writer has written to the volume since"]);
    assert!(file.write_all(b"into the wrong file").is_err());
    drop(file);
    let mut look = store.mount(&scratch, &second, &["--read-only"]);
    assert_eq!(fs::read(second.join("another")).unwrap(), b"of the other");
    scratch.umount(&second);
    look.wait().expect(0, &[]);
}

/// A command of another user, whose registry does not know the mount, meets the claim.
#[test]
fn the_keeper_holds_the_claim_while_there_is_no_server() {
    let (store, scratch, [mountpoint, second]) = in_a_directory();
    let mut kept = keep(&store, &scratch, &mountpoint, &LATE);
    fs::write(mountpoint.join("file"), "content").unwrap();
    let keeper = kept.mount.process.0.id().to_string();
    kept.mount.process.stop();
    let server = kept.kill_server().as_raw_nonzero().to_string();
    run(store.elsewhere(&scratch, &second, &[])).expect(3, &["in use by pid", &server]);
    kept.mount.process.signal(Signal::CONT);
    assert_eq!(fs::read(mountpoint.join("file")).unwrap(), b"content");
    assert_eq!(kept.status()["kept"]["keeper"].to_string(), keeper);
    kept.umount().expect(0, &["everything is written back"]);
    store.fsck(&scratch);
}

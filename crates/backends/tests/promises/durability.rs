//! P1: data that fsync, sync or unmount has acknowledged is durable in the backend, with its size.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use slackwater::backend::{AttrChange, Call, FallocateMode, MemBackend, NewNode, Removal, RenameMode, XattrMode};
use slackwater::{Engine, ErrorKind, File, Tunables, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::{DirBackend, SystemClock};
use slackwater_testkit::{Rule, pattern};

use crate::rig::{ARENA_BYTES, Disk, PAGE, Rig, TempDir, assert_same, busy, create, open, read_all, within};

#[test]
fn p01_what_fsync_acknowledged_is_durable_with_its_size() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let mut wanted = pattern(1, 3 * PAGE + 17);
    file.write_at(0, &wanted).unwrap();
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "appended");

    file.write_at(100, b"over a page that is clean").unwrap();
    wanted[100..125].copy_from_slice(b"over a page that is clean");
    file.write_at(900_000, b"behind a hole").unwrap();
    wanted.resize(900_000, 0);
    wanted.extend_from_slice(b"behind a hole");
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "sparse");

    file.set_len(2 * PAGE as u64 + 1).unwrap();
    wanted.truncate(2 * PAGE + 1);
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "cut");

    file.set_len(100_000).unwrap();
    wanted.resize(100_000, 0);
    file.fdatasync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "extended");

    rig.disk.mem.crash();
    assert_same(&rig.stored("a").unwrap(), &wanted, "after a crash");
    assert_same(&read_all(&file), &wanted, "through the engine");
    drop(file);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p01_fdatasync_covers_the_size_of_an_append() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let mut wanted = Vec::new();
    for nth in 0..20 {
        let part = pattern(nth, 1 + 1777 * nth as usize);
        file.write_at(wanted.len() as u64, &part).unwrap();
        wanted.extend_from_slice(&part);
        file.fdatasync().unwrap();
        assert_same(&rig.durable("a").unwrap(), &wanted, "appended");
    }
}

#[test]
fn p01_what_sync_acknowledged_is_durable() {
    let rig = Rig::by_hand();
    let root = rig.volume.root().unwrap();
    let dir = rig.volume.make(&root, "dir", NewNode::Directory, 0o755).unwrap();
    drop(root);
    let mut files = Vec::new();
    for nth in 0..200_u64 {
        let name = format!("f{nth}");
        let file = File::open(&rig.volume.make(&dir, &name, NewNode::File, 0o600).unwrap()).unwrap();
        file.write_at(nth * 100, &pattern(nth, 5000)).unwrap();
        // Most are closed by the time of the sync.
        files.push((format!("dir/{name}"), (nth % 10 == 0).then_some(file)));
    }
    rig.volume.sync().unwrap();
    for (nth, (name, _)) in (0..).zip(&files) {
        let mut wanted = vec![0; nth * 100];
        wanted.extend_from_slice(&pattern(nth as u64, 5000));
        assert_same(&rig.durable(name).unwrap(), &wanted, name);
    }
    assert_eq!(rig.volume.status().bytes_left(), 0);
    rig.disk.mem.crash();
    rig.volume.sync().unwrap();
    drop((files, dir));
    rig.unmount_and_find_nothing_left();
}

/// A sync after which nothing was changed asks the backend for nothing. Each kind of change makes the next one ask again.
#[test]
fn p01_a_sync_asks_the_backend_if_anything_was_changed() {
    let rig = Rig::by_hand();
    let (volume, asked) = (rig.volume.clone(), Arc::new(AtomicU64::new(0)));
    let counter = Arc::clone(&asked);
    let count = move |_: &Call| {
        counter.fetch_add(1, Ordering::Relaxed);
        false
    };
    rig.disk.faults.add(Rule::hold().on("sync_volume").matching(count));
    let syncs = || {
        let before = asked.load(Ordering::Relaxed);
        volume.sync().unwrap();
        asked.load(Ordering::Relaxed) - before
    };
    assert_eq!((syncs(), syncs()), (1, 0), "a process before may have left something");
    let root = volume.root().unwrap();
    let a = volume.make(&root, "a", NewNode::File, 0o644).unwrap();
    let file = File::open(&a).unwrap();
    assert_eq!((syncs(), syncs()), (1, 0), "make");
    let mode = AttrChange { mode: Some(0o600), ..AttrChange::default() };
    let changes: [(&str, &dyn Fn()); 9] = [
        ("write", &|| file.write_at(0, b"bytes").unwrap()),
        ("truncate", &|| file.set_len(3).unwrap()),
        ("setattr", &|| volume.setattr(&a, mode).unwrap()),
        ("setxattr", &|| volume.setxattr(&a, "user.x", b"x", XattrMode::Set).unwrap()),
        ("removexattr", &|| volume.removexattr(&a, "user.x").unwrap()),
        ("link", &|| volume.link(&a, &root, "b").unwrap()),
        ("rename", &|| volume.rename(&root, "b", &root, "c", RenameMode::Replace).unwrap()),
        ("remove", &|| volume.remove(&root, "c", Removal::File).unwrap()),
        ("fallocate", &|| file.fallocate(FallocateMode::Allocate, 0, 8192).unwrap()),
    ];
    for (name, change) in changes {
        change();
        assert_eq!((syncs(), syncs()), (1, 0), "{name}");
    }
    volume.lookup(&root, "a").unwrap();
    volume.readdir(&root, 0).unwrap();
    read_all(&file);
    assert_eq!(syncs(), 0, "reads change nothing");
    // A failed sync confirms nothing.
    volume.setattr(&a, mode).unwrap();
    rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("sync_volume").next(1));
    assert!(volume.sync().is_err());
    assert_eq!(syncs(), 1);
    rig.disk.mem.crash();
    assert_eq!(rig.stored("a").unwrap().len(), 8192);
    file.write_at(0, b"more").unwrap();
    drop((file, a, root));
    let before = asked.load(Ordering::Relaxed);
    volume.umount(UmountOptions::default()).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed) - before, 1, "an unmount asks once");
}

#[test]
fn p01_unmount_leaves_everything_durable() {
    let rig = Rig::by_hand();
    let wanted = pattern(3, 3_000_001);
    let file = rig.create("a");
    file.write_at(0, &wanted).unwrap();
    drop(file);
    rig.create("empty").set_len(12_345).unwrap();
    let mem: Arc<MemBackend> = rig.disk.mem.clone();
    rig.unmount_and_find_nothing_left();
    mem.crash();
    assert_same(&mem.volatile_file("a").unwrap(), &wanted, "a");
    assert_same(&mem.volatile_file("empty").unwrap(), &[0; 12_345], "empty");
}

#[test]
fn p01_fsync_covers_what_was_written_before_it_while_others_write() {
    const PAGES: u64 = 64;
    let rig = Rig::live(Disk::new(), busy());
    let file = Arc::new(rig.create("a"));
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writer = {
        let (file, stop, written) = (file.clone(), stop.clone(), written.clone());
        std::thread::spawn(move || {
            for nth in 1.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                // Every page carries the number of its last write.
                file.write_at(nth % PAGES * PAGE as u64, &[&nth.to_le_bytes()[..], &[7; 500]].concat()).unwrap();
                written.store(nth, Ordering::Release);
            }
        })
    };
    for _ in 0..300 {
        let before = written.load(Ordering::Acquire);
        file.fsync().unwrap();
        let durable = rig.durable("a").unwrap();
        let newest = durable.chunks(PAGE).map(|page| u64::from_le_bytes(page[..8].try_into().unwrap())).max();
        assert!(newest.unwrap_or(0) >= before, "{newest:?} is durable, {before} was written");
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    drop(file);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p01_over_a_directory_the_files_hold_what_was_acknowledged() {
    let dir = TempDir::new("p01");
    let arena = Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).unwrap();
    let engine = Engine::new(arena, Arc::new(SystemClock), Tunables::default());
    let volume = engine.mount("dir", Arc::new(DirBackend::open(dir.path()).unwrap())).unwrap();
    let on_disk = |name: &str| std::fs::read(dir.path().join(name)).unwrap();

    let file = create(&volume, "a");
    let mut wanted = pattern(1, 1_234_567);
    file.write_at(0, &wanted).unwrap();
    file.fsync().unwrap();
    assert_same(&on_disk("a"), &wanted, "fsync");
    file.set_len(70_001).unwrap();
    file.write_at(65_000, &[7; 100]).unwrap();
    wanted.truncate(70_001);
    wanted[65_000..65_100].fill(7);
    file.fdatasync().unwrap();
    assert_same(&on_disk("a"), &wanted, "fdatasync");
    file.write_at(300_000, b"end").unwrap();
    wanted.resize(300_000, 0);
    wanted.extend_from_slice(b"end");
    volume.sync().unwrap();
    assert_same(&on_disk("a"), &wanted, "sync");
    file.write_at(4095, b"ab").unwrap();
    wanted[4095..4097].copy_from_slice(b"ab");
    drop(file);
    create(&volume, "b").write_at(0, &wanted).unwrap();
    let unmounted = volume.clone();
    within("umount", move || unmounted.umount(UmountOptions::default())).unwrap();
    assert_same(&on_disk("a"), &wanted, "umount");
    assert_same(&on_disk("b"), &wanted, "umount");

    let volume = engine.mount("dir", Arc::new(DirBackend::open(dir.path()).unwrap())).unwrap();
    assert_same(&read_all(&open(&volume, "a")), &wanted, "mounted again");
    within("umount", move || volume.umount(UmountOptions::default())).unwrap();
}

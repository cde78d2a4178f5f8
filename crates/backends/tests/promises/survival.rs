//! P9: data that a killed process had acknowledged is there for the next process.
//!
//! A kill is a copy of the arena at a moment that the test chooses, while the old engine's calls are held: none of them
//! reaches the backend any more. `kill9` kills a real process.

use slackwater::backend::{AttrChange, Call, MemBackend, Removal};
use slackwater::{Engine, ErrorKind, File, MountError, SuperBlock, Timestamp, UmountOptions};
use slackwater_arena::Arena;
use slackwater_backends::{DirBackend, SystemClock};
use slackwater_testkit::{Random, Rule, pattern};
use std::sync::Arc;
use std::time::Duration;

use crate::rig::{
    Disk, PAGE, Rig, assert_idle, assert_same, by_hand, create, eventually, open, read_all, recover, remount, snapshot,
    spawn, within,
};

/// Kills the rig's process. Returns an engine on what it left, with the volume mounted.
pub(crate) fn kill_and_mount(rig: Rig) -> (Engine, Arc<SuperBlock>, Arc<MemBackend>) {
    let left = snapshot(&rig.engine);
    // From now on the dead process does nothing to the backend.
    rig.disk.faults.clear();
    rig.disk.faults.add(Rule::fail(ErrorKind::Abandoned));
    let mem = rig.disk.mem.clone();
    drop(rig);
    let (engine, _) = recover(left);
    let volume = remount(&engine, &mem).unwrap();
    (engine, volume, mem)
}

/// Unmounts, and finds nothing left in the arena.
#[track_caller]
pub(crate) fn unmount(engine: &Engine, volume: &Arc<SuperBlock>) {
    volume.umount(UmountOptions::default()).unwrap();
    assert!(engine.surviving_volumes().is_empty());
    assert_idle(engine, volume);
}

#[test]
fn p09_acknowledged_writes_are_readable_and_then_in_the_backend() {
    let rig = Rig::by_hand();
    let mut wanted = Vec::new();
    for nth in 0..30_u64 {
        let file = rig.create(&format!("f{nth}"));
        let mut bytes = pattern(nth, 10_000 + 777 * nth as usize);
        file.write_at(0, &bytes).unwrap();
        if nth % 3 == 0 {
            file.fsync().unwrap();
        }
        if nth % 5 == 0 {
            file.write_at(5000, &[nth as u8 + 1; 100]).unwrap();
            bytes[5000..5100].fill(nth as u8 + 1);
        }
        if nth % 7 == 0 {
            file.write_at(200_000, b"behind a hole").unwrap();
            bytes.resize(200_000, 0);
            bytes.extend_from_slice(b"behind a hole");
        }
        wanted.push(bytes);
    }
    let (engine, volume, mem) = kill_and_mount(rig);
    for (nth, bytes) in wanted.iter().enumerate() {
        assert_same(&read_all(&open(&volume, &format!("f{nth}"))), bytes, "read");
    }
    unmount(&engine, &volume);
    for (nth, bytes) in wanted.iter().enumerate() {
        assert_same(&mem.durable_file(&*format!("f{nth}")).unwrap(), bytes, "durable");
    }
}

#[test]
fn p09_pages_rewritten_under_write_back_survive_with_the_newer_bytes() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let mut wanted = pattern(1, 20 * PAGE + 5);
    file.write_at(0, &wanted).unwrap();
    rig.disk.faults.add(Rule::hold().on("write"));
    rig.flush_without_waiting();
    assert!(!rig.disk.faults.held().is_empty());
    for (at, byte) in [(0, 1), (PAGE - 1, 2), (7 * PAGE, 3), (20 * PAGE, 4), (0, 5)] {
        file.write_at(at as u64, &[byte; 3]).unwrap();
        wanted[at..at + 3].fill(byte);
    }
    let (engine, volume, mem) = kill_and_mount(rig);
    assert_same(&read_all(&open(&volume, "a")), &wanted, "read");
    unmount(&engine, &volume);
    assert_same(&mem.durable_file("a").unwrap(), &wanted, "durable");
}

/// Written back, but the backend's machine fails together with the process before it has confirmed anything.
#[test]
fn p09_written_and_uncommitted_pages_survive_a_crash_of_the_backend_as_well() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.fsync().unwrap();
    let wanted = pattern(1, 20 * PAGE);
    file.write_at(0, &wanted).unwrap();
    rig.disk.faults.add(Rule::hold().on("sync_volume"));
    rig.flush_without_waiting();
    assert_eq!(rig.stored("a").unwrap().len(), wanted.len());
    rig.disk.mem.crash();
    let (engine, volume, mem) = kill_and_mount(rig);
    assert_same(&read_all(&open(&volume, "a")), &wanted, "read");
    while volume.sync().is_err() {}
    assert_same(&mem.durable_file("a").unwrap(), &wanted, "durable");
    unmount(&engine, &volume);
}

#[test]
fn p09_a_cut_and_extended_file_survives_with_its_zeroes() {
    for (cut, extended) in [(100, 9000), (PAGE as u64, 3 * PAGE as u64), (0, 50_000), (5000, 5000), (4097, 4099)] {
        let rig = Rig::by_hand();
        let file = rig.create("a");
        file.write_at(0, &[7; 30_000]).unwrap();
        file.fsync().unwrap();
        file.write_at(2000, &[8; 20_000]).unwrap();
        file.set_len(cut).unwrap();
        file.set_len(extended).unwrap();
        let mut wanted = vec![7; 30_000];
        wanted[2000..22_000].fill(8);
        wanted.truncate(cut as usize);
        wanted.resize(extended as usize, 0);
        file.write_at(extended, b"end").unwrap();
        wanted.extend_from_slice(b"end");
        let (engine, volume, mem) = kill_and_mount(rig);
        assert_same(&read_all(&open(&volume, "a")), &wanted, "read");
        unmount(&engine, &volume);
        assert_same(&mem.durable_file("a").unwrap(), &wanted, "durable");
    }
}

/// The dirty page beyond the new end is gone, and nothing that is left to write reaches the end.
#[test]
fn p09_a_truncation_into_a_hole_that_a_kill_prevented_is_made_later() {
    let rig = Rig::by_hand();
    let file = Arc::new(rig.create("a"));
    file.write_at(0, &[7; 2 * PAGE]).unwrap();
    file.fsync().unwrap();
    file.write_at(100 * PAGE as u64, b"beyond").unwrap();
    rig.disk.faults.add(Rule::hold().on("setattr"));
    let size = 50 * PAGE + 10;
    let cut = Arc::clone(&file);
    let cutting = spawn("a cut", move || cut.set_len(size as u64));
    eventually("the cut is on its way", || !rig.disk.faults.held().is_empty());
    let (engine, _) = recover(snapshot(&rig.engine));
    let volume = remount(&engine, &rig.disk.mem).unwrap();
    let mut wanted = vec![7; 2 * PAGE];
    wanted.resize(size, 0);
    assert_same(&read_all(&open(&volume, "a")), &wanted, "as the cut says");
    unmount(&engine, &volume);
    assert_same(&rig.disk.mem.durable_file("a").unwrap(), &wanted, "in the backend too");
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    cutting.wait().unwrap();
}

#[test]
fn p09_an_unlinked_file_leaves_nothing_and_disturbs_no_other() {
    let rig = Rig::by_hand();
    let (kept, unlinked) = (rig.create("kept"), rig.create("unlinked"));
    for file in [&kept, &unlinked] {
        file.write_at(0, &[7; 100_000]).unwrap();
    }
    rig.unlink("unlinked");
    unlinked.write_at(50_000, &[8; 100_000]).unwrap();
    let left = snapshot(&rig.engine);
    let mem = rig.disk.mem.clone();
    // The dead process's descriptors are closed with it.
    rig.disk.faults.add(Rule::fail(ErrorKind::Abandoned));
    drop((unlinked, kept, rig));
    let (engine, _) = recover(left);
    let volume = remount(&engine, &mem).unwrap();
    assert_same(&read_all(&open(&volume, "kept")), &[7; 100_000], "kept");
    assert_eq!(volume.rescued(), [], "nobody can miss what programs removed here");
    assert_eq!(volume.walk("unlinked").unwrap_err().kind(), ErrorKind::NotFound);
    unmount(&engine, &volume);
    assert_same(&mem.durable_file("kept").unwrap(), &[7; 100_000], "kept");
}

#[test]
fn p09_a_survivor_that_cannot_be_opened_fails_the_mount_and_waits_in_the_arena() {
    let rig = Rig::by_hand();
    let (first, second) = (rig.create("a"), rig.create("b"));
    let wanted = pattern(1, 50_000);
    for file in [&first, &second] {
        file.write_at(0, &wanted).unwrap();
    }
    let id = second.inode().id();
    let left = snapshot(&rig.engine);
    let mem = rig.disk.mem.clone();
    drop((first, second));
    rig.disk.faults.add(Rule::fail(ErrorKind::Abandoned));
    drop(rig);
    let (engine, _) = recover(left);
    assert_eq!(engine.surviving_volumes(), ["rig"]);
    let disk = Disk::over(mem);
    for kind in [ErrorKind::Io, ErrorKind::Permission, ErrorKind::NotFound] {
        disk.faults.clear();
        disk.faults
            .add(Rule::fail(kind).matching(move |call| matches!(call, Call::Reopen { id: of, .. } if *of == Some(id))));
        let error = engine.mount("rig", disk.backend.clone()).err().unwrap();
        let MountError::Survivor { id: found, dirty_bytes, source } = error else { panic!("{error}") };
        assert_eq!((found, source.kind()), (id, kind));
        assert!(dirty_bytes >= 50_000);
        assert_eq!(engine.surviving_volumes(), ["rig"], "kept");
        assert!(engine.volumes().is_empty());
    }
    disk.faults.clear();
    let root = disk.faults.add(Rule::fail(ErrorKind::Io).on("root"));
    assert!(matches!(engine.mount("rig", disk.backend.clone()), Err(MountError::Root(_))));
    assert_eq!(engine.surviving_volumes(), ["rig"], "kept");
    disk.faults.remove(root);
    let volume = engine.mount("rig", disk.backend.clone()).unwrap();
    for name in ["a", "b"] {
        assert_same(&read_all(&open(&volume, name)), &wanted, name);
    }
    unmount(&engine, &volume);
    for name in ["a", "b"] {
        assert_same(&disk.mem.durable_file(name).unwrap(), &wanted, name);
    }
}

#[test]
fn p09_data_that_survives_one_kill_survives_the_next() {
    let seed = 11;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut wanted: Vec<Vec<u8>> = vec![Vec::new(); 8];
    let disk = Disk::new();
    let mem = disk.mem.clone();
    let rig = Rig::with(disk, by_hand());
    for nth in 0..wanted.len() {
        rig.create(&format!("f{nth}"));
    }
    let mut left = snapshot(&rig.engine);
    rig.disk.faults.add(Rule::fail(ErrorKind::Abandoned));
    drop(rig);
    for round in 0..25 {
        let (engine, clock) = recover(left);
        let disk = Disk::over(mem.clone());
        let volume = engine.mount("rig", disk.backend.clone()).unwrap();
        let files: Vec<File> = (0..wanted.len()).map(|nth| open(&volume, &format!("f{nth}"))).collect();
        for (file, bytes) in files.iter().zip(&wanted) {
            assert_same(&read_all(file), bytes, &format!("round {round}"));
        }
        if random.below(2) == 0 {
            disk.faults.add(Rule::hold().on(["write", "sync_volume", "setattr"][random.below(2) as usize]));
        }
        for _ in 0..30 {
            let nth = random.below(wanted.len() as u64) as usize;
            let (file, bytes) = (&files[nth], &mut wanted[nth]);
            if random.below(8) == 0 && disk.faults.held().is_empty() {
                let len = random.below(60_000);
                file.set_len(len).unwrap();
                bytes.resize(len as usize, 0);
            } else {
                let at = random.below(60_000) as usize;
                let part = pattern(random.next(), random.below(10_000) as usize + 1);
                file.write_at(at as u64, &part).unwrap();
                bytes.resize(bytes.len().max(at + part.len()), 0);
                bytes[at..at + part.len()].copy_from_slice(&part);
            }
            if random.below(4) == 0 {
                clock.advance(Duration::from_secs(random.below(40)));
                engine.step();
            }
        }
        left = snapshot(&engine);
        disk.faults.clear();
        disk.faults.add(Rule::fail(ErrorKind::Abandoned));
        drop((files, volume, engine, disk));
    }
    let (engine, _) = recover(left);
    let volume = remount(&engine, &mem).unwrap();
    unmount(&engine, &volume);
    for (nth, bytes) in wanted.iter().enumerate() {
        assert_same(&mem.durable_file(&*format!("f{nth}")).unwrap(), bytes, "durable");
    }
}

/// An engine ends without an unmount, and its arena is opened by its descriptor, as a supervisor does it.
#[test]
fn p09_an_engine_that_is_dropped_leaves_what_a_killed_one_would() {
    let rig = Rig::by_hand();
    let wanted = pattern(1, 123_456);
    rig.create("a").write_at(0, &wanted).unwrap();
    let (engine, mem) = (rig.engine.clone(), rig.disk.mem.clone());
    let left = engine.arena().try_clone_fd().unwrap();
    drop((rig, engine));
    let (engine, _) = recover(left);
    let volume = remount(&engine, &mem).unwrap();
    assert_same(&read_all(&open(&volume, "a")), &wanted, "a");
    unmount(&engine, &volume);
    assert_same(&mem.durable_file("a").unwrap(), &wanted, "a");
}

#[test]
fn p09_volumes_are_taken_over_one_by_one_by_name() {
    let rig = Rig::by_hand();
    let (_, second) = rig.mount("second");
    let (disk, third) = rig.mount("third");
    let mem = disk.mem.clone();
    for volume in [&rig.volume, &second, &third] {
        create(volume, "a").write_at(0, volume.name().as_bytes()).unwrap();
    }
    second.umount(UmountOptions::default()).unwrap();
    let (engine, volume, first_mem) = kill_and_mount(rig);
    assert_eq!(engine.surviving_volumes(), ["third"]);
    unmount_only(&volume);
    assert_eq!(first_mem.durable_file("a").unwrap(), b"rig");
    // A volume of another name starts empty and takes over nothing.
    let other = engine.mount("other", Arc::new(MemBackend::new())).unwrap();
    create(&other, "a").write_at(0, &[1; 5 << 20]).unwrap();
    unmount_only(&other);
    let volume = engine.mount("third", mem.clone()).unwrap();
    unmount(&engine, &volume);
    assert_eq!(mem.durable_file("a").unwrap(), b"third");
}

fn unmount_only(volume: &Arc<SuperBlock>) {
    volume.umount(UmountOptions::default()).unwrap();
}

#[test]
fn p09_times_survive_with_the_data() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, b"x").unwrap();
    let set = AttrChange { mtime: Some(Timestamp(42)), ..AttrChange::default() };
    rig.volume.setattr(file.inode(), set).unwrap();
    let other = rig.create("b");
    other.write_at(0, b"x").unwrap();
    let mtime = other.inode().mtime();
    drop((file, other));
    let (engine, volume, _) = kill_and_mount(rig);
    assert_eq!(volume.walk("a").unwrap().mtime(), Timestamp(42));
    assert_eq!(volume.walk("b").unwrap().mtime(), mtime);
    volume.sync().unwrap();
    assert_eq!(volume.walk("b").unwrap().attr().mtime, mtime);
    unmount(&engine, &volume);
}

#[test]
fn p09_over_a_directory_survivors_are_found_by_their_handles() {
    let dir = crate::rig::TempDir::new("p09");
    let arena = Arena::create(&slackwater_arena::ArenaConfig::memfd(crate::rig::ARENA_BYTES)).unwrap();
    let engine = Engine::new(arena, Arc::new(SystemClock), slackwater::Tunables::default());
    let volume = engine.mount("rig", Arc::new(DirBackend::open(dir.path()).unwrap())).unwrap();
    let wanted = pattern(1, 3_000_001);
    let file = create(&volume, "a");
    file.write_at(0, &wanted).unwrap();
    create(&volume, "gone").write_at(0, &wanted).unwrap();
    // Renamed and removed behind the cache, while the process was dead or alive.
    std::fs::rename(dir.path().join("a"), dir.path().join("renamed")).unwrap();
    std::fs::remove_file(dir.path().join("gone")).unwrap();
    let left = snapshot(&engine);
    let root = volume.root().unwrap();
    drop((file, volume.remove(&root, "nothing", Removal::File).is_err(), root));
    // While it ends, the old engine does nothing but what a flusher might have done a moment before the kill.
    drop((volume, engine));
    let (arena, survivors) = Arena::open_fd(left).unwrap();
    let engine = Engine::recover(arena, survivors, Arc::new(SystemClock), slackwater::Tunables::default());
    let volume = engine.mount("rig", Arc::new(DirBackend::open(dir.path()).unwrap())).unwrap();
    let own = volume.clone();
    let found = within("a read", move || read_all(&open(&own, "renamed")));
    assert_same(&found, &wanted, "renamed");
    let own = volume.clone();
    within("umount", move || own.umount(UmountOptions::default())).unwrap();
    assert_same(&std::fs::read(dir.path().join("renamed")).unwrap(), &wanted, "renamed");
    assert!(!dir.path().join("gone").exists());
    assert_idle(&engine, &volume);
}

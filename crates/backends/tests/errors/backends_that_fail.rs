//! Directories that are full, read-only, deleted or slow under a mounted volume.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::mount::{MountFlags, mount_bind, mount_remount};
use slackwater::{
    Engine, ErrorKind, File, FileError, SuperBlock, Tunables, UmountError, UmountOptions, WaitFor, WriteRequest,
    Written,
};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::{DirBackend, SystemClock};
use slackwater_testkit::{Rule, pattern};

use crate::mounted::{mount_tmpfs, mounted};
use crate::rig::{
    ARENA_BYTES, Disk, PAGE, Rig, TempDir, assert_idle, assert_same, busy, by_hand, create, eventually, fill,
    inodes_of, open, read_all, try_write, within,
};

fn engine(tunables: Tunables) -> Engine {
    Engine::new(Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).unwrap(), Arc::new(SystemClock), tunables)
}

fn mount_dir(engine: &Engine, path: &Path) -> Arc<SuperBlock> {
    engine.mount("dir", Arc::new(DirBackend::open(path).unwrap())).unwrap()
}

fn fsync(file: &Arc<File>) -> Result<(), FileError> {
    let file = file.clone();
    within("fsync", move || file.fsync())
}

#[test]
fn a_full_disk_fails_fsync_and_receives_all_data_once_it_has_space() {
    let dir = TempDir::new("full");
    let Some(_mounted) = mounted(dir.path(), |path| mount_tmpfs(path, c"size=2m")) else { return };
    // Nothing is written back before the fsync: the space is gone when it is needed, although it was there when the
    // program wrote.
    let engine = engine(Tunables::default());
    let volume = mount_dir(&engine, dir.path());
    let wanted = pattern(1, 1_500_000);
    let file = Arc::new(create(&volume, "a"));
    file.write_at(0, &wanted).unwrap();
    std::fs::write(dir.path().join("ballast"), vec![1; 1 << 20]).unwrap();
    assert_eq!(fsync(&file).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(fsync(&file).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_same(&read_all(&file), &wanted, "kept");
    let soon = UmountOptions { deadline: Some(Duration::from_millis(200)), ..UmountOptions::default() };
    assert!(matches!(volume.umount(soon), Err(UmountError::Busy { .. })));
    std::fs::remove_file(dir.path().join("ballast")).unwrap();
    eventually("fsync succeeds", || fsync(&file).is_ok());
    assert_same(&std::fs::read(dir.path().join("a")).unwrap(), &wanted, "arrived");
    drop(file);
    let own = volume.clone();
    within("umount", move || own.umount(UmountOptions::default())).unwrap();
    assert_idle(&engine, &volume);
}

#[test]
fn a_disk_that_turns_read_only_keeps_the_data_in_the_cache() {
    let dir = TempDir::new("read-only");
    let target = dir.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let Some(_mounted) = mounted(&target, |path| mount_bind(path, path)) else { return };
    let engine = engine(busy());
    let volume = mount_dir(&engine, &target);
    let wanted = pattern(1, 300_000);
    let file = Arc::new(create(&volume, "a"));
    file.fsync().unwrap();
    drop(file);
    // The thread that answers a call releases its node a moment later.
    eventually("nothing is open for writing", || {
        mount_remount(&target, MountFlags::BIND | MountFlags::RDONLY, c"").is_ok()
    });
    let volume_of_readers = volume.clone();
    let error = within("make", move || {
        let root = volume_of_readers.root().unwrap();
        volume_of_readers.make(&root, "b", slackwater::backend::NewNode::File, 0o644).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    let file = Arc::new(open(&volume, "a"));
    file.write_at(0, &wanted).unwrap();
    assert_eq!(fsync(&file).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(fsync(&file).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_same(&read_all(&file), &wanted, "kept");
    mount_remount(&target, MountFlags::BIND, c"").unwrap();
    eventually("fsync succeeds", || fsync(&file).is_ok());
    assert_same(&std::fs::read(target.join("a")).unwrap(), &wanted, "arrived");
    drop(file);
    let own = volume.clone();
    within("umount", move || own.umount(UmountOptions::default())).unwrap();
    assert_idle(&engine, &volume);
}

#[test]
fn a_deleted_root_directory_is_an_error_and_does_not_block_the_unmount() {
    let dir = TempDir::new("deleted");
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let engine = engine(busy());
    let volume = mount_dir(&engine, &root);
    let file = Arc::new(create(&volume, "a"));
    file.write_at(0, &[1; 10_000]).unwrap();
    file.fsync().unwrap();
    std::fs::remove_dir_all(&root).unwrap();
    file.write_at(0, &[2; 20_000]).unwrap();
    assert_same(&read_all(&file), &[2; 20_000], "an open file lives on");
    // The inode still exists for its descriptor, so this may succeed.
    fsync(&file).ok();
    let own = volume.clone();
    let error = within("make", move || {
        let root = own.root().unwrap();
        own.make(&root, "b", slackwater::backend::NewNode::File, 0o644).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(volume.walk("a").unwrap_err().kind(), ErrorKind::NotFound);
    drop(file);
    // The refusal is not silent: the data has no file to go to.
    let umount = |options: UmountOptions| {
        let own = volume.clone();
        within("umount", move || own.umount(options))
    };
    let within_a_moment = UmountOptions { deadline: Some(Duration::from_millis(100)), ..UmountOptions::default() };
    assert!(matches!(umount(within_a_moment), Err(UmountError::Deadline { .. })));
    umount(UmountOptions { discard: true, ..UmountOptions::default() }).unwrap();
    // A discard does not wait for calls in flight; the answer to the last one returns the record of the file.
    eventually("every record is returned", || engine.arena().free_inodes() == inodes_of(engine.arena()));
    assert_idle(&engine, &volume);
    assert!(DirBackend::open(&root).is_err());
}

#[test]
fn a_file_deleted_behind_the_cache_is_stale_and_does_not_block_the_unmount() {
    let dir = TempDir::new("stale");
    let engine = engine(busy());
    let volume = mount_dir(&engine, dir.path());
    let file = create(&volume, "a");
    file.write_at(0, &[1; 10_000]).unwrap();
    file.fsync().unwrap();
    drop(file);
    std::fs::remove_file(dir.path().join("a")).unwrap();
    assert_eq!(volume.walk("a").unwrap_err().kind(), ErrorKind::NotFound);
    // Another file takes its place, and possibly its number.
    std::fs::write(dir.path().join("a"), [2; 5000]).unwrap();
    assert_same(&read_all(&open(&volume, "a")), &[2; 5000], "the new one");
    let own = volume.clone();
    within("umount", move || own.umount(UmountOptions::default())).unwrap();
    assert_idle(&engine, &volume);
}

/// The size of the backing file, sampled while the file is cut, extended and flushed.
#[test]
fn a_backing_file_is_never_longer_than_its_file_was() {
    let dir = TempDir::new("sampled");
    let engine = engine(busy());
    let volume = mount_dir(&engine, dir.path());
    let file = Arc::new(create(&volume, "a"));
    let path = dir.path().join("a");
    let size = || std::fs::metadata(&path).unwrap().size();
    for round in 0..40_u64 {
        let long = 400_001 + round * 100;
        file.write_at(0, &pattern(round, long as usize)).unwrap();
        if round % 3 == 0 {
            std::thread::sleep(Duration::from_millis(round % 7));
        }
        let cut = 5000 * (round % 20) + round;
        let own = file.clone();
        within("truncate", move || own.set_len(cut)).unwrap();
        for _ in 0..20 {
            assert!(size() <= cut, "{} bytes, cut to {cut}", size());
        }
        if round % 2 == 0 {
            fsync(&file).unwrap();
            assert_eq!(size(), cut);
        }
    }
    drop(file);
    let own = volume.clone();
    within("umount", move || own.umount(UmountOptions::default())).unwrap();
    assert_idle(&engine, &volume);
}

#[test]
fn a_full_arena_of_a_hanging_volume_has_typed_answers_for_everything() {
    let rig = Rig::with(Disk::new(), by_hand());
    let file = rig.create("a");
    rig.disk.faults.add(Rule::hold().on("write"));
    let taken = fill(&file, 0);
    rig.advance(Duration::from_secs(40));
    assert_eq!(try_write(&file, taken, b"x"), Written::NoFrames);
    assert_eq!(file.try_append(b"x").unwrap(), (taken, Written::NoFrames));
    let now = slackwater::Clock::now(&*rig.clock);
    let patient = WriteRequest::at(taken).wait(WaitFor::WritebackUntil(now));
    assert_eq!(file.write(patient, b"x").unwrap(), Written::NoFrames);
    assert_eq!(file.inode().size_bytes(), taken);
    // A page under write-back needs a fresh frame; a dirty page does not.
    assert_eq!(try_write(&file, 0, b"x"), Written::NoFrames);
    let deadline = UmountOptions { deadline: Some(Duration::ZERO), ..UmountOptions::default() };
    assert!(matches!(rig.volume.umount(deadline), Err(UmountError::Busy { .. })));
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    rig.advance(Duration::from_secs(40));
    file.write_at(taken, b"x").unwrap();
    file.fsync().unwrap();
    assert_eq!(rig.durable("a").unwrap().len() as u64, taken + 1);
    drop(file);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn a_backend_that_drops_every_call_is_a_failing_one() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let wanted = pattern(1, 5 * PAGE);
    file.write_at(0, &wanted).unwrap();
    rig.disk.faults.add(Rule::fail(ErrorKind::Abandoned));
    assert_eq!(file.fsync().unwrap_err().kind(), ErrorKind::Abandoned);
    assert_eq!(rig.volume.sync().unwrap_err().kind(), ErrorKind::Abandoned);
    assert_eq!(rig.volume.statfs().unwrap_err().kind(), ErrorKind::Abandoned);
    assert_eq!(rig.volume.walk("a").unwrap_err().kind(), ErrorKind::Abandoned);
    assert_eq!(file.set_len(5).unwrap_err().kind(), ErrorKind::Abandoned);
    assert_same(&read_all(&file), &wanted, "kept");
    rig.disk.faults.clear();
    file.fsync().or_else(|_| file.fsync()).unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "arrived");
}

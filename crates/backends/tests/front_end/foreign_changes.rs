//! Another program changes a file on the backend. A clean file is read anew; the data of a dirty file stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slackwater::backend::{AttrChange, RenameMode, XattrMode};
use slackwater::{Engine, File, ManualClock, ReadRequest, SuperBlock, Timestamp, WriteFlags, WriteRequest, Written};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::DirBackend;
use slackwater_testkit::{Random, Rule, pattern};

use crate::rig::{
    Disk, PAGE, PATIENCE, Rig, TempDir, assert_same, busy, by_hand, create, eventually, open, read_all, spawn,
};

const SECOND: Duration = Duration::from_secs(1);

/// Another engine on the same backend.
struct Other {
    _engine: Engine,
    volume: Arc<SuperBlock>,
}

impl Other {
    fn of(rig: &Rig) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(4 << 20)).unwrap();
        let engine = Engine::new(arena, Arc::new(ManualClock::new(Timestamp(7))), by_hand());
        let volume = engine.mount("other", rig.disk.mem.clone()).unwrap();
        Self { _engine: engine, volume }
    }

    fn write(&self, name: &str, at: u64, bytes: &[u8]) {
        let file = open(&self.volume, name);
        file.write_at(at, bytes).unwrap();
        file.fsync().unwrap();
    }
}

fn settled(rig: &Rig, name: &str, bytes: &[u8]) -> File {
    let file = rig.create(name);
    file.write_at(0, bytes).unwrap();
    file.fsync().unwrap();
    file
}

#[test]
fn p12_a_clean_file_is_read_anew() {
    let rig = Rig::by_hand();
    let file = settled(&rig, "a", &pattern(1, 3 * PAGE));
    Other::of(&rig).write("a", 10, b"from elsewhere");
    let mut got = [0; 14];
    assert_eq!(file.read_at(10, &mut got).unwrap(), 14);
    assert_ne!(&got, b"from elsewhere", "cached: nobody has asked");
    rig.clock.advance(SECOND);
    rig.volume.revalidate(file.inode(), SECOND).unwrap();
    assert_eq!(file.read_at(10, &mut got).unwrap(), 14);
    assert_eq!(&got, b"from elsewhere");
    assert_eq!(rig.volume.status().changed_underneath, 0, "nobody lost anything");

    Other::of(&rig).write("a", 3 * PAGE as u64, b"longer");
    let attr = rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap();
    assert_eq!(attr.size_bytes, 3 * PAGE as u64 + 6);
    assert_eq!(&read_all(&file)[3 * PAGE..], b"longer");
}

#[test]
fn a_lookup_notices_as_well() {
    let rig = Rig::by_hand();
    let file = settled(&rig, "a", b"first");
    Other::of(&rig).write("a", 0, b"other and longer");
    let again = rig.volume.walk("a").unwrap();
    assert_eq!(again.attr().size_bytes, 16);
    assert_eq!(read_all(&file), b"other and longer");
}

#[test]
fn p12_a_dirty_file_keeps_our_data_and_the_loss_is_counted_once() {
    let rig = Rig::by_hand();
    let file = settled(&rig, "a", &pattern(1, 2 * PAGE));
    file.write_at(0, b"ours").unwrap();
    Other::of(&rig).write("a", 0, b"theirs, over all of it");
    for _ in 0..3 {
        rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap();
    }
    assert_eq!(rig.volume.status().changed_underneath, 1);
    assert_eq!(&read_all(&file)[..4], b"ours");
    file.fsync().unwrap();
    assert_eq!(&rig.stored("a").unwrap()[..4], b"ours");
    rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap();
    assert_eq!(rig.volume.status().changed_underneath, 1);
}

#[test]
fn p12_our_own_changes_are_not_taken_for_those_of_another_program() {
    let rig = Rig::by_hand();
    let file = settled(&rig, "a", &pattern(1, 4 * PAGE));
    let (volume, root) = (&rig.volume, rig.volume.root().unwrap());
    let inode = file.inode();
    let cached = || file.peek(ReadRequest::at(0), 1 << 20, |slices| slices.len()).is_some();
    let look = |what: &str| {
        volume.revalidate(inode, Duration::ZERO).unwrap();
        assert!(cached(), "{what} dropped the pages");
        assert_eq!(volume.status().changed_underneath, 0, "{what}");
    };
    look("nothing");
    file.write_at(5, b"dirty").unwrap();
    look("a write");
    file.write_back().unwrap();
    look("a unit");
    rig.advance(Duration::from_secs(40));
    look("a flush");
    file.fsync().unwrap();
    look("fsync");
    volume.setattr(inode, AttrChange { mode: Some(0o600), ..AttrChange::default() }).unwrap();
    look("chmod");
    volume.setattr(inode, AttrChange { mtime: Some(Timestamp(5)), ..AttrChange::default() }).unwrap();
    look("utimes");
    volume.link(inode, &root, "b").unwrap();
    look("link");
    volume.remove(&root, "b", slackwater::backend::Removal::File).unwrap();
    look("unlink");
    volume.rename(&root, "a", &root, "c", RenameMode::NoReplace).unwrap();
    look("rename");
    volume.setxattr(inode, "user.x", b"1", XattrMode::Set).unwrap();
    look("setxattr");
    file.set_len(3 * PAGE as u64 + 5).unwrap();
    look("truncate");
    file.fallocate(slackwater::backend::FallocateMode::Allocate, 0, 4 * PAGE as u64).unwrap();
    let _ = read_all(&file);
    look("fallocate");
    file.write_at(0, b"again").unwrap();
    file.fsync().unwrap();
    look("write and fsync");
}

#[test]
fn a_file_is_checked_only_after_its_flush_has_ended() {
    let rig = Rig::by_hand();
    let file = settled(&rig, "a", &pattern(1, 2 * PAGE));
    file.write_at(0, b"ours").unwrap();
    rig.disk.faults.add(Rule::hold().on("write").next(1));
    rig.flush_without_waiting();
    rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap();
    rig.disk.faults.release_all();
    rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap();
    file.fsync().unwrap();
    rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap();
    assert_eq!(rig.volume.status().changed_underneath, 0);
    assert!(file.peek(ReadRequest::at(0), PAGE, |_| ()).is_some(), "still cached");
    Other::of(&rig).write("a", 0, b"them");
    rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap();
    assert_eq!(&read_all(&file)[..4], b"them");
}

/// A write updates the time before it has its page, for which it may have to ask.
#[test]
fn a_write_between_its_time_and_its_page_is_not_taken_for_a_foreign_change() {
    let rig = Rig::by_hand();
    let file = Arc::new(rig.create("a"));
    assert_eq!(
        file.write(WriteRequest::at(0).flags(WriteFlags::DONTCACHE), &pattern(1, PAGE)).unwrap(),
        Written::Bytes(PAGE)
    );
    // If two calls run at the same time, the time on the backend may come from either.
    rig.disk.faults.add(Rule::hold().on("setxattr").next(1));
    let other = {
        let (file, volume) = (file.clone(), rig.volume.clone());
        spawn("another change", move || volume.setxattr(file.inode(), "user.x", b"1", XattrMode::Set).unwrap())
    };
    rig.disk.faults.wait_held(1, PATIENCE);
    file.fsync().unwrap();
    rig.disk.faults.release_all();
    other.wait();
    eventually("the page is gone", || file.peek(ReadRequest::at(0), PAGE, |_| ()).is_none());
    rig.clock.advance(SECOND);
    rig.disk.faults.add(Rule::hold().on("read").next(1));
    rig.disk.faults.add(Rule::hold().on("getattr").next(1));
    let writer = {
        let file = file.clone();
        spawn("a write of part of a page", move || file.write_at(1, b"ours").unwrap())
    };
    let page = rig.disk.faults.wait_held(1, PATIENCE)[0].ticket;
    let looker = {
        let (file, volume) = (file.clone(), rig.volume.clone());
        spawn("one who looks", move || volume.revalidate(file.inode(), Duration::ZERO).map(drop).unwrap())
    };
    let look = rig.disk.faults.wait_held(2, PATIENCE)[1].ticket;
    assert!(rig.disk.faults.release(look));
    // The check finds a clean file with another time, and waits until the writer releases it.
    std::thread::sleep(Duration::from_millis(50));
    assert!(rig.disk.faults.release(page));
    writer.wait();
    looker.wait();
    assert_eq!(rig.volume.status().changed_underneath, 0);
    assert_eq!(&read_all(&file)[1..5], b"ours");
}

#[test]
fn a_change_before_a_flush_of_times_is_noticed_after_it() {
    let rig = Rig::by_hand();
    let file = settled(&rig, "a", &pattern(1, 2 * PAGE));
    file.write_at(0, b"ours").unwrap();
    rig.disk.faults.add(Rule::hold().on("setattr").next(1));
    rig.flush_without_waiting();
    eventually("the data is there, and its time is on its way", || rig.disk.faults.held().len() == 1);
    Other::of(&rig).write("a", 2 * PAGE as u64, b"them");
    rig.disk.faults.release_all();
    eventually("the change is noticed", || {
        rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap();
        read_all(&file).ends_with(b"them")
    });
}

#[test]
fn a_change_is_noticed_while_times_are_still_to_be_sent() {
    let rig = Rig::by_hand();
    let file = settled(&rig, "a", &pattern(1, 2 * PAGE));
    file.write_at(0, b"ours").unwrap();
    let refused = rig.disk.faults.add(Rule::fail(slackwater::ErrorKind::Io).on("setattr"));
    rig.flush_without_waiting();
    eventually("the data is there, and its time is not", || {
        rig.disk.faults.strikes(refused) > 0 && rig.volume.status().bytes_left() == 0
    });
    // The current attributes are known, so any difference found later comes from another program.
    rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap();
    Other::of(&rig).write("a", 0, b"them");
    rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap();
    assert!(read_all(&file).starts_with(b"them"));
    assert_eq!(rig.volume.status().changed_underneath, 0, "nobody lost anything");
    rig.disk.faults.clear();
}

#[test]
fn the_backend_is_not_asked_again_within_the_age() {
    let rig = Rig::by_hand();
    let file = settled(&rig, "a", b"x");
    // Any check that asks the backend is refused.
    rig.disk.faults.add(Rule::fail(slackwater::ErrorKind::Io).on("getattr"));
    let revalidate = || assert_eq!(rig.volume.revalidate(file.inode(), SECOND).unwrap().size_bytes, 1);
    revalidate();
    rig.volume.setattr(file.inode(), AttrChange { mode: Some(0o600), ..AttrChange::default() }).unwrap();
    revalidate();
    file.write_at(0, b"y").unwrap();
    revalidate();
    rig.clock.advance(SECOND);
    assert!(rig.volume.revalidate(file.inode(), SECOND).is_err());
}

/// Writes and renames `a` while other threads check it all the time. Returns its final content.
fn write_beside_lookers(volume: &Arc<SuperBlock>) -> Vec<u8> {
    const PAGES: u64 = 30;
    let file = Arc::new(create(volume, "a"));
    let stop = Arc::new(AtomicBool::new(false));
    let lookers: Vec<_> = (0..2)
        .map(|nth| {
            let (file, stop, volume) = (file.clone(), stop.clone(), volume.clone());
            spawn("one who looks", move || {
                let root = volume.root().unwrap();
                while !stop.load(Ordering::Relaxed) {
                    volume.revalidate(file.inode(), Duration::ZERO).unwrap();
                    let _ = volume.lookup(&root, "a").or_else(|_| volume.lookup(&root, "b"));
                    if nth == 0 {
                        let mode = Some(0o600);
                        volume.setattr(file.inode(), AttrChange { mode, ..AttrChange::default() }).unwrap();
                        let _ = volume.setxattr(file.inode(), "user.x", b"1", XattrMode::Set);
                    }
                }
            })
        })
        .collect();
    let root = volume.root().unwrap();
    let mut random = Random::new(3);
    let mut wanted = vec![0; PAGES as usize * PAGE];
    file.set_len(wanted.len() as u64).unwrap();
    for round in 0..600_u64 {
        let from = random.below(wanted.len() as u64 - 1);
        let len = 1 + random.below((wanted.len() as u64 - from).min(9000)) as usize - 1;
        let bytes = pattern(round, len);
        file.write_at(from, &bytes).unwrap();
        wanted[from as usize..from as usize + len].copy_from_slice(&bytes);
        match round % 20 {
            3 => file.write_back().unwrap(),
            9 => file.fsync().unwrap(),
            12 => volume.rename(&root, "a", &root, "b", RenameMode::Replace).unwrap(),
            17 => volume.rename(&root, "b", &root, "a", RenameMode::Replace).unwrap(),
            _ => {}
        }
        assert_same(&read_all(&file), &wanted, "read");
    }
    stop.store(true, Ordering::Relaxed);
    lookers.into_iter().for_each(crate::rig::Running::wait);
    assert_eq!(volume.status().changed_underneath, 0);
    file.fsync().unwrap();
    wanted
}

#[test]
fn p12_checks_beside_writers_and_flushers_find_no_foreign_change_and_drop_nothing() {
    let rig = Rig::live(Disk::new(), busy());
    let wanted = write_beside_lookers(&rig.volume);
    assert_same(&rig.stored("a").unwrap(), &wanted, "stored");
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p12_the_times_of_a_real_file_system_look_like_no_foreign_change() {
    let dir = TempDir::new("looks");
    let rig = Rig::live(Disk::new(), busy());
    let volume = rig.engine.mount("dir", Arc::new(DirBackend::open(dir.path()).unwrap())).unwrap();
    let wanted = write_beside_lookers(&volume);
    assert_same(&std::fs::read(dir.path().join("a")).unwrap(), &wanted, "stored");
    let file = open(&volume, "a");
    file.write_at(0, b"x").unwrap();
    file.fsync().unwrap();
    std::fs::write(dir.path().join("a"), b"somebody else").unwrap();
    // The answer to our last call may still be on its way through the engine. Such a check says nothing, and the next
    // one asks again.
    eventually("the change is noticed", || {
        volume.revalidate(file.inode(), Duration::ZERO).unwrap();
        read_all(&file) == b"somebody else"
    });
    drop(file);
    volume.umount(slackwater::UmountOptions::default()).unwrap();
}

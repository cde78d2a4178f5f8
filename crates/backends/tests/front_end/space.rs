//! A full backend is reported when a program writes, and not by a flush that no program waits for.

use std::sync::Arc;

use slackwater::backend::{FallocateMode, MemBackend, NewNode, RenameMode};
use slackwater::{ErrorKind, File, FileError, Tunables, UmountOptions, WaitFor, WriteRequest, Written};
use slackwater_testkit::{Rule, pattern};

use crate::rig::{
    Disk, PAGE, Rig, busy, by_hand, create, eventually, limits, recover, remount, snapshot, spawn, try_write,
};

/// Pages that files can use; the root directory takes one more.
const PAGES: u64 = 600;

fn disk() -> Disk {
    Disk::over(Arc::new(MemBackend::with_space(limits(), (PAGES + 1) * PAGE as u64)))
}

fn rig() -> Rig {
    // Only the test flushes, and the share is large enough.
    Rig::with(
        disk(),
        Tunables { dirty_background_percent: 99, dirty_percent: 100, volume_share_percent: 100, ..by_hand() },
    )
}

/// Appends until a write is refused. Returns the accepted bytes and the refusal.
fn append_all(file: &File) -> (u64, Written) {
    let chunk = pattern(3, 16 * PAGE);
    let mut taken = 0;
    loop {
        match file.try_append(&chunk).unwrap() {
            (_, Written::Bytes(bytes)) => taken += bytes as u64,
            (_, refusal) => return (taken, refusal),
        }
    }
}

fn available_pages(rig: &Rig) -> u64 {
    rig.volume.statfs().unwrap().blocks_available
}

#[test]
fn p11_dirty_data_uses_up_the_space_and_accepted_data_arrives() {
    let rig = rig();
    let file = rig.create("a");
    assert_eq!(available_pages(&rig), PAGES);
    file.write_at(0, &[1; 10 * PAGE]).unwrap();
    assert_eq!(available_pages(&rig), PAGES - 10, "dirty bytes are not free");
    assert_eq!(append_all(&file), ((PAGES - 10) * PAGE as u64, Written::NoSpace));
    assert_eq!(available_pages(&rig), 0);
    file.fsync().unwrap();
    assert_eq!(available_pages(&rig), 0, "counted once, before and after");
    assert_eq!(append_all(&file), (0, Written::NoSpace));
    drop(file);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p11_a_full_volume_accepts_overwrites_removals_and_truncations() {
    let rig = rig();
    let (kept, gone) = (rig.create("kept"), rig.create("gone"));
    gone.write_at(0, &[1; 100 * PAGE]).unwrap();
    let (taken, _) = append_all(&kept);
    assert_eq!(taken, (PAGES - 100) * PAGE as u64);
    assert_eq!(try_write(&kept, 5, b"dirty already"), Written::Bytes(13));
    rig.volume.sync().unwrap();
    assert_eq!(try_write(&kept, PAGE as u64, &[2; PAGE]), Written::Bytes(PAGE));
    kept.fsync().unwrap();

    drop(gone);
    rig.unlink("gone");
    assert_eq!(append_all(&kept), (100 * PAGE as u64, Written::NoSpace), "what a removal gave back");
    kept.set_len(10 * PAGE as u64).unwrap();
    assert_eq!(available_pages(&rig), PAGES - 10);
    assert_eq!(append_all(&kept), ((PAGES - 10) * PAGE as u64, Written::NoSpace), "what a cut gave back");
    kept.fsync().unwrap();
    kept.fallocate(FallocateMode::PunchHole, 0, 5 * PAGE as u64).unwrap();
    assert_eq!(append_all(&kept), (5 * PAGE as u64, Written::NoSpace), "what a hole gave back");
    kept.fsync().unwrap();
}

#[test]
fn bytes_in_units_in_flight_count_once() {
    let rig = rig();
    let (first, second) = (rig.create("a"), rig.create("b"));
    first.write_at(0, &[1; 300 * PAGE]).unwrap();
    rig.disk.faults.add(Rule::hold().on("write"));
    rig.flush_without_waiting();
    assert!(!rig.disk.faults.held().is_empty(), "units are in flight");
    let _ = rig.volume.statfs().unwrap(); // while it is unknown whether it includes them
    let (taken, refusal) = append_all(&second);
    assert!(taken <= (PAGES - 300) * PAGE as u64);
    assert_ne!(refusal, Written::Bytes(0));
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    let (rest, refusal) = append_all(&second);
    assert_eq!((taken + rest, refusal), ((PAGES - 300) * PAGE as u64, Written::NoSpace));
    rig.volume.sync().unwrap();
    assert_eq!(available_pages(&rig), 0);
}

#[test]
fn p11_writers_and_flushers_together_use_all_of_it_and_no_more() {
    let rig = Rig::live(disk(), busy());
    let files: Vec<_> = (0..3).map(|nth| Arc::new(rig.create(&format!("f{nth}")))).collect();
    let writers = files.iter().map(|file| {
        let file = file.clone();
        spawn("a writer", move || {
            let (chunk, mut at) = (pattern(5, 3 * PAGE), 0);
            loop {
                match file.write(WriteRequest::at(at), &chunk).unwrap() {
                    Written::Bytes(taken) => at += taken as u64,
                    Written::NoSpace => return at,
                    Written::NoFrames | _ => panic!("it waits for frames"),
                }
            }
        })
    });
    let taken: u64 = writers.collect::<Vec<_>>().into_iter().map(super::rig::Running::wait).sum();
    assert_eq!(taken, PAGES * PAGE as u64);
    files.iter().for_each(|file| file.fsync().unwrap());
    assert_eq!(rig.volume.status().failing, None, "no flush met a full backend");
    drop(files);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn a_write_that_must_not_wait_is_not_refused_before_the_backend_was_asked() {
    let rig = rig();
    let file = rig.create("a");
    let _ = append_all(&file);
    assert!(matches!(
        file.write(WriteRequest::at(file.inode().size_bytes()).wait(WaitFor::Nothing), b"x"),
        Err(FileError::WouldBlock)
    ));
    assert_eq!(file.write(WriteRequest::at(0).wait(WaitFor::Nothing), b"x").unwrap(), Written::Bytes(1));
}

#[test]
fn pages_of_a_mapping_are_accepted_without_space() {
    let rig = rig();
    let file = rig.create("a");
    let _ = append_all(&file);
    let end = file.inode().size_bytes();
    assert_eq!(file.write(WriteRequest::from_mapping(end), &[7; PAGE]).unwrap(), Written::Bytes(PAGE));
    assert_eq!(file.fsync().unwrap_err().kind(), slackwater::ErrorKind::NoSpace, "and kept until there is space");
    file.set_len(end).unwrap();
    file.fsync().unwrap();
}

#[test]
fn space_used_by_other_programs_is_noticed() {
    let rig = rig();
    let file = rig.create("a");
    file.write_at(0, b"x").unwrap();
    // Straight to the memory below, as another volume on the same disk would.
    let other = rig.engine.mount("other", rig.disk.mem.clone()).unwrap();
    let ballast = create(&other, "ballast");
    ballast.fallocate(FallocateMode::Allocate, 0, 500 * PAGE as u64).unwrap();
    rig.advance(std::time::Duration::from_secs(6));
    let (taken, refusal) = append_all(&file);
    assert_eq!(refusal, Written::NoSpace);
    assert_eq!(taken.div_ceil(PAGE as u64), PAGES - 500);
    file.fsync().unwrap();
}

#[test]
fn bytes_in_the_hole_of_an_extended_file_need_space() {
    let rig = rig();
    let file = rig.create("a");
    file.set_len(2 * PAGES * PAGE as u64).unwrap();
    let mut buffer = [0; PAGE];
    file.read_at(0, &mut buffer).unwrap(); // cached as zeroes
    let mut at = 0;
    while let Written::Bytes(taken) = try_write(&file, at, &[1; PAGE]) {
        at += taken as u64;
    }
    assert_eq!(at, PAGES * PAGE as u64);
    file.fsync().unwrap();
    file.fallocate(FallocateMode::PunchHole, 0, 3 * PAGE as u64).unwrap();
    file.fallocate(FallocateMode::Allocate, 1200 * PAGE as u64, 3 * PAGE as u64).unwrap();
    assert_eq!(try_write(&file, 1200 * PAGE as u64, &[1; 3 * PAGE]), Written::Bytes(3 * PAGE), "it has space");
    file.fsync().unwrap();
}

#[test]
fn bytes_that_survived_their_process_count() {
    let rig = rig();
    rig.create("a").write_at(0, &[1; 300 * PAGE]).unwrap();
    let (engine, _clock) = recover(snapshot(&rig.engine));
    let volume = remount(&engine, &rig.disk.mem).unwrap();
    assert_eq!(volume.statfs().unwrap().blocks_available, PAGES - 300);
    volume.sync().unwrap();
    assert_eq!(volume.statfs().unwrap().blocks_available, PAGES - 300);
    volume.umount(UmountOptions::default()).unwrap();
    drop(engine);
}

/// The file is extended again to the point where it was cut, over a page that is still to be written.
#[test]
fn p11_a_page_before_a_cut_that_recovery_makes_keeps_its_space() {
    let rig = rig();
    let file = Arc::new(rig.create("a"));
    file.write_at(0, &[7; 2 * PAGE]).unwrap();
    file.fsync().unwrap();
    for page in [40, 100] {
        file.write_at(page * PAGE as u64, &[7; PAGE]).unwrap();
    }
    assert_eq!(available_pages(&rig), PAGES - 4);
    rig.disk.faults.add(Rule::hold().on("setattr"));
    let cut = Arc::clone(&file);
    let cutting = spawn("a cut", move || cut.set_len(50 * PAGE as u64));
    eventually("the cut is on its way", || !rig.disk.faults.held().is_empty());
    let (engine, _) = recover(snapshot(&rig.engine));
    let volume = remount(&engine, &rig.disk.mem).unwrap();
    assert_eq!(volume.statfs().unwrap().blocks_available, PAGES - 3);
    volume.umount(UmountOptions::default()).unwrap();
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    cutting.wait().unwrap();
}

fn make_directories(rig: &Rig) -> (u64, FileError) {
    let root = rig.volume.root().unwrap();
    for nth in 0..=PAGES {
        if let Err(error) = rig.volume.make(&root, format!("d{nth}"), NewNode::Directory, 0o755) {
            return (nth, error);
        }
    }
    panic!("more directories than pages")
}

/// Accepted data is written back before new names take the last of the space.
#[test]
fn p11_names_leave_accepted_bytes_their_space() {
    let rig = rig();
    let file = rig.create("a");
    file.write_at(0, &pattern(1, 300 * PAGE)).unwrap();
    assert_eq!(rig.stored("a").unwrap(), [], "accepted, and nothing more");
    let (made, error) = make_directories(&rig);
    assert_eq!((made, error.kind()), (PAGES - 300, ErrorKind::NoSpace), "all of the rest, and no more");
    file.fsync().unwrap();
    assert_eq!(rig.volume.status().failing, None, "no flush met a full backend");
    drop(file);
    rig.unmount_and_find_nothing_left();
}

/// While accepted bytes cannot be written back they keep their space, and new names are refused.
#[test]
fn p11_names_are_refused_where_accepted_bytes_cannot_be_written_back() {
    let rig = rig();
    let file = rig.create("a");
    file.write_at(0, &pattern(1, 300 * PAGE)).unwrap();
    let rule = rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write"));
    let (made, error) = make_directories(&rig);
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(made < PAGES - 300, "{made} directories");
    let tried = rig.disk.faults.strikes(rule);
    let root = rig.volume.root().unwrap();
    for refused in [
        rig.volume.make(&root, "more", NewNode::File, 0o644).map(drop),
        rig.volume.make(&root, "link", NewNode::Symlink("a".into()), 0o777).map(drop),
        rig.volume.link(&rig.volume.lookup(&root, "a").unwrap(), &root, "b"),
        rig.volume.rename(&root, "a", &root, "b", RenameMode::NoReplace),
        file.fallocate(FallocateMode::Allocate, 300 * PAGE as u64, PAGE as u64),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoSpace);
    }
    assert_eq!(rig.disk.faults.strikes(rule), tried, "an attempt that failed is not repeated for each name");
    rig.disk.faults.remove(rule);
    assert_eq!(file.take_write_error(), Some(ErrorKind::Io), "told once");
    file.fsync().unwrap();
    rig.volume.make(&root, "more", NewNode::File, 0o644).unwrap();
    drop((file, root));
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p11_an_allocation_leaves_accepted_bytes_their_space() {
    let rig = rig();
    let (file, other) = (rig.create("a"), rig.create("b"));
    file.write_at(0, &pattern(1, 300 * PAGE)).unwrap();
    let too_large = other.fallocate(FallocateMode::Allocate, 0, 400 * PAGE as u64);
    assert_eq!(too_large.unwrap_err().kind(), ErrorKind::NoSpace);
    file.fsync().unwrap();
    other.fallocate(FallocateMode::Allocate, 0, 300 * PAGE as u64).unwrap();
    other.write_at(0, &pattern(2, 300 * PAGE)).unwrap();
    other.fsync().unwrap();
    assert_eq!(available_pages(&rig), 0);
}

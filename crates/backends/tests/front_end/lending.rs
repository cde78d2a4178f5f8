//! Reading without a copy, and writing without waiting.

use std::sync::Arc;

use slackwater::{File, FileError, ReadRequest, WaitFor, WriteRequest, Written};
use slackwater_arena::Pool;
use slackwater_testkit::{Rule, pattern};

use crate::rig::{PAGE, Rig, assert_same, fill, spawn, try_write};

fn lent(file: &File, offset: u64, len: usize) -> Option<Vec<u8>> {
    file.peek(ReadRequest::at(offset), len, |slices| slices.concat())
}

#[test]
fn cached_pages_are_lent_and_others_are_not() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let wanted = pattern(1, 300 * PAGE);
    file.write_at(0, &wanted).unwrap();
    for (offset, len) in [(0, 10), (4090, 20), (0, 2 * PAGE), (PAGE + 1, 33 * PAGE), (77, 1 << 20), (299 * PAGE, PAGE)]
    {
        assert_same(&lent(&file, offset as u64, len).unwrap(), &wanted[offset..offset + len], "lent");
    }
    assert_eq!(lent(&file, 300 * PAGE as u64 - 3, 100).unwrap(), wanted[300 * PAGE - 3..], "up to the end");
    assert_eq!(lent(&file, 300 * PAGE as u64, 1), None, "nothing there");
    assert_eq!(lent(&file, 0, (1 << 20) + 1), None, "too much");

    let sparse = rig.create("b");
    sparse.write_at(5 * PAGE as u64, b"x").unwrap();
    assert_eq!(lent(&sparse, 0, 5 * PAGE).unwrap(), vec![0; 5 * PAGE], "never written: zeroes");
    sparse.fsync().unwrap();
    assert_eq!(lent(&sparse, 0, 1), None, "the backend has it");
    assert_eq!(lent(&sparse, 5 * PAGE as u64, 1).unwrap(), b"x");
}

fn write_nowait(file: &File, at: u64, bytes: &[u8]) -> Result<Written, FileError> {
    file.write(WriteRequest::at(at).wait(WaitFor::Nothing), bytes)
}

#[test]
fn a_write_that_must_not_wait_says_so_instead() {
    let rig = Rig::by_hand();
    let file = Arc::new(rig.create("a"));
    let blocked = |result: Result<Written, FileError>| matches!(result, Err(FileError::WouldBlock));
    assert_eq!(write_nowait(&file, 0, &[1; 3 * PAGE]).unwrap(), Written::Bytes(3 * PAGE));
    file.fsync().unwrap();
    drop(file);
    rig.volume.umount(slackwater::UmountOptions::default()).unwrap();
    let volume = rig.engine.mount("again", rig.disk.backend.clone()).unwrap();
    let file = Arc::new(crate::rig::open(&volume, "a"));
    assert!(blocked(write_nowait(&file, 5, b"part of a page that is not here")));
    assert_eq!(write_nowait(&file, PAGE as u64, &[2; PAGE]).unwrap(), Written::Bytes(PAGE), "all of one");

    // A truncation that waits for the backend holds the file.
    rig.disk.faults.add(Rule::hold().on("setattr").next(1));
    let own = file.clone();
    let cut = spawn("a cut", move || own.set_len(2 * PAGE as u64));
    assert_eq!(rig.disk.faults.wait_held(1, crate::rig::PATIENCE).len(), 1);
    assert!(blocked(write_nowait(&file, PAGE as u64, b"x")));
    rig.disk.faults.release_all();
    cut.wait().unwrap();
    assert_eq!(write_nowait(&file, PAGE as u64, b"x").unwrap(), Written::Bytes(1));

    let taken = fill(&file, 2 * PAGE as u64);
    assert_eq!(write_nowait(&file, 2 * PAGE as u64 + taken, b"x").unwrap(), Written::NoFrames);
}

#[test]
fn pages_of_a_mapping_find_frames_when_others_do_not_and_stay_within_the_share() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let arena = rig.engine.arena();
    let mut others = Vec::new();
    arena.alloc_many(Pool::Normal, arena.frames() as usize, &mut others);
    assert_eq!(try_write(&file, 0, &[1; PAGE]), Written::NoFrames, "all frames are used");
    assert_eq!(
        file.write(WriteRequest::from_mapping(0), &[9; 8 * PAGE]).unwrap(),
        Written::Bytes(8 * PAGE),
        "from the reserve"
    );
    others.into_iter().for_each(|frame| arena.free(frame));
    let taken = 8 * PAGE as u64 + fill(&file, 8 * PAGE as u64);
    assert_eq!(
        file.write(WriteRequest::from_mapping(taken), &[9; PAGE]).unwrap(),
        Written::NoFrames,
        "the share is used up"
    );
    file.fsync().unwrap();
    assert_eq!(rig.durable("a").unwrap()[..8 * PAGE], [9; 8 * PAGE]);
    drop(file);
    rig.unmount_and_find_nothing_left();
}

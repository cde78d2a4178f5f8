//! Payloads that land in frames of the arena, and are then written without a copy.

use std::sync::Arc;

use slackwater::backend::Call;
use slackwater::{File, FileError, LandingFrames, ReadRequest, SuperBlock, WriteRequest, Written};
use slackwater_testkit::{Random, Rule, pattern};

use crate::rig::{PAGE, Rig, assert_same, create, fill, open, read_all, recover, remount, snapshot, spawn};

const LEN: usize = 256 * PAGE;

fn frames(volume: &SuperBlock) -> LandingFrames {
    volume.landing_frames(LEN).expect("1 MiB of 16 may be landed in")
}

/// Lands a payload as the kernel does.
fn land(frames: &mut LandingFrames, bytes: &[u8]) {
    let mut rest = bytes;
    for slice in frames.slices_mut() {
        let (now, later) = rest.split_at(slice.len().min(rest.len()));
        slice[..now.len()].copy_from_slice(now);
        rest = later;
    }
    assert!(rest.is_empty());
}

fn write(file: &File, frames: &mut LandingFrames, offset: usize, bytes: &[u8]) -> Result<Written, FileError> {
    land(frames, bytes);
    file.write_landed(WriteRequest::at(offset as u64), frames, 0..bytes.len())
}

/// Ends the units in flight.
fn let_go(rig: &Rig) {
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
}

#[test]
fn landed_bytes_become_the_files_in_any_state_of_its_pages() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let mut wanted = Vec::new();
    let mut frames = frames(&rig.volume);
    let mut random = Random::new(7);
    for round in 0..200 {
        let offset = random.below(300) as usize * PAGE;
        let len = match round % 3 {
            0 => LEN,
            1 => random.below(256) as usize * PAGE + 1 + random.below(PAGE as u64) as usize,
            _ => (1 + random.below(20) as usize) * PAGE,
        };
        let bytes = pattern(round, len.min(LEN));
        wanted.resize(wanted.len().max(offset + bytes.len()), 0);
        loop {
            match write(&file, &mut frames, offset, &bytes) {
                Ok(Written::Bytes(taken)) => break assert_eq!(taken, bytes.len()),
                Err(FileError::WouldBlock) => break file.write_at(offset as u64, &bytes).unwrap(),
                Ok(Written::NoFrames) => {
                    let_go(&rig);
                    rig.volume.sync().unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
        wanted[offset..offset + bytes.len()].copy_from_slice(&bytes);
        match random.below(6) {
            0 => {
                let_go(&rig);
                rig.volume.sync().unwrap();
            }
            1 => rig.flush_without_waiting(),
            2 => {
                // In flight until the next change.
                rig.disk.faults.add(Rule::hold().on("write"));
                rig.flush_without_waiting();
            }
            3 => {
                let_go(&rig);
                file.write_at(offset as u64 + 5, &[7; 5000]).unwrap();
                wanted.resize(wanted.len().max(offset + 5005), 0);
                wanted[offset + 5..offset + 5005].fill(7);
            }
            _ => let_go(&rig),
        }
        if round % 10 == 0 {
            assert_same(&read_all(&file), &wanted, "read");
        }
    }
    assert_same(&read_all(&file), &wanted, "read");
    let_go(&rig);
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "durable");
    drop((file, frames));
    rig.unmount_and_find_nothing_left();
}

#[test]
fn a_unit_in_flight_keeps_its_bytes_and_the_landed_ones_follow() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, &vec![1; LEN]).unwrap();
    rig.disk.faults.add(Rule::hold().on("write"));
    rig.flush_without_waiting();
    assert!(!rig.disk.faults.held().is_empty());
    let mut frames = frames(&rig.volume);
    for round in 2..5 {
        assert_eq!(write(&file, &mut frames, 0, &vec![round; LEN]).unwrap(), Written::Bytes(LEN));
        assert_same(&read_all(&file), &vec![round; LEN], "read");
    }
    let_go(&rig);
    assert_same(&rig.stored("a").unwrap(), &vec![1; LEN], "what was in flight");
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &vec![4; LEN], "durable");
    drop((file, frames));
    rig.unmount_and_find_nothing_left();
}

/// Dirty, clean, unstable, under write-back and absent pages, each overwritten before the kill.
#[test]
fn a_killed_process_leaves_the_landed_bytes() {
    let rig = Rig::by_hand();
    let mut frames = frames(&rig.volume);
    let mut wanted = Vec::new();
    for name in ["clean", "unstable", "flight", "dirty", "absent"] {
        let file = rig.create(name);
        if name != "absent" {
            file.write_at(0, &pattern(1, LEN)).unwrap();
        }
        match name {
            "clean" => file.fsync().unwrap(),
            "unstable" => {
                rig.disk.faults.add(Rule::hold().matching(|call| matches!(call, Call::SyncVolume { .. })));
                rig.flush_without_waiting();
            }
            "flight" => {
                rig.disk.faults.add(Rule::hold().on("write"));
                rig.flush_without_waiting();
            }
            _ => {}
        }
        let bytes = pattern(name.len() as u64 + 40, LEN - 100);
        // Twice: the second time, the frames come from the first.
        let _ = write(&file, &mut frames, 0, &pattern(2, LEN)).unwrap();
        assert_eq!(write(&file, &mut frames, 0, &bytes).unwrap(), Written::Bytes(bytes.len()), "{name}");
        let mut all = pattern(2, LEN);
        all[..bytes.len()].copy_from_slice(&bytes);
        wanted.push((name, all));
    }
    land(&mut frames, &pattern(99, LEN)); // other bytes land in the frames that were lent
    let left = snapshot(&rig.engine);
    let mem = rig.disk.mem.clone();
    rig.disk.faults.clear();
    rig.disk.faults.add(Rule::fail(slackwater::ErrorKind::Abandoned));
    drop((frames, rig));
    let (engine, _) = recover(left);
    let volume = remount(&engine, &mem).unwrap();
    for (name, bytes) in &wanted {
        assert_same(&read_all(&open(&volume, name)), bytes, name);
    }
    volume.sync().unwrap();
    for (name, bytes) in &wanted {
        assert_same(&mem.durable_file(*name).unwrap(), bytes, name);
    }
}

#[test]
fn a_reader_of_a_page_keeps_its_old_bytes() {
    let rig = Rig::by_hand();
    let file = Arc::new(rig.create("a"));
    file.write_at(0, &vec![1; LEN]).unwrap();
    let mut frames = frames(&rig.volume);
    let own = Arc::clone(&file);
    let writer = file.peek(ReadRequest::at(10 * PAGE as u64), 2 * PAGE, |slices| {
        let writer = spawn("a landed write", move || write(&own, &mut frames, 0, &vec![2; LEN]).unwrap());
        assert!(writer.is_running_after(std::time::Duration::from_millis(50)), "page 10 is being read");
        assert!(slices.concat().iter().all(|byte| *byte == 1));
        writer
    });
    assert_eq!(writer.expect("cached").wait(), Written::Bytes(LEN));
    assert_same(&read_all(&file), &vec![2; LEN], "read");
}

#[test]
fn a_payload_without_free_frames_stays_where_it_landed() {
    let rig = Rig::by_hand();
    let full = rig.create("full");
    let room = fill(&full, 0);
    assert!(room > 0);
    let mut frames = frames(&rig.volume);
    let file = rig.create("a");
    let bytes = pattern(3, LEN);
    assert_eq!(write(&file, &mut frames, 0, &bytes).unwrap(), Written::NoFrames);
    let mut rest = vec![0; LEN];
    frames.copy_to(0, &mut rest);
    assert_same(&rest, &bytes, "nothing was taken");
    // Overwriting dirty pages needs no free frame; the bytes behind them do.
    let offset = room as usize - 100 * PAGE;
    assert_eq!(write(&full, &mut frames, offset, &bytes).unwrap(), Written::Bytes(100 * PAGE));
    let mut rest = vec![0; 156 * PAGE];
    frames.copy_to(100 * PAGE, &mut rest);
    assert_same(&rest, &bytes[100 * PAGE..], "what was not taken");
    rig.volume.sync().unwrap();
    let written = full.write_landed(WriteRequest::at(room), &mut frames, 100 * PAGE..LEN).unwrap();
    assert_eq!(written, Written::Bytes(156 * PAGE));
    let mut found = vec![0; LEN];
    full.read_at(offset as u64, &mut found).unwrap();
    assert_same(&found, &bytes, "read");
    drop((full, file, frames));
    rig.unmount_and_find_nothing_left();
}

#[test]
fn landing_frames_are_few_and_used_again() {
    let rig = Rig::by_hand();
    let one = frames(&rig.volume);
    let free = rig.engine.arena().free_frames();
    assert!(rig.volume.landing_frames(LEN).is_none(), "a sixteenth of the arena is out");
    drop(one);
    let again = frames(&rig.volume);
    assert_eq!(rig.engine.arena().free_frames(), free, "they were kept");
    drop(again);
    let (_, other) = rig.mount("other");
    drop(frames(&other));
    let smaller = other.landing_frames(10 * PAGE).unwrap();
    assert_eq!(smaller.len_bytes(), 10 * PAGE);
    drop((smaller, create(&other, "b")));
    other.umount(slackwater::UmountOptions::default()).unwrap();
    rig.unmount_and_find_nothing_left();
}

#[test]
fn a_payload_that_is_not_at_a_page_or_not_there_is_refused() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let mut frames = frames(&rig.volume);
    #[allow(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    for (offset, range) in [(1, 0..PAGE), (0, 1..PAGE), (0, 0..LEN + 1), (0, 2 * PAGE..PAGE)] {
        let refused = file.write_landed(WriteRequest::at(offset), &mut frames, range).unwrap_err();
        assert_eq!(refused.kind(), slackwater::ErrorKind::Invalid);
    }
    let stranger = Rig::by_hand();
    let mut theirs = self::frames(&stranger.volume);
    let refused = file.write_landed(WriteRequest::at(0), &mut theirs, 0..PAGE).unwrap_err();
    assert_eq!(refused.kind(), slackwater::ErrorKind::Invalid, "frames of another engine");
    assert_eq!(file.write_landed(WriteRequest::at(0), &mut frames, 0..0).unwrap(), Written::Bytes(0));
    assert_eq!(file.inode().size_bytes(), 0);
}

//! P6: page data has a fixed place of a fixed size, and no volume uses the frames of the others.

use std::fs::File as OsFile;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slackwater::{ErrorKind, Tunables, UmountOptions, WaitFor, WriteRequest, Written};
use slackwater_testkit::{Random, Rule, pattern};

use crate::rig::{
    Disk, PAGE, Rig, assert_same, busy, by_hand, create, eventually, fill, open, read_all, spawn, try_write, within,
};

#[test]
fn p06_pinned_frames_never_exceed_the_share() {
    let rig = Rig::live(Disk::new(), busy());
    let share = rig.volume.bdi().share_frames();
    let most = most_pinned_by_writers(&rig, "f");
    assert!(most <= share, "{most} frames, share {share}");
    assert!(most > share / 2, "the test is about a full share, not {most} frames");
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p06_pinned_frames_never_exceed_the_limit_of_the_volume() {
    let rig = Rig::live(Disk::new(), busy());
    let bdi = rig.volume.bdi();
    let share = bdi.share_frames();
    let limit = share / 4;
    bdi.set_dirty_limit(Some(limit * PAGE as u64));
    assert_eq!((bdi.share_frames(), bdi.dirty_limit()), (limit, Some(limit * PAGE as u64)));
    let most = most_pinned_by_writers(&rig, "f");
    assert!(most <= limit, "{most} frames, limit {limit}");
    assert!(most > limit / 2, "the test is about a full limit, not {most} frames");
    bdi.set_dirty_limit(Some(u64::MAX));
    assert_eq!(bdi.share_frames(), share, "a limit is no right to more");
    bdi.set_dirty_limit(None);
    assert!(most_pinned_by_writers(&rig, "g") > limit);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p06_write_back_starts_at_half_of_the_limit_of_the_volume() {
    let rig = Rig::by_hand();
    rig.volume.bdi().set_dirty_limit(Some(64 * PAGE as u64));
    let file = rig.create("a");
    file.write_at(0, &pattern(1, 32 * PAGE)).unwrap();
    let _ = rig.engine.step();
    assert_eq!(rig.stored("a").unwrap(), b"", "at half, not before");
    file.write_at(32 * PAGE as u64, &pattern(2, PAGE)).unwrap();
    let _ = rig.engine.step();
    assert_eq!(rig.stored("a").unwrap().len(), 33 * PAGE);
    drop(file);
    rig.unmount_and_find_nothing_left();
}

/// Lets four threads write, and returns the most frames that were pinned meanwhile. Nothing is written back until half of the
/// share is pinned, however slow the writers are.
fn most_pinned_by_writers(rig: &Rig, names: &'static str) -> u64 {
    const THREADS: u64 = 4;
    let stop = Arc::new(AtomicBool::new(false));
    let sampler = {
        let (volume, stop) = (rig.volume.clone(), stop.clone());
        spawn("the sampler", move || {
            let (mut most, mut samples) = (0, 0_u64);
            while !stop.load(Ordering::Relaxed) {
                most = most.max(volume.bdi().pinned_frames());
                samples += 1;
            }
            (most, samples)
        })
    };
    rig.disk.faults.add(Rule::hold().on("write"));
    let writers: Vec<_> = (0..THREADS)
        .map(|thread| {
            let volume = rig.volume.clone();
            spawn("a writer", move || {
                let file = create(&volume, &format!("{names}{thread}"));
                let chunk = pattern(thread, 50_000);
                for nth in 0..600 {
                    file.write_at(nth % 300 * 50_000, &chunk).unwrap();
                }
            })
        })
        .collect();
    let bdi = rig.volume.bdi();
    eventually("half of the share is pinned", || bdi.pinned_frames() > bdi.share_frames() / 2);
    let early = bdi.pinned_frames();
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    writers.into_iter().for_each(|writer| writer.wait());
    stop.store(true, Ordering::Relaxed);
    let (most, samples) = sampler.wait();
    println!("{most} frames in {samples} samples, {early} before write-back");
    most.max(early)
}

#[test]
fn p06_the_arena_never_grows() {
    let rig = Rig::by_hand();
    let memory = OsFile::from(rig.engine.arena().try_clone_fd().unwrap());
    let (before, frames) = (memory.metadata().unwrap(), rig.engine.arena().frames());
    for nth in 0..30 {
        let file = rig.create(&format!("f{nth}"));
        while fill(&file, 0) == 0 {
            rig.engine.step();
        }
        file.fsync().unwrap();
        assert!(rig.engine.arena().free_frames() <= u64::from(frames));
    }
    let after = memory.metadata().unwrap();
    assert_eq!(before.len(), after.len());
    use std::os::unix::fs::MetadataExt;
    assert_eq!(before.blocks(), after.blocks(), "all of it was there from the start");
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p06_a_full_share_returns_no_room_and_continues_with_freed_frames() {
    let rig = Rig::by_hand();
    let share = rig.volume.bdi().share_frames();
    let file = rig.create("a");
    let taken = fill(&file, 0);
    assert_eq!(taken / PAGE as u64, share);
    assert_eq!(rig.volume.bdi().pinned_frames(), share);
    // Pages that are already dirty need no frame.
    assert_eq!(try_write(&file, 5, b"rewritten"), Written::Bytes(9));
    assert_eq!(try_write(&file, taken, b"more"), Written::NoFrames);
    let deadline = slackwater::Clock::now(&*rig.clock) + Duration::from_millis(1);
    rig.disk.faults.add(Rule::hold().on("write"));
    rig.clock.advance(Duration::from_millis(2));
    let patient = WriteRequest::at(taken).wait(WaitFor::WritebackUntil(deadline));
    assert_eq!(file.write(patient, b"more").unwrap(), Written::NoFrames);
    // A write whose beginning fits returns how far it got.
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    rig.engine.step();
    assert_eq!(try_write(&file, taken, b"more"), Written::Bytes(4));
    file.fsync().unwrap();
    drop(file);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p06_a_write_larger_than_the_arena_completes() {
    let rig = Rig::live(Disk::new(), busy());
    let wanted = pattern(4, 25_000_000);
    let (volume, bytes) = (rig.volume.clone(), wanted.clone());
    within("a large write", move || {
        let file = create(&volume, "a");
        file.write_at(3, &bytes).unwrap();
        file.fsync().unwrap();
        assert_same(&read_all(&file)[3..], &bytes, "a");
    });
    assert_same(&rig.durable("a").unwrap()[3..], &wanted, "a");
    rig.unmount_and_find_nothing_left();
}

/// Each read of a part must keep the page it needs in the cache until that page has been copied.
#[test]
fn p06_a_read_larger_than_the_arena_completes() {
    let rig = Rig::live(Disk::new(), busy());
    let wanted = pattern(4, 30_000_000);
    let file = rig.create("a");
    file.write_at(0, &wanted).unwrap();
    file.fsync().unwrap();
    let found = within("a large read", move || {
        let mut bytes = vec![0; 30_000_000];
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
        bytes
    });
    assert_same(&found, &wanted, "a");
}

/// A read of ordinary size completes in a cache that other files have pinned almost entirely.
#[test]
fn p06_a_read_completes_with_few_free_frames() {
    let rig = Rig::with(Disk::new(), by_hand());
    let wanted = pattern(4, 4_000_000);
    let file = rig.create("a");
    file.write_at(0, &wanted).unwrap();
    file.fsync().unwrap();
    let (full_disk, full) = rig.mount("full");
    for disk in [&full_disk, &rig.disk] {
        disk.faults.add(Rule::hold().on("write"));
    }
    fill(&create(&full, "b"), 0);
    let other = rig.create("c");
    let mut at = 0;
    let evictable = |rig: &Rig| {
        let pinned = rig.volume.bdi().pinned_frames() + full.bdi().pinned_frames();
        u64::from(rig.engine.arena().frames() - rig.engine.arena().reserve_frames()) - pinned
    };
    while evictable(&rig) > 64 {
        assert_eq!(try_write(&other, at, &[1; PAGE]), Written::Bytes(PAGE));
        at += PAGE as u64;
    }
    let found = within("a read", move || {
        let mut bytes = vec![0; 1_000_000];
        for _ in 0..3 {
            assert_eq!(file.read_at(2_000_000, &mut bytes).unwrap(), bytes.len());
        }
        bytes
    });
    assert_same(&found, &wanted[2_000_000..3_000_000], "a");
}

#[test]
fn p06_the_share_is_an_eighth_after_a_failure_and_whole_after_a_success() {
    let rig = Rig::by_hand();
    let frames = u64::from(rig.engine.arena().frames());
    let bdi = rig.volume.bdi();
    assert_eq!(bdi.share_frames(), frames / 2);
    let file = rig.create("a");
    file.write_at(0, &[1; PAGE]).unwrap();
    for kind in ["write", "sync", "sync_volume", "setattr"] {
        let rule = rig.disk.faults.add(Rule::fail(ErrorKind::Io).on(kind));
        file.write_at(0, &[2; PAGE]).unwrap();
        if kind == "sync_volume" {
            rig.volume.sync().unwrap_err()
        } else {
            file.fsync().unwrap_err()
        };
        assert_eq!(bdi.share_frames(), frames * 12 / 100, "{kind} failed");
        assert_eq!(fill(&file, 0) / PAGE as u64, frames * 12 / 100, "{kind} failed");
        rig.disk.faults.remove(rule);
        file.fsync().or_else(|_| file.fsync()).unwrap();
        rig.volume.sync().unwrap();
        assert_eq!(bdi.share_frames(), frames / 2, "{kind} works again");
        assert_eq!(bdi.pinned_frames(), 0);
        file.set_len(0).unwrap();
    }
    assert_eq!(fill(&file, 0) / PAGE as u64, frames / 2);
    drop(file);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p06_a_failing_volume_that_is_over_its_smaller_share_pins_nothing_more() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let taken = fill(&file, 0);
    rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write"));
    file.fsync().unwrap_err();
    let pinned = rig.volume.bdi().pinned_frames();
    assert_eq!(pinned, taken / PAGE as u64);
    assert_eq!(try_write(&file, taken, &[1; 100]), Written::NoFrames);
    assert_eq!(try_write(&rig.create("b"), 0, &[1; 100]), Written::NoFrames);
    assert_eq!(try_write(&file, 0, &[1; 100]), Written::Bytes(100), "it is dirty already");
    assert_eq!(rig.volume.bdi().pinned_frames(), pinned);
}

#[test]
fn p06_a_dead_backend_does_not_stop_another_volume() {
    for effect in ["fails", "hangs"] {
        let rig = Rig::live(Disk::new(), busy());
        let rule = || if effect == "fails" { Rule::fail(ErrorKind::Io) } else { Rule::hold() };
        let (dead_disk, dead) = rig.mount("dead");
        let file = Arc::new(create(&dead, "a"));
        for kind in ["write", "sync_volume", "setattr"] {
            dead_disk.faults.add(rule().on(kind));
        }
        // Writers that wait for frames on the dead volume for as long as the test runs.
        let stuck: Vec<_> = (0..3)
            .map(|nth| {
                let file = file.clone();
                spawn("a writer of the dead volume", move || file.write_at(nth * 5_000_000, &pattern(nth, 5_000_000)))
            })
            .collect();
        eventually("the dead volume is full", || {
            dead.bdi().pinned_frames() + 10 >= dead.bdi().share_frames() && dead.bdi().pinned_frames() > 400
        });
        let wanted = pattern(5, 15_000_000);
        let (volume, bytes) = (rig.volume.clone(), wanted.clone());
        within("work on the other volume", move || {
            let file = create(&volume, "b");
            file.write_at(0, &bytes).unwrap();
            file.fsync().unwrap();
            assert_same(&read_all(&file), &bytes, "b");
        });
        assert_same(&rig.durable("b").unwrap(), &wanted, effect);
        let volume = rig.volume.clone();
        within("umount", move || volume.umount(UmountOptions::default())).unwrap();
        dead_disk.faults.clear();
        dead_disk.faults.release_all();
        for writer in stuck {
            writer.wait().unwrap();
        }
        drop(file);
        let volume = dead.clone();
        within("umount", move || volume.umount(UmountOptions::default())).unwrap();
        assert_same(&dead_disk.mem.durable_file("a").unwrap()[5_000_000..10_000_000], &pattern(1, 5_000_000), "a");
        crate::rig::assert_idle(&rig.engine, &dead);
    }
}

/// Frames are freed by removals, truncations, rewrites, failures and evictions.
#[test]
fn p06_no_frame_is_lost_over_a_long_life() {
    let seed = 4711;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let rig = Rig::live(Disk::new(), busy());
    rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("read").chance(0.05, seed));
    rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write").chance(0.05, seed));
    rig.disk.faults.add(Rule::short_write(PAGE).chance(0.05, seed));
    let mut live = 0;
    for nth in 0..400_u64 {
        let file = rig.create(&format!("f{nth}"));
        let len = random.below(400_000);
        within("a write", {
            let own = rig.open(&format!("f{nth}"));
            move || own.write_at(random_start(nth), &pattern(nth, len as usize))
        })
        .ok();
        if random.below(3) == 0 {
            file.fsync().ok();
        }
        if random.below(4) == 0 {
            file.set_len(random.below(100_000)).ok();
        }
        file.read_at(random.below(200_000), &mut [0; 50_000]).ok();
        drop(file);
        if random.below(2) == 0 {
            rig.unlink(&format!("f{nth}"));
        } else {
            live += 1;
        }
        if random.below(5) == 0 {
            let old = random.below(nth + 1);
            if rig.volume.walk(format!("f{old}")).is_ok() {
                open(&rig.volume, &format!("f{old}")).read_at(0, &mut vec![0; 300_000]).ok();
            }
        }
    }
    assert!(live > 100);
    rig.disk.faults.clear();
    eventually("it comes to rest", || rig.volume.status().bytes_left() == 0);
    rig.unmount_and_find_nothing_left();
}

fn random_start(nth: u64) -> u64 {
    nth * 977 % 10_000
}

/// Records and open nodes of files that are clean and closed are free for others.
#[test]
fn p06_a_clean_file_holds_no_record_whatever_its_last_call_was() {
    let rig = Rig::with(Disk::new(), Tunables { commit_interval: Duration::from_millis(100), ..by_hand() });
    let all = rig.engine.arena().free_inodes();
    // The times arrive last, after the data is durable.
    rig.create("a").write_at(0, b"x").unwrap();
    let hold = rig.disk.faults.add(Rule::hold().on("setattr"));
    rig.advance(Duration::from_secs(40));
    assert_eq!(rig.volume.status().bytes_left(), 0);
    assert_eq!(rig.disk.faults.held().len(), 1, "the times");
    rig.disk.faults.remove(hold);
    rig.disk.faults.release_all();
    rig.advance(Duration::from_secs(10));
    assert_eq!(rig.engine.arena().free_inodes(), all, "of a file whose times came last");

    // And of a file that was unlinked while they were in flight.
    rig.create("b").write_at(0, b"x").unwrap();
    let hold = rig.disk.faults.add(Rule::hold().on("setattr"));
    rig.advance(Duration::from_secs(40));
    rig.unlink("b");
    rig.disk.faults.remove(hold);
    rig.disk.faults.release_all();
    rig.advance(Duration::from_secs(10));
    assert_eq!(rig.engine.arena().free_inodes(), all, "of a file that was unlinked");
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p06_more_dirty_files_than_open_nodes_are_allowed_write_in_turn() {
    let rig = Rig::live(Disk::new(), Tunables { pinned_nodes: 16, ..busy() });
    let volume = rig.volume.clone();
    within("writes to many files", move || {
        for nth in 0..300 {
            create(&volume, &format!("f{nth}")).write_at(0, &pattern(nth, 100)).unwrap();
        }
    });
    rig.volume.sync().unwrap();
    for nth in 0..300 {
        assert_same(&rig.durable(&format!("f{nth}")).unwrap(), &pattern(nth, 100), "a file");
    }
    rig.unmount_and_find_nothing_left();
}

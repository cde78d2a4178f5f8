//! P2: a failed write-back reaches every open description once, and its data is kept and retried.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use slackwater::backend::Call;
use slackwater::{ErrCursor, ErrorKind, File, FileError, Tunables, UmountOptions};
use slackwater_testkit::{Rule, pattern};

use crate::rig::{Disk, PAGE, Rig, assert_same, by_hand, eventually, limits, read_all, spawn, within};

const MS: Duration = Duration::from_millis(1);

#[test]
fn p02_a_failed_write_back_reaches_every_open_description_once() {
    let rig = Rig::by_hand();
    let (first, second) = (rig.create("a"), rig.open("a"));
    first.write_at(0, &[1; 9000]).unwrap();
    let rule = rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write"));
    rig.flush_without_waiting();
    assert!(rig.disk.faults.strikes(rule) > 0);
    rig.disk.faults.remove(rule);
    let other = rig.create("b");
    for file in [&first, &second] {
        assert_eq!(file.take_write_error(), Some(ErrorKind::Io));
        assert_eq!(file.take_write_error(), None);
    }
    assert_eq!(other.take_write_error(), None, "another file's");
    assert_eq!(rig.open("a").take_write_error(), None, "opened after it was heard of");
    for file in [&first, &second] {
        file.fsync().unwrap();
    }
    assert_same(&rig.durable("a").unwrap(), &[1; 9000], "a");
}

#[test]
fn p02_a_front_end_takes_the_errors_of_descriptions_to_another_process() {
    let rig = Rig::by_hand();
    let (seer, other) = (rig.create("a"), rig.open("a"));
    let failed = Arc::new(Mutex::new(Vec::new()));
    let notified = Arc::clone(&failed);
    rig.volume.on_write_error(move |inode| notified.lock().unwrap().push(inode));
    seer.write_at(0, &[1; 9000]).unwrap();
    assert_eq!(seer.inode().error_bits(), 0);
    let rule = rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write"));
    rig.flush_without_waiting();
    assert!(failed.lock().unwrap().contains(&seer.inode().id()));
    assert_eq!(seer.take_write_error(), Some(ErrorKind::Io));
    let (bits, cursors) = (seer.inode().error_bits(), [&seer, &other].map(|file| file.error_cursor().to_bits()));
    rig.disk.faults.remove(rule);
    // Another inode without errors stands for the same one in another process.
    let (seer, other) = (rig.create("b"), rig.open("b"));
    seer.inode().restore_errors(bits);
    for (file, cursor) in [&seer, &other].into_iter().zip(cursors) {
        file.restore_error_cursor(ErrCursor::from_bits(cursor));
    }
    let errors = [&seer, &other, &rig.open("b")].map(File::take_write_error);
    assert_eq!(errors, [None, Some(ErrorKind::Io), None]);
    // A cursor without errors means nothing.
    let fresh = rig.create("c");
    fresh.restore_error_cursor(ErrCursor::from_bits(cursors[0]));
    assert_eq!((fresh.peek_write_error(), fresh.error_cursor()), (None, ErrCursor::default()));
}

#[test]
fn p02_an_unreported_error_waits_for_the_next_description() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, b"x").unwrap();
    let rule = rig.disk.faults.add(Rule::fail(ErrorKind::Quota).on("write"));
    drop(file);
    rig.flush_without_waiting();
    rig.disk.faults.remove(rule);
    let file = rig.open("a");
    assert_eq!(file.take_write_error(), Some(ErrorKind::Quota));
    file.fsync().unwrap();
}

#[test]
fn p02_fsync_reports_its_own_attempt_and_succeeds_only_when_the_data_is_durable() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let wanted = pattern(1, 3 << 20);
    file.write_at(0, &wanted).unwrap();
    let rule = rig.disk.faults.add(Rule::fail(ErrorKind::NoSpace).on("write").nth(2));
    assert_eq!(file.fsync().unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(file.take_write_error(), None, "fsync has said it");
    rig.disk.faults.remove(rule);
    let rule = rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write"));
    for _ in 0..3 {
        assert!(matches!(file.fsync().unwrap_err(), FileError::Backend(error) if error.kind() == ErrorKind::Io));
        // A description that is opened later reports the result of its own attempt, and no more.
        let late = rig.open("a");
        assert_eq!(late.take_write_error(), None);
        assert_eq!(late.fsync().unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(file.take_write_error(), Some(ErrorKind::Io), "the attempt of the other");
    }
    assert_same(&read_all(&file), &wanted, "kept");
    rig.disk.faults.remove(rule);
    rig.open("a").fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "durable");
}

#[test]
fn p02_the_periodic_flusher_retries_after_backing_off_and_fsync_at_once() {
    // The flusher runs every 100 ms, so a retry comes at most that much late.
    let tunables = Tunables { retry_min: 1000 * MS, dirty_writeback: 100 * MS, ..by_hand() };
    let rig = Rig::with(Disk::new(), tunables);
    let file = rig.create("a");
    file.write_at(0, b"kept").unwrap();
    let rule = rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write"));
    while rig.disk.faults.strikes(rule) == 0 {
        rig.advance(100 * MS);
    }
    // 1 s, 2 s and 4 s, one after the other.
    for (nth, (early_ms, late_ms)) in (1..).zip([(900, 300), (1600, 500), (3400, 900)]) {
        rig.advance(early_ms * MS);
        assert_eq!(rig.disk.faults.strikes(rule), nth, "too early");
        rig.advance(late_ms * MS);
        assert_eq!(rig.disk.faults.strikes(rule), nth + 1, "too late");
    }
    assert_eq!(file.fsync().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(rig.disk.faults.strikes(rule), 5, "at once");
    rig.disk.faults.remove(rule);
    file.fsync().unwrap();
    assert_eq!(rig.durable("a").unwrap(), b"kept");
}

/// The timer of a retry wakes the flusher, which must work on the due inodes and not leave them to the next period.
/// Without periods there is no next one.
#[test]
fn p02_a_retry_comes_after_its_back_off_whatever_the_period() {
    for period_ms in [5000, 0] {
        let tunables = Tunables { retry_min: 300 * MS, dirty_writeback: period_ms * MS, ..by_hand() };
        let rig = Rig::with(Disk::new(), tunables);
        let file = rig.create("a");
        file.write_at(0, b"kept").unwrap();
        rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write").next(1));
        file.fsync().unwrap_err();
        rig.advance(600 * MS);
        assert_eq!(rig.stored("a").unwrap(), b"kept", "with a period of {period_ms} ms");
    }
}

#[test]
fn p02_failed_data_is_written_without_a_request_when_the_backend_recovers() {
    let rig = Rig::by_hand();
    let wanted = pattern(9, 70_000);
    let file = rig.create("a");
    file.write_at(0, &wanted).unwrap();
    drop(file);
    let rule = rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write"));
    rig.advance(Duration::from_secs(300));
    assert!(rig.disk.faults.strikes(rule) > 5);
    assert_eq!(rig.volume.status().failing, Some(ErrorKind::Io));
    rig.disk.faults.remove(rule);
    rig.advance(Tunables::default().retry_max + Duration::from_secs(15));
    assert_same(&rig.durable("a").unwrap(), &wanted, "a");
    assert_eq!(rig.volume.status().failing, None);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p02_data_lost_in_a_crash_of_the_backend_is_written_again() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.fsync().unwrap();
    let wanted = pattern(2, 1 << 20);
    file.write_at(0, &wanted).unwrap();
    rig.flush_without_waiting();
    rig.disk.mem.crash();
    // Written and not committed by then, or written again by now: fsync may find either.
    let outcome = file.fsync();
    if outcome.is_ok() {
        assert_same(&rig.durable("a").unwrap(), &wanted, "fsync said so");
    }
    file.fsync().or_else(|_| file.fsync()).unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "written again");
    drop(file);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p02_a_commit_that_reports_a_loss_makes_its_pages_dirty_again() {
    let tunables = Tunables { commit_interval: Duration::from_secs(1000), ..by_hand() };
    let rig = Rig::with(Disk::new(), tunables);
    let (first, second) = (rig.create("a"), rig.create("b"));
    rig.volume.sync().unwrap();
    let wanted = pattern(2, 100_000);
    for file in [&first, &second] {
        file.write_at(0, &wanted).unwrap();
    }
    rig.flush_without_waiting();
    assert_eq!(rig.volume.status().dirty_bytes, 0);
    assert!(rig.volume.status().unstable_bytes > 0);
    rig.disk.mem.crash();
    assert_eq!(first.fsync().unwrap_err().kind(), ErrorKind::Lost);
    assert!(first.inode().unclean_bytes() >= 100_000);
    first.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "a");
    // The pages of the other file belong to the volume's commit.
    assert_eq!(rig.volume.sync().unwrap_err().kind(), ErrorKind::Lost);
    rig.volume.sync().or_else(|_| rig.volume.sync()).unwrap();
    assert_same(&rig.durable("b").unwrap(), &wanted, "b");
    assert_eq!(second.take_write_error(), Some(ErrorKind::Lost));
    assert_eq!(second.take_write_error(), None);
}

#[test]
fn p02_a_failed_sync_call_has_the_data_written_again() {
    for name in ["sync", "sync_volume"] {
        let rig = Rig::by_hand();
        let file = rig.create("a");
        let wanted = pattern(2, 100_000);
        file.write_at(0, &wanted).unwrap();
        let sync = || if name == "sync" { file.fsync() } else { rig.volume.sync() };
        let rule = rig.disk.faults.add(Rule::fail(ErrorKind::Lost).on(name).next(1));
        assert_eq!(sync().unwrap_err().kind(), ErrorKind::Lost, "{name}");
        assert_eq!(rig.disk.faults.strikes(rule), 1);
        assert!(file.inode().unclean_bytes() >= wanted.len() as u64);
        let writes = rig.disk.faults.add(Rule::short_write(usize::MAX));
        sync().unwrap();
        assert!(rig.disk.faults.strikes(writes) > 0, "{name}: written again");
        assert_same(&rig.durable("a").unwrap(), &wanted, name);
        assert_eq!(file.inode().unclean_bytes(), 0);
    }
}

#[test]
fn p02_a_full_backend_delays_data_and_loses_none() {
    let rig = Rig::by_hand();
    let full = rig.disk.faults.add(Rule::fail(ErrorKind::NoSpace).on("write"));
    let files: Vec<_> = (0..10_u64).map(|nth| (nth, rig.create(&format!("f{nth}")))).collect();
    for round in 0..5_usize {
        for (nth, file) in &files {
            file.write_at(round as u64 * 10_000, &pattern(*nth + round as u64, 10_000)).unwrap();
        }
        rig.advance(Duration::from_secs(40));
        assert_eq!(rig.volume.sync().unwrap_err().kind(), ErrorKind::NoSpace);
    }
    rig.disk.faults.remove(full);
    rig.volume.sync().unwrap();
    for (nth, file) in files {
        let wanted: Vec<u8> = (0..5).flat_map(|round| pattern(nth + round, 10_000)).collect();
        assert_same(&rig.durable(&format!("f{nth}")).unwrap(), &wanted, "kept");
        assert_eq!(file.take_write_error(), Some(ErrorKind::NoSpace));
    }
    rig.unmount_and_find_nothing_left();
}

/// If the backend accepts one page of a unit of three, that is neither an error nor complete.
#[test]
fn p02_fsync_after_a_short_write_writes_the_rest() {
    for len_bytes in [1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE] {
        let rig = Rig::by_hand();
        let file = rig.create("a");
        let wanted = pattern(len_bytes as u64, 9 * PAGE + 100);
        file.write_at(0, &wanted).unwrap();
        rig.disk.faults.add(Rule::short_write(len_bytes).next(1));
        match file.fsync() {
            Ok(()) => assert_same(&rig.durable("a").unwrap(), &wanted, "fsync said so"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io),
        }
        file.fsync().unwrap();
        assert_same(&rig.durable("a").unwrap(), &wanted, "the second fsync said so");
        assert_eq!(file.inode().unclean_bytes(), 0, "after {len_bytes} bytes");
    }
}

#[test]
fn p02_sync_after_a_short_write_writes_the_rest() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let wanted = pattern(1, 9 * PAGE + 100);
    file.write_at(0, &wanted).unwrap();
    rig.disk.faults.add(Rule::short_write(2 * PAGE).next(2));
    rig.volume.sync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "sync said so");
    drop(file);
    rig.unmount_and_find_nothing_left();
}

/// The unit in flight was the flusher's, and fsync must write its rest.
#[test]
fn p02_fsync_waits_for_the_rest_of_a_flushers_short_write() {
    let rig = Rig::by_hand();
    let file = Arc::new(rig.create("a"));
    let wanted = pattern(1, 9 * PAGE + 100);
    file.write_at(0, &wanted).unwrap();
    let hold = rig.disk.faults.add(Rule::hold().on("write"));
    rig.flush_without_waiting();
    let held = rig.disk.faults.held();
    assert_eq!(held.len(), 1);
    rig.disk.faults.remove(hold);
    let own = file.clone();
    let fsync = spawn("fsync", move || own.fsync());
    assert!(fsync.is_running_after(20 * MS), "it waits for the unit");
    // Held whole, accepted in part: the layer splits when the call comes in, so the unit fails instead.
    assert!(rig.disk.faults.fail(held[0].ticket, ErrorKind::Io));
    let outcome = fsync.wait();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Io, "the unit it waited for has failed");
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "a");
}

#[test]
fn p02_failing_metadata_is_reported_and_retried_like_data() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, b"data").unwrap();
    let rule = rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("setattr"));
    assert_eq!(file.fsync().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(file.fsync().unwrap_err().kind(), ErrorKind::Io);
    rig.disk.faults.remove(rule);
    file.fsync().unwrap();
    assert_eq!(rig.durable("a").unwrap(), b"data");
    drop(file);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p02_rewriting_a_page_while_its_write_back_fails_keeps_the_newer_bytes() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, &[1; 2 * PAGE]).unwrap();
    let hold = rig.disk.faults.add(Rule::hold().on("write"));
    rig.flush_without_waiting();
    file.write_at(100, &[2; 100]).unwrap();
    let mut wanted = vec![1; 2 * PAGE];
    wanted[100..200].fill(2);
    assert_same(&read_all(&file), &wanted, "cached");
    rig.disk.faults.remove(hold);
    for held in rig.disk.faults.held() {
        rig.disk.faults.fail(held.ticket, ErrorKind::Io);
    }
    assert_same(&read_all(&file), &wanted, "cached after the failure");
    assert_eq!(file.fsync().map_err(|error| error.kind()), Err(ErrorKind::Io), "not heard of yet");
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "durable");
    drop(file);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p02_a_live_engine_writes_all_data_back_over_a_flaky_backend() {
    let seed = 0x5eed;
    println!("seed {seed}");
    let rig = Rig::live(
        Disk::with_limits(slackwater::backend::Limits { unit_bytes: 64 << 10, ..limits() }),
        crate::rig::busy(),
    );
    rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write").chance(0.3, seed));
    rig.disk.faults.add(Rule::short_write(5000).chance(0.3, seed + 1));
    rig.disk.faults.add(Rule::fail(ErrorKind::Lost).on("sync_volume").chance(0.3, seed + 2));
    rig.disk.faults.add(Rule::fail(ErrorKind::Io).matching(|call| matches!(call, Call::Setattr { .. })).chance(0.3, 3));
    let wanted = pattern(seed, 12_000_000);
    let file = rig.create("a");
    for (nth, part) in (0..).zip(wanted.chunks(100_000)) {
        let (volume, part) = (rig.volume.clone(), part.to_vec());
        within("a write", move || crate::rig::open(&volume, "a").write_at(nth * 100_000, &part)).unwrap();
    }
    drop(file);
    eventually("everything is in the backend", || rig.volume.status().bytes_left() == 0);
    assert_same(&rig.durable("a").unwrap(), &wanted, "a");
    rig.disk.faults.clear();
    rig.unmount_and_find_nothing_left();
}

/// An unmount does not give up, and it sends a failing source no more attempts than the flusher does: 100 ms, doubled
/// up to 30 s, are 10 attempts in the first minute of each. The test moves the time itself.
///
/// The first pauses are so short that an attempt of the unmount can meet one of the flusher, and is then made once more
/// when that has failed. There is one page, since an attempt could divide several pages among two units.
#[test]
fn p02_an_unmount_backs_off_from_a_source_that_fails() {
    let rig = Rig::with(Disk::new(), Tunables::default());
    rig.create("a").write_at(0, &pattern(3, PAGE)).unwrap();
    let rule = rig.disk.faults.add(Rule::fail(ErrorKind::NoSpace).on("write"));
    let volume = Arc::clone(&rig.volume);
    let unmount = spawn("an unmount", move || volume.umount(UmountOptions::default()));
    eventually("the first attempt", || rig.disk.faults.strikes(rule) > 0);
    for _ in 0..600 {
        rig.clock.advance(100 * MS);
        std::thread::sleep(MS); // so that a loop without pauses shows
    }
    let tried = rig.disk.faults.strikes(rule);
    let met = 2;
    assert!(tried <= 2 * 10 + met, "{tried} attempts in a minute");
    rig.disk.faults.remove(rule);
    eventually("the unmount", || {
        rig.clock.advance(1000 * MS);
        rig.engine.volumes().is_empty()
    });
    unmount.wait().unwrap();
    assert_same(&rig.durable("a").unwrap(), &pattern(3, PAGE), "durable");
}

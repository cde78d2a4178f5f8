//! P5: dirty data does not grow older than its expiry and one period, and one inode delays no other.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::{Call, Limits};
use slackwater::{ErrorKind, File, Tunables};
use slackwater_testkit::{Rule, pattern};

use crate::rig::{Disk, PAGE, Rig, assert_same, by_hand, limits, open, snapshot};

const MS: Duration = Duration::from_millis(1);

/// Expiry and one period, and a step of the clock.
fn age_limit() -> Duration {
    let tunables = Tunables::default();
    tunables.dirty_expire + tunables.dirty_writeback + 100 * MS
}

#[test]
fn p05_dirty_data_reaches_the_backend_after_its_expiry_and_one_period() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    for round in 0..5_u64 {
        // Not in step with the period.
        rig.advance(1700 * MS);
        let bytes = pattern(round, 1000);
        file.write_at(round * 1000, &bytes).unwrap();
        let early = Tunables::default().dirty_expire - 100 * MS;
        rig.advance(early);
        assert_eq!(rig.stored("a").unwrap().len() as u64, round * 1000, "not before");
        rig.advance(age_limit() - early);
        assert_same(&rig.stored("a").unwrap()[round as usize * 1000..], &bytes, "by now");
    }
}

#[test]
fn p05_a_volume_may_have_an_age_of_its_own() {
    let rig = Rig::by_hand();
    let bdi = rig.volume.bdi();
    bdi.set_dirty_expire(Some(500 * MS));
    let file = rig.create("a");
    file.write_at(0, b"soon").unwrap();
    rig.advance(400 * MS);
    assert_eq!(rig.stored("a").unwrap(), b"", "not before");
    rig.advance(700 * MS); // age, interval and a step of the clock
    assert_eq!(rig.stored("a").unwrap(), b"soon");
    rig.advance(600 * MS);
    assert_eq!(rig.volume.status().unstable_bytes, 0, "commits are not rarer than the age");
    bdi.set_dirty_expire(None);
    file.write_at(0, b"late").unwrap();
    rig.advance(Tunables::default().dirty_expire - 100 * MS);
    assert_eq!(rig.stored("a").unwrap(), b"soon");
    rig.advance(age_limit());
    assert_eq!(rig.stored("a").unwrap(), b"late");
}

#[test]
fn p05_rewriting_a_page_does_not_make_it_younger() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let mut age = Duration::ZERO;
    while rig.stored("a").unwrap().is_empty() {
        file.write_at(0, &age.as_millis().to_le_bytes()).unwrap();
        rig.advance(500 * MS);
        age += 500 * MS;
        assert!(age <= age_limit() + 500 * MS, "rewritten for ever");
    }
}

/// The age of data began anew with each process that took it over. If processes died more often than the data became old,
/// it was never written back.
#[test]
fn p05_data_keeps_its_age_when_its_process_dies() {
    let rig = Rig::by_hand();
    let (mem, clock) = (rig.disk.mem.clone(), Arc::clone(&rig.clock));
    rig.create("a").write_at(0, &[1; 10_000]).unwrap();
    rig.create("durable before").write_at(0, &[1; 10_000]).unwrap();
    rig.advance(MS * 700);
    open(&rig.volume, "durable before").fsync().unwrap();
    let life = Duration::from_secs(3);
    rig.advance(life);
    open(&rig.volume, "durable before").write_at(0, &[2; 10_000]).unwrap();
    let mut left = die(rig);
    let mut age = life + 700 * MS;
    while mem.volatile_file("a").unwrap().is_empty() {
        assert!(age <= age_limit() + life, "young for ever");
        let rig = Rig::after(left, &clock, &mem);
        rig.advance(life);
        age += life;
        left = die(rig);
    }
    assert!(age > Tunables::default().dirty_expire, "{age:?}: not before");
    assert_same(&mem.volatile_file("durable before").unwrap(), &[1; 10_000], "it became dirty later");
}

/// A process that dies before it commits what it has written leaves that to the next one. Each of them waited for the commit
/// interval anew.
#[test]
fn p05_data_becomes_durable_even_if_each_process_dies_before_the_commit_interval() {
    let rig = Rig::by_hand();
    let (mem, clock) = (rig.disk.mem.clone(), Arc::clone(&rig.clock));
    let life = Tunables::default().commit_interval / 2;
    for nth in 0..3 {
        rig.create(&format!("{nth}")).write_at(0, &[nth; 10_000]).unwrap();
    }
    rig.advance(Tunables::default().dirty_expire);
    let mut left = die(rig);
    for _ in 0..3 {
        let rig = Rig::after(left, &clock, &mem);
        rig.advance(life);
        left = die(rig);
    }
    for nth in 0..3 {
        assert_same(&mem.durable_file(format!("{nth}").as_str()).unwrap(), &[nth; 10_000], "durable");
    }
}

/// A page from a mapping that finds no frame is refused once a backend has been full for a second. That second began anew with
/// each process, so programs waited as long as processes died more often.
#[test]
fn p02_a_backend_that_is_full_is_known_to_the_next_process() {
    let mut rig = Rig::by_hand();
    let (mem, clock) = (rig.disk.mem.clone(), Arc::clone(&rig.clock));
    rig.create("a").write_at(0, &[1; 10_000]).unwrap();
    let (life, mut lives) = (600 * MS, 0);
    let is_refused = |rig: &Rig| rig.volume.refusal(&rig.volume.root().unwrap()) == Some(ErrorKind::NoSpace);
    let full = || Rule::fail(ErrorKind::NoSpace).on("write");
    let rule = rig.disk.faults.add(full());
    rig.advance(Tunables::default().dirty_expire);
    rig.disk.faults.remove(rule);
    loop {
        rig = Rig::after(die(rig), &clock, &mem);
        lives += 1;
        assert!(!is_refused(&rig), "before its own attempt failed");
        if lives == 10 {
            break;
        }
        rig.disk.faults.add(full());
        rig.advance(life);
        assert_eq!(is_refused(&rig), lives > 1, "process {lives}");
    }
    // The first success ends it, for the next process too.
    rig.advance(life);
    assert_same(&mem.volatile_file("a").unwrap(), &[1; 10_000], "written");
    rig.create("b").write_at(0, &[2; 10_000]).unwrap();
    rig = Rig::after(die(rig), &clock, &mem);
    rig.disk.faults.add(full());
    rig.advance(Tunables::default().dirty_expire + 500 * MS);
    assert!(!is_refused(&rig), "from the beginning");
}

/// Kills the process. Returns its arena.
fn die(rig: Rig) -> OwnedFd {
    let left = snapshot(&rig.engine);
    // From now on the dead process does nothing to the backend.
    rig.disk.faults.clear();
    rig.disk.faults.add(Rule::fail(ErrorKind::Abandoned));
    left
}

#[test]
fn p05_written_data_becomes_durable_after_the_commit_interval() {
    let rig = Rig::by_hand();
    rig.create("a").write_at(0, &[1; 10_000]).unwrap();
    rig.advance(age_limit() + Tunables::default().commit_interval);
    assert_same(&rig.durable("a").unwrap(), &[1; 10_000], "a");
    assert_eq!(rig.volume.status().bytes_left(), 0);
    assert_eq!(rig.engine.step(), None, "a clean engine has no timer");
    rig.unmount_and_find_nothing_left();
}

/// Dirties this many files one after the other, and returns the order in which they were dirtied and written.
fn orders(files: u64) -> (Vec<u64>, Vec<u64>) {
    let rig = Rig::by_hand();
    let mut ids = Vec::new();
    for nth in 0..files {
        // Created in another order than written.
        drop(rig.create(&format!("f{}", (nth * 7) % files)));
    }
    for nth in 0..files {
        let file = rig.open(&format!("f{nth}"));
        file.write_at(0, &[1; 100]).unwrap();
        ids.push(file.inode().id().ino);
        rig.clock.advance(10 * MS);
    }
    // The first becomes dirty again and keeps its position.
    rig.open("f0").write_at(0, &[2; 100]).unwrap();
    rig.disk.faults.add(Rule::hold().on("write"));
    let (mut order, mut age) = (Vec::new(), Duration::ZERO);
    while order.len() < ids.len() {
        rig.advance(100 * MS);
        age += 100 * MS;
        assert!(age <= age_limit(), "{} written", order.len());
        let held = rig.disk.faults.held();
        order.extend(held.iter().filter_map(|held| Some(held.node?.ino)));
        held.iter().for_each(|held| assert!(rig.disk.faults.release(held.ticket)));
    }
    (ids, order)
}

#[test]
fn p05_the_oldest_is_written_first() {
    let (dirtied, written) = orders(6);
    assert_eq!(dirtied, written);
}

/// More files than the backend takes at once: a file that finds no slot is next, and does not go behind all the others.
#[test]
fn p05_an_inode_that_found_no_slot_keeps_its_place() {
    let (dirtied, written) = orders(20);
    assert_eq!(dirtied, written);
}

/// Checks that all other files make progress while one file does not.
#[track_caller]
fn others_arrive(rig: &Rig, what: &str) {
    let mut others: Vec<(String, File)> = Vec::new();
    for round in 0..3_u64 {
        for nth in 0..10 {
            let name = format!("{what}{round}.{nth}");
            let file = rig.create(&name);
            file.write_at(0, &pattern(nth, 20_000)).unwrap();
            others.push((name, file));
            rig.advance(100 * MS);
        }
        rig.advance(age_limit());
        for (nth, (name, _)) in others.iter().enumerate() {
            assert_same(&rig.stored(name).unwrap(), &pattern(nth as u64 % 10, 20_000), name);
        }
    }
}

#[test]
fn p05_a_failing_inode_delays_no_other() {
    let rig = Rig::by_hand();
    let bad = rig.create("bad");
    bad.write_at(0, &pattern(1, 300_000)).unwrap();
    let rule = rig.disk.faults.add(Rule::fail(ErrorKind::Io).on("write").of(bad.inode().id()));
    others_arrive(&rig, "other");
    assert!(rig.disk.faults.strikes(rule) > 1);
    rig.disk.faults.remove(rule);
    bad.fsync().unwrap_err();
    bad.fsync().unwrap();
    assert_same(&rig.durable("bad").unwrap(), &pattern(1, 300_000), "bad");
}

#[test]
fn p05_a_hanging_inode_delays_no_other() {
    for kind in ["write", "setattr"] {
        let rig = Rig::by_hand();
        let bad = rig.create("bad");
        bad.write_at(0, &pattern(1, 300_000)).unwrap();
        let rule = rig.disk.faults.add(Rule::hold().on(kind).of(bad.inode().id()));
        others_arrive(&rig, kind);
        assert!(rig.disk.faults.strikes(rule) > 0);
        rig.disk.faults.remove(rule);
        rig.disk.faults.release_all();
        rig.advance(age_limit());
        assert_same(&rig.stored("bad").unwrap(), &pattern(1, 300_000), "bad");
        drop(bad);
        rig.unmount_and_find_nothing_left();
    }
}

/// The file has more units than the backend takes at once, so it must not get all of the slots.
#[test]
fn p05_a_large_hanging_file_leaves_slots_for_others() {
    let small = Limits { unit_bytes: 64 << 10, ..limits() };
    let rig = Rig::with(Disk::with_limits(small), by_hand());
    let bad = rig.create("bad");
    bad.write_at(0, &pattern(1, 1 << 20)).unwrap();
    rig.disk.faults.add(Rule::hold().on("write").of(bad.inode().id()));
    rig.advance(age_limit());
    assert!(rig.disk.faults.held().len() > 1);
    others_arrive(&rig, "other");
}

#[test]
fn p05_one_stuck_commit_of_a_file_delays_no_other() {
    let rig = Rig::by_hand();
    let bad = std::sync::Arc::new(rig.create("bad"));
    bad.write_at(0, &[1; 100]).unwrap();
    rig.disk.faults.add(Rule::hold().matching(|call| matches!(call, Call::Sync { .. })));
    let own = bad.clone();
    let fsync = crate::rig::spawn("fsync", move || own.fsync());
    rig.disk.faults.wait_held(1, crate::rig::PATIENCE);
    others_arrive(&rig, "other");
    let other = rig.create("one more");
    other.write_at(0, &[1; PAGE]).unwrap();
    rig.volume.status();
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    fsync.wait().unwrap();
}

//! P1 and P2 where several syncs of one file overlap: each returns the truth about the data it covers.

use std::sync::Arc;
use std::time::Duration;

use slackwater::ErrorKind;
use slackwater_testkit::{Rule, pattern};

use crate::rig::{Disk, PAGE, PATIENCE, Rig, assert_same, busy, by_hand, eventually, limits, spawn};

/// The time for a state that cannot be seen from outside: a sync that has begun to wait. If it is too short, the test
/// proves less but does not fail.
const A_WHILE: Duration = Duration::from_millis(50);

/// Two programs share one description. The error of a commit that both waited for goes to one of them. The other must
/// not be assured that its data is durable.
#[test]
fn p02_fsync_does_not_succeed_because_another_call_reported_the_lost_commit() {
    let rig = Rig::with(Disk::new(), by_hand());
    let file = Arc::new(rig.create("a"));
    file.fsync().unwrap();
    let wanted = pattern(2, 50_000);
    file.write_at(0, &wanted).unwrap();
    rig.disk.faults.add(Rule::hold().on("sync_volume"));
    rig.flush_without_waiting();
    assert_eq!(rig.disk.faults.held().len(), 1, "the commit");
    let fsyncs: Vec<_> = (0..3)
        .map(|_| {
            let file = file.clone();
            spawn("fsync", move || file.fsync())
        })
        .collect();
    std::thread::sleep(A_WHILE);
    rig.disk.faults.clear();
    rig.disk.mem.crash();
    rig.disk.faults.release_all();
    for fsync in fsyncs {
        if fsync.wait().is_ok() {
            assert_same(&rig.durable("a").unwrap(), &wanted, "fsync said so");
        }
    }
    while file.fsync().is_err() {}
    assert_same(&rig.durable("a").unwrap(), &wanted, "in the end");
}

/// The first fsync gives up because a unit of its own failed. The second one, begun after that failure, still has a
/// page to write that was under write-back with older bytes.
#[test]
fn p02_a_failing_fsync_does_not_end_another() {
    const FAR: u64 = 64 * PAGE as u64; // in another leaf of the page tree
    let rig = Rig::by_hand();
    let file = Arc::new(rig.create("a"));
    let hold = rig.disk.faults.add(Rule::hold().on("write"));
    let write = |at: u64, byte: u8| file.write_at(at, &[byte; PAGE]).unwrap();
    write(0, 1);
    write(FAR, 1);
    rig.flush_without_waiting();
    let [near, far] = rig.disk.faults.held()[..] else { panic!("two units") };
    write(FAR, 2);
    write(2 * PAGE as u64, 2);
    let own = file.clone();
    let first = spawn("the first fsync", move || own.fsync());
    let middle = rig.disk.faults.wait_held(3, PATIENCE)[2];
    rig.disk.faults.release(middle.ticket);
    rig.disk.faults.fail(near.ticket, ErrorKind::Io);
    std::thread::sleep(A_WHILE); // it waits for the far unit

    let own = file.clone();
    let second = spawn("the second fsync", move || own.fsync());
    let again = rig.disk.faults.wait_held(2, PATIENCE)[1];
    assert_eq!(again.range_bytes.unwrap().0, 0, "the near page again");
    std::thread::sleep(A_WHILE); // it waits for that
    rig.disk.faults.remove(hold);
    rig.disk.faults.release(far.ticket);
    std::thread::sleep(A_WHILE); // the first gives up
    rig.disk.faults.release(again.ticket);
    first.wait().unwrap_err();
    // One description: the second call either returns the error or has nothing left to report.
    if second.wait().is_ok() {
        assert_same(&rig.durable("a").unwrap()[FAR as usize..], &[2; PAGE], "the second fsync said so");
    }
    file.fsync().unwrap();
    assert_same(&rig.durable("a").unwrap()[FAR as usize..], &[2; PAGE], "in the end");
}

#[test]
fn p01_sync_during_an_fsync_of_one_file_covers_that_file() {
    let rig = Rig::by_hand();
    let file = Arc::new(rig.create("a"));
    rig.volume.sync().unwrap();
    let wanted = pattern(2, 50_000);
    file.write_at(0, &wanted).unwrap();
    rig.disk.faults.add(Rule::hold().on("sync"));
    let own = file.clone();
    let fsync = spawn("fsync", move || own.fsync());
    let held = rig.disk.faults.wait_held(1, PATIENCE);
    let volume = rig.volume.clone();
    let sync = spawn("sync", move || volume.sync());
    std::thread::sleep(A_WHILE);
    rig.disk.faults.clear();
    rig.disk.faults.release(held[0].ticket);
    sync.wait().unwrap();
    assert_same(&rig.durable("a").unwrap(), &wanted, "sync said so");
    fsync.wait().unwrap();
}

/// A caller whose fsync returns 0, on any description, finds its bytes durable at that moment.
#[test]
fn p02_many_syncs_over_a_flaky_backend_never_lie() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 60;
    let seed = 77;
    println!("seed {seed}");
    let small = slackwater::backend::Limits { unit_bytes: 2 * PAGE as u32, ..limits() };
    let rig = Rig::live(Disk::with_limits(small), busy());
    let faults = &rig.disk.faults;
    faults.add(Rule::fail(ErrorKind::Io).on("write").chance(0.1, seed));
    faults.add(Rule::short_write(PAGE).chance(0.2, seed + 1));
    faults.add(Rule::fail(ErrorKind::Lost).on("sync").chance(0.2, seed + 2));
    faults.add(Rule::fail(ErrorKind::Lost).on("sync_volume").chance(0.2, seed + 3));
    let shared = Arc::new(rig.create("a"));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (shared, own, mem, volume) = (shared.clone(), rig.open("a"), rig.disk.mem.clone(), rig.volume.clone());
            spawn("a thread of syncs", move || {
                let mut successes = 0;
                for round in 1..=ROUNDS {
                    // A page of its own next to those of the others, one of sixteen in turn.
                    let at = (round % 16 * THREADS + thread) * PAGE as u64;
                    let bytes = pattern(thread << 32 | round, PAGE);
                    own.write_at(at, &bytes).unwrap();
                    let outcome = match round % 4 {
                        0 => volume.sync(),
                        1 => shared.fsync(),
                        2 => shared.fdatasync(),
                        _ => own.fsync(),
                    };
                    if outcome.is_ok() {
                        successes += 1;
                        let durable = mem.durable_file("a").unwrap();
                        assert_same(&durable[at as usize..at as usize + PAGE], &bytes, "it said 0");
                    }
                }
                successes
            })
        })
        .collect();
    let successes: u64 = threads.into_iter().map(|thread| thread.wait()).sum();
    assert!(successes > 0, "some succeed");
    faults.clear();
    drop(shared);
    eventually("it comes to rest", || rig.volume.status().bytes_left() == 0);
    rig.unmount_and_find_nothing_left();
}

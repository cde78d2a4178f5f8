//! The requests that operations cost. These are the figures of `docs/OBJECT.md`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use slackwater::backend::{Removal, RenameMode};
use slackwater_object::layers::Operation;
use slackwater_testkit::pattern;

use crate::rig::{assert_same, eventually, spawn};
use crate::volume::{Volume, slow};

/// PUTs of the background that may come between two counts.
const BACKGROUND: u64 = 3;
/// The looks at the store with which SlateDB's tasks begin are over once no request has come for this long.
const QUIET: Duration = Duration::from_secs(1);
const QUIET_WITHIN: Duration = Duration::from_secs(60);

/// A new volume whose background has begun: on a loaded machine its first requests come long after the mount.
fn settled() -> Volume {
    let volume = Volume::patient(slow());
    volume.volume.sync().unwrap();
    let deadline = Instant::now() + QUIET_WITHIN;
    loop {
        let before = volume.fault.requests();
        std::thread::sleep(QUIET);
        if volume.fault.requests() == before {
            return volume;
        }
        assert!(Instant::now() < deadline, "requests still come {QUIET_WITHIN:?} after the mount");
    }
}

#[test]
fn names_and_writes_cost_no_request() {
    let volume = settled();
    let before = volume.fault.requests();
    let root = volume.volume.root().unwrap();
    for nth in 0..200 {
        volume.create(&format!("f{nth}")).write_at(0, &pattern(nth, 4096)).unwrap();
        volume.volume.rename(&root, format!("f{nth}"), &root, format!("g{nth}"), RenameMode::NoReplace).unwrap();
        if nth % 2 == 0 {
            volume.volume.remove(&root, format!("g{nth}"), Removal::File).unwrap();
        }
    }
    let requests = volume.fault.requests() - before;
    // On a slow machine the commit of the age limit comes between: a few requests, whatever the number of calls.
    assert!(requests <= 10 * BACKGROUND, "{requests} requests for 500 calls");
}

#[test]
fn an_fsync_of_a_small_file_is_one_put() {
    let volume = settled();
    let counts = || volume.backend.status().requests;
    let before = counts();
    const FILES: u64 = 20;
    for nth in 0..FILES {
        let file = volume.create(&format!("f{nth}"));
        file.write_at(0, &pattern(nth, 4096)).unwrap();
        file.fsync().unwrap();
    }
    let puts = counts().puts - before.puts;
    assert!((FILES..=FILES + BACKGROUND).contains(&puts), "{puts} PUTs for {FILES} files");
}

/// While one commit is on its way, all that come wait for the next: two commits for any number of files.
#[test]
fn fsyncs_at_the_same_time_share_a_commit() {
    const THREADS: u64 = 64;
    let volume = settled();
    let files: Vec<_> = (0..=THREADS).map(|nth| Arc::new(volume.create(&format!("f{nth}")))).collect();
    volume.volume.sync().unwrap();
    volume.fault.add(slackwater_object::layers::Rule::hang().on(Operation::Create).next(1));
    volume.fault.add(slackwater_object::layers::Rule::hang().on(Operation::Put).next(1));
    let before = volume.backend.status().requests.puts;
    let sync = |nth: u64| {
        let file = files[nth as usize].clone();
        spawn("an fsync", move || file.write_at(0, &pattern(nth, 4096)).and_then(|_| file.fsync()))
    };
    let first = sync(THREADS);
    eventually("the first commit is on its way", || volume.backend.status().requests.puts > before);
    let others: Vec<_> = (0..THREADS).map(sync).collect();
    // All have written: what is left is their commit.
    eventually("all have written", || {
        let status = volume.volume.status();
        status.dirty_bytes == 0 && status.unstable_bytes >= THREADS * 4096
    });
    std::thread::yield_now();
    volume.fault.clear();
    volume.fault.release();
    first.wait().unwrap();
    others.into_iter().for_each(|other| other.wait().unwrap());
    let puts = volume.backend.status().requests.puts - before;
    assert!(puts <= 4 + BACKGROUND, "{puts} PUTs for {THREADS} fsyncs at once");
    drop(files);
    let volume = volume.crash();
    for nth in 0..=THREADS {
        assert_same(&volume.content(&format!("f{nth}")).unwrap(), &pattern(nth, 4096), "synced");
    }
}

#[test]
fn an_idle_volume_makes_few_requests() {
    /// Longer than the pause between two polls.
    const SECONDS: u64 = 16;
    /// Requests of a poll, at most.
    const POLL: u64 = 10;
    let volume = settled();
    volume.create("a").write_at(0, b"idle").unwrap();
    volume.volume.sync().unwrap();
    let (before, begun) = (volume.fault.requests(), Instant::now());
    std::thread::sleep(Duration::from_secs(SECONDS));
    let (requests, seconds) = (volume.fault.requests() - before, begun.elapsed().as_secs());
    // Less than one per second, and one poll that was late.
    assert!(requests < seconds + POLL, "{requests} requests in {seconds} s");
}

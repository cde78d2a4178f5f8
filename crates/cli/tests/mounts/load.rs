//! Unmounts and neighbours under load, and a source without space.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::rig::{Scratch, need_fuse, run, wait_until};
use crate::sys::Mapped;
use crate::{bytes, runs};

/// Number of unmounts under load.
const RUNS_VARIABLE: &str = "SLACKWATER_MOUNT_RUNS";
const WRITERS: u64 = 4;
/// Number of attempts of each operation beside an appender.
const ATTEMPTS: u64 = 25;
/// The most sets of such attempts.
const SETS: u64 = 3;

/// Writes until an operation fails. Returns how much was acknowledged.
fn write_until_it_fails(path: &Path, seed: u64) -> usize {
    let content = bytes(seed, 1 << 20);
    let mut file = File::create(path).unwrap();
    let mut written = 0;
    loop {
        let at = written % content.len();
        match file.write(&content[at..content.len().min(at + (64 << 10))]) {
            Ok(count) => written += count,
            Err(_) => return written,
        }
    }
}

/// Starts writers that fill files until they fail, and waits until all have begun. Each returns how much was
/// acknowledged.
fn start_writers(source: &Path, mountpoint: &Path) -> Vec<JoinHandle<usize>> {
    let writers = (0..WRITERS).map(|writer| {
        let path = mountpoint.join(written(writer));
        thread::spawn(move || write_until_it_fails(&path, writer))
    });
    let writers = writers.collect();
    let has_begun = |writer| fs::metadata(source.join(written(writer))).is_ok_and(|file| file.len() > 0);
    wait_until("every writer has begun", || (0..WRITERS).all(has_begun));
    writers
}

fn written(writer: u64) -> String {
    format!("file-{writer}")
}

/// Waits for the writers and asserts that the source has what was acknowledged. Returns the number of bytes.
fn assert_arrived(source: &Path, writers: Vec<JoinHandle<usize>>) -> usize {
    let acknowledged: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    for (writer, acknowledged) in (0..).zip(&acknowledged) {
        let path = source.join(written(writer));
        assert_has(&path, writer, *acknowledged);
        fs::remove_file(path).unwrap();
    }
    acknowledged.iter().sum()
}

/// Asserts that the file begins with what was acknowledged.
fn assert_has(path: &Path, seed: u64, acknowledged: usize) {
    let (found, content) = (fs::read(path).unwrap(), bytes(seed, 1 << 20));
    assert!(found.len() >= acknowledged, "{}: {} of {acknowledged} bytes", path.display(), found.len());
    let torn = found.chunks(content.len()).position(|part| part != &content[..part.len()]);
    assert_eq!(torn, None, "{}: this MiB differs", path.display());
}

#[test]
fn force_under_four_writers_ends_in_time_with_every_acknowledged_byte() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    for round in 0..runs(RUNS_VARIABLE, 3) {
        let mount = scratch.mount(&source, &mountpoint, &[]);
        let writers = start_writers(&source, &mountpoint);
        let start = Instant::now();
        let output = scratch.run(["umount", "--force", "--deadline", "60s", mountpoint.to_str().unwrap()]);
        output.expect(0, &[]);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(65), "it took {took:?}");
        println!("round {round}: {took:?}, {} MiB acknowledged", assert_arrived(&source, writers) >> 20);
        drop(mount);
    }
}

#[test]
fn a_shared_mapping_arrives_with_force_while_it_lives_and_without_once_it_is_closed() {
    need_fuse();
    for force in [true, false] {
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("a");
        let _mount = scratch.mount(&source, &mountpoint, &[]);
        let path = mountpoint.join("mapped");
        fs::write(&path, vec![0; 300_000]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut mapped = Mapped::new(&file);
        mapped.store(&bytes(1, 300_000));
        drop(file);
        let path = mountpoint.to_str().unwrap();
        if force {
            scratch.run(["umount", "--force", path]).expect(0, &[]);
        } else {
            scratch.run(["umount", path]).expect(3, &[&format!("pid {}", std::process::id())]);
            mapped.store(&bytes(1, 300_000));
            drop(mapped);
            scratch.umount(&mountpoint);
        }
        assert!(fs::read(source.join("mapped")).unwrap() == bytes(1, 300_000), "force: {force}");
    }
}

#[test]
fn a_shared_mapping_arrives_with_force_beside_four_writers() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount = scratch.mount(&source, &mountpoint, &[]);
    let path = mountpoint.join("mapped");
    fs::write(&path, vec![0; 3 << 20]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut mapped = Mapped::new(&file);
    drop(file);
    let writers = start_writers(&source, &mountpoint);
    mapped.store(&bytes(9, 3 << 20));
    scratch.run(["umount", "--force", "--deadline", "60s", mountpoint.to_str().unwrap()]).expect(0, &[]);
    assert_arrived(&source, writers);
    assert!(fs::read(source.join("mapped")).unwrap() == bytes(9, 3 << 20), "what was stored before the unmount");
    drop((mapped, mount));
}

#[test]
fn a_full_source_is_reported_to_the_writer() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mut small = Command::new("mount");
    small.args(["-t", "tmpfs", "-o", "size=64m", "none"]).arg(&source);
    run(small).expect(0, &[]);
    // The cache has space for all of it; only the source does not.
    let mount =
        scratch.mount(&source, &mountpoint, &["--cache", "256MiB", "--dirty-ratio", "50", "--dirty-expire", "1h"]);
    let path = mountpoint.join("file");
    let mut file = File::create(&path).unwrap();
    let content = bytes(1, 1 << 20);
    let mut written = 0_usize;
    let error = loop {
        match file.write(&content) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
        assert!(written <= 64 << 20, "{written} bytes were accepted for a source of 64 MiB");
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull, "after {written} bytes: {error}");
    assert!(written > 48 << 20, "only {written} bytes were accepted");
    let space = rustix::fs::statvfs(&mountpoint).unwrap();
    assert!(space.f_bavail * space.f_frsize < 2 << 20, "statfs says {} blocks are free", space.f_bavail);
    // Space can be freed, and is available again.
    file.set_len(1 << 20).unwrap();
    drop(file);
    fs::write(mountpoint.join("other"), bytes(2, 20 << 20)).unwrap();
    fs::remove_file(mountpoint.join("other")).unwrap();
    scratch.umount(&mountpoint);
    drop(mount);
    assert!(fs::read(source.join("file")).unwrap() == content);
    rustix::mount::unmount(&source, rustix::mount::UnmountFlags::DETACH).unwrap();
}

/// How long it takes to open, sync, create and remove files beside a throttled appender, in ascending order.
fn times_beside_an_appender(mountpoint: &Path) -> [Vec<Duration>; 4] {
    let stop = Arc::new(AtomicBool::new(false));
    let path = mountpoint.join("appended");
    let appender = thread::spawn({
        let (path, stop) = (path.clone(), Arc::clone(&stop));
        move || {
            let part = bytes(1, 256 << 10);
            let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
            let mut written = 0;
            while !stop.load(Ordering::Relaxed) && written < 1 << 30 {
                written += file.write(&part).unwrap();
            }
            written
        }
    });
    wait_until("it is throttled", || fs::metadata(&path).is_ok_and(|file| file.len() > 16 << 20));
    let mut times = [const { Vec::new() }; 4];
    for round in 0..ATTEMPTS {
        let mut timed = |which: usize, work: &dyn Fn()| {
            let start = Instant::now();
            work();
            times[which].push(start.elapsed());
        };
        let file = File::open(&path).unwrap();
        let other = mountpoint.join(format!("other-{round}"));
        timed(0, &|| drop(File::open(&path).unwrap()));
        timed(1, &|| file.sync_all().unwrap());
        timed(2, &|| fs::write(&other, "x").unwrap());
        timed(3, &|| fs::remove_file(&other).unwrap());
    }
    stop.store(true, Ordering::Relaxed);
    let start = Instant::now();
    fs::remove_file(&path).unwrap();
    times[3].push(start.elapsed());
    println!("{} MiB appended", appender.join().unwrap() >> 20);
    times.iter_mut().for_each(|times| times.sort());
    times
}

#[test]
fn a_throttled_appender_does_not_delay_other_programs() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount = scratch.mount(&source, &mountpoint, &["--cache", "16MiB", "--dirty-ratio", "10"]);
    let are_short = |times: &[Duration]| {
        // The longest time is not checked: on a loaded machine the disk itself may take longer once.
        times[times.len() / 2] < Duration::from_millis(250) && times[times.len() - 2] < Duration::from_secs(2)
    };
    // The disk may be slow for a while. An appender that delays others does so in every set.
    for set in 1..=SETS {
        let all = times_beside_an_appender(&mountpoint);
        for (what, times) in ["open", "fsync", "create", "rm"].into_iter().zip(&all) {
            let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
            println!("beside an appender: {what} took {median:?} in the median, {longest:?} at most");
            assert!(are_short(times) || set < SETS, "{what}: {times:?}");
        }
        if all.iter().all(|times| are_short(times)) {
            break;
        }
    }
    scratch.umount(&mountpoint);
    drop(mount);
}

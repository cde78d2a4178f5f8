//! Processes killed at any moment: the mount process, and programs that use it.
//!
//! A program saves a file again and again by writing a new file and renaming it over the old one. Whenever one of the
//! processes dies, the file is one that was saved completely: the last one whose rename returned, or the next one.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::rig::{Process, Scratch, is_enough, need_fuse};
use crate::{bytes, runs};

/// Number of kills per test.
const RUNS_VARIABLE: &str = "SLACKWATER_MOUNT_KILLS";
const RUNS: u64 = 5;
/// The longest time that they work.
const LIFE_US: u64 = 300_000;
const SAVERS: u64 = 3;

/// The content of the file in its `nth` version.
fn version(saver: u64, nth: u64) -> Vec<u8> {
    let seed = saver << 32 | nth;
    bytes(seed, 1 + (seed.wrapping_mul(0x9e37_79b9) % 300_000) as usize)
}

fn name(saver: u64) -> String {
    format!("saved-{saver}")
}

/// Saves versions, beginning with `from`, until an operation fails. Calls `saved` with each version whose rename has
/// returned.
fn save(dir: &Path, saver: u64, from: u64, mut saved: impl FnMut(u64)) {
    let (temporary, target) = (dir.join(format!("{}.new", name(saver))), dir.join(name(saver)));
    for nth in from.. {
        let outcome = (|| {
            let mut file = File::create(&temporary)?;
            // In parts, which are copied, or at once, which lands directly in cache frames.
            let part_bytes = if saver.is_multiple_of(2) { 50_000 } else { 1 << 20 };
            version(saver, nth).chunks(part_bytes).try_for_each(|part| file.write_all(part))?;
            if nth % 4 == 0 {
                file.sync_all()?;
            }
            drop(file);
            fs::rename(&temporary, &target)
        })();
        match outcome {
            Ok(()) => saved(nth),
            Err(_) => return,
        }
    }
}

/// The version of the file: `last` or the next one.
#[track_caller]
fn found_version(dir: &Path, saver: u64, last: u64) -> u64 {
    let found = match fs::read(dir.join(name(saver))) {
        Ok(found) => found,
        Err(error) if last == 0 => panic!("version 0 was there: {error}"),
        Err(error) => panic!("version {last} was saved: {error}"),
    };
    let is = |nth| found == version(saver, nth);
    match () {
        () if is(last) => last,
        () if is(last + 1) => last + 1,
        () => panic!(
            "{} bytes are neither version {last} ({}) nor the one after ({}); empty: {}",
            found.len(),
            version(saver, last).len(),
            version(saver, last + 1).len(),
            found.iter().all(|byte| *byte == 0)
        ),
    }
}

fn lifetime(run: u64) -> Duration {
    let seed = bytes(run ^ u64::from(std::process::id()) << 20, 8);
    Duration::from_micros(u64::from_le_bytes(seed.try_into().unwrap()) % LIFE_US)
}

#[test]
fn a_killed_mount_process_loses_nothing_that_was_acknowledged() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mut last = [0; SAVERS as usize];
    for saver in 0..SAVERS {
        fs::write(source.join(name(saver)), version(saver, 0)).unwrap();
    }
    let mut log = Vec::new();
    fs::write(source.join("log"), "").unwrap();
    for run in 0.. {
        let is_idle = last.iter().sum::<u64>() == 0 || log.is_empty();
        if is_enough(run, RUNS_VARIABLE, RUNS, is_idle) {
            break;
        }
        // Old data is written back all the time, so that the kill hits every step.
        let mut mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "100ms", "--cache", "32MiB"]);
        let savers: Vec<_> = (0..SAVERS)
            .map(|saver| {
                let (dir, mut last) = (mountpoint.clone(), last[saver as usize]);
                thread::spawn(move || {
                    save(&dir, saver, last + 1, |nth| last = nth);
                    last
                })
            })
            .collect();
        let logger = thread::spawn({
            let (path, start) = (mountpoint.join("log"), log.len() as u64);
            move || append(&path, start)
        });
        thread::sleep(lifetime(run));
        mount.kill();
        for (last, saver) in last.iter_mut().zip(savers) {
            *last = saver.join().unwrap();
        }
        let acknowledged = logger.join().unwrap();
        drop(mount);

        // The next mount removes what the crash left at the mount point.
        let again = scratch.mount(&source, &mountpoint, &["--cache", "32MiB"]);
        for (saver, last) in last.iter_mut().enumerate() {
            *last = found_version(&mountpoint, saver as u64, *last);
        }
        log = fs::read(mountpoint.join("log")).unwrap();
        assert!(log.len() as u64 >= acknowledged, "run {run}: {} of {acknowledged} bytes are left", log.len());
        assert!(log == bytes(1, log.len()), "run {run}: the log is torn");
        scratch.umount(&mountpoint);
        drop(again);
        for (saver, last) in last.iter().enumerate() {
            assert_eq!(found_version(&source, saver as u64, *last), *last, "run {run}: in the source");
        }
        assert!(fs::read(source.join("log")).unwrap() == log, "run {run}: the log in the source");
    }
    println!("versions saved: {last:?}; log: {} bytes", log.len());
    assert!(last.iter().sum::<u64>() > 0 && !log.is_empty(), "no operation completed");
}

/// Appends until an operation fails. Returns the size up to which the appends were acknowledged.
fn append(path: &Path, start: u64) -> u64 {
    let mut written = start;
    let Ok(mut file) = OpenOptions::new().append(true).open(path) else { return written };
    let all = bytes(1, start as usize + (2 << 20));
    for part in all[start as usize..].chunks(777) {
        match file.write(part) {
            Ok(count) => written += count as u64,
            Err(_) => return written,
        }
    }
    written
}

#[test]
fn a_killed_program_leaves_files_old_or_new() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "100ms"]);
    fs::write(mountpoint.join(name(0)), version(0, 0)).unwrap();
    let mut last = 0;
    for run in 0..runs(RUNS_VARIABLE, RUNS) {
        let mut program = Process::spawn(
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "kills::program", "--nocapture"])
                .env(PROGRAM_VARIABLE, format!("{}:{last}", mountpoint.display()))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped()),
        );
        thread::sleep(lifetime(run));
        program.0.kill().unwrap();
        program.wait();
        // One byte per saved version.
        let mut reports = Vec::new();
        program.0.stderr.take().unwrap().read_to_end(&mut reports).unwrap();
        assert!(reports.iter().all(|byte| *byte == b'.'), "{}", String::from_utf8_lossy(&reports));
        last = found_version(&mountpoint, 0, last + reports.len() as u64);
    }
    println!("versions saved: {last}");
    scratch.umount(&mountpoint);
    drop(mount);
    assert_eq!(found_version(&source, 0, last), last);
}

/// Directory and last version, separated by a colon.
const PROGRAM_VARIABLE: &str = "SLACKWATER_SAVING_PROGRAM";

/// The program that is killed, not a test.
#[test]
fn program() {
    if let Ok(place) = std::env::var(PROGRAM_VARIABLE) {
        let (dir, last) = place.rsplit_once(':').unwrap();
        let last: u64 = last.parse().unwrap();
        save(Path::new(dir), 0, last + 1, |_| std::io::stderr().write_all(b".").unwrap());
    }
}

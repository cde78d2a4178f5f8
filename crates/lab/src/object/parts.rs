//! The parts of the experiment: a large file, small writes, fsync, trees of files, and a volume at rest.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use slackwater_testkit::Random;

use super::store::{Delay, Requests, Subject};
use super::{Cell, Testbed};
use crate::files::{BLOCK_BYTES, make_tree, read_blocks, writable, write_file};
use crate::fuse::OURS;
use crate::harness::threads::{at_once, wait_until};
use crate::harness::{amounts, mb_per_s, median, ms};
use crate::scratch::Scratch;
use crate::{interrupt, proc, programs};

amounts! {
    /// How much of everything.
    pub(super) struct Amounts {
        rounds: u32 = 20, 10;
        /// Rounds of parts that mount again or take long.
        long_rounds: u32 = 6, 3;
        /// The large file.
        bytes: u64 = 1 << 30, 64 << 20;
        /// Small writes of a turn.
        writes: usize = 10_000, 2000;
        /// Files that a turn creates.
        files: usize = 10_000, 1000;
        /// Files that a thread syncs in a turn.
        syncs: usize = 20, 10;
        /// How long volumes at rest are watched.
        idle: Duration = Duration::from_secs(60), Duration::from_secs(20);
        /// Files that are created while memory is watched.
        counts: [usize; 2] = [100_000, 1_000_000], [10_000, 100_000];
    }
}

/// The rows, each of which also names the delay.
pub(super) const WRITE: &str = "write + fsync MB/s";
pub(super) const READ: &str = "cold read MB/s";
pub(super) const WRITES: &str = "4 KiB random writes per s";
pub(super) const CREATES: &str = "files of 4 KiB created per s";
pub(super) const REQUESTS: &str = "requests per 1,000 files";
pub(super) const SYNC: &str = "fsync of a 4 KiB file, ms";
pub(super) const PUTS: &str = "PUTs of one fsync";
pub(super) const PUTS_OF_ALL: &str = "PUTs of 64 threads in fsync";
pub(super) const TIME_OF_ALL: &str = "64 threads in fsync, ms";
pub(super) const LIST: &str = "cold ls -lR of 10,000 files, s";
pub(super) const LIST_REQUESTS: &str = "requests of a cold ls -lR";
pub(super) const MOUNT: &str = "mount, ms";
pub(super) const UNPACK: &str = "untar of a source tree, s";
pub(super) const STATUS: &str = "git status after a remount, s";
pub(super) const STATUS_REQUESTS: &str = "requests of that git status";

/// Files that others create in a turn: each costs them some requests, one after another.
pub(super) const FILES_OF_PEERS: usize = 50;

const PAGE: usize = 4096;
/// Pages of the file that is overwritten.
const PAGES: u64 = 8192;
/// Threads that sync at once.
const THREADS: usize = 64;
/// The tree that is listed.
const TREE: &str = "tree";
const FILES_OF_TREE: usize = 10_000;
const FILES_OF_DIRECTORY: usize = 1000;
/// A pause longer than the age at which changes are committed, and than the pauses of the compactor.
const SETTLING: Duration = Duration::from_secs(12);

/// Measures one large file: written and made durable, and read with empty caches.
pub(super) fn streams(testbed: &mut Testbed, amounts: Amounts) -> Result<()> {
    const FILE: &str = "large";
    let bytes = amounts.bytes;
    testbed.rounds(
        "streams",
        amounts.long_rounds,
        |bare, cell| {
            cell.s3.settle()?;
            cell.add(WRITE, mb_per_s(bytes, bare.put(bytes)?));
            cell.add(READ, mb_per_s(bytes, bare.get(bytes)?));
            Ok(())
        },
        |subject, cell| {
            let path = subject.path().join(FILE);
            cell.s3.settle()?;
            let start = Instant::now();
            write_file(&path, bytes)?.sync_all()?;
            if let Some(object) = subject.object_of(cell.s3, FILE) {
                // File systems of others may write when the file is closed, after its fsync.
                let is_whole = || Ok(fs::metadata(&object).is_ok_and(|object| object.len() == bytes));
                wait_until("the file does not reach the store", is_whole)?;
            }
            cell.add(WRITE, mb_per_s(bytes, start.elapsed()));
            subject.remount()?;
            let start = Instant::now();
            read_blocks(&File::open(&path)?, bytes / BLOCK_BYTES as u64)?;
            cell.add(READ, mb_per_s(bytes, start.elapsed()));
            fs::remove_file(&path)?;
            subject.settle()
        },
    )
}

/// Small writes that no one waits for: into a file at random, and as files of their own.
pub(super) fn small_writes(testbed: &mut Testbed, amounts: Amounts, seed: u64) -> Result<()> {
    const FILE: &str = "random";
    testbed.prepare("small writes", |subject, _| {
        write_file(&subject.path().join(FILE), PAGES * PAGE as u64)?.sync_all()?;
        subject.settle()
    })?;
    testbed.rounds(
        "small writes",
        amounts.rounds,
        |_, _| Ok(()),
        |subject, cell| {
            let file = writable(&subject.path().join(FILE))?;
            let mut random = Random::new(seed.wrapping_add(u64::from(cell.round)));
            let start = Instant::now();
            for _ in 0..amounts.writes {
                file.write_all_at(&[3; PAGE], random.below(PAGES) * PAGE as u64)?;
            }
            cell.add(WRITES, amounts.writes as f64 / start.elapsed().as_secs_f64());
            file.sync_all()?;
            drop(file);
            subject.settle()?;
            create(subject, cell, if subject.is_peer() { FILES_OF_PEERS } else { amounts.files })
        },
    )
}

fn create(subject: &Subject, cell: &mut Cell<'_>, files: usize) -> Result<()> {
    let name = format!("files-{}", cell.round);
    let directory = subject.path().join(&name);
    fs::create_dir(&directory)?;
    subject.settle()?;
    let before = cell.requests();
    let paths: Vec<_> = (0..files).map(|number| directory.join(format!("file-{number}"))).collect();
    let start = Instant::now();
    for path in &paths {
        File::create_new(path)?.write_all_at(&[7; PAGE], 0)?;
    }
    cell.add(CREATES, files as f64 / start.elapsed().as_secs_f64());
    subject.settle()?;
    if let Some(objects) = subject.object_of(cell.s3, &name) {
        let are_there = || Ok(fs::read_dir(&objects).map_or(0, Iterator::count) >= files);
        wait_until("the files do not reach the store", are_there)?;
    }
    if subject.delay().is_some() {
        cell.add(REQUESTS, (cell.requests() - before).all as f64 * 1e3 / files as f64);
    }
    Ok(())
}

/// fsync of a new small file by one thread and by 64, beside one request that stores as many bytes.
pub(super) fn syncs(testbed: &mut Testbed, amounts: Amounts) -> Result<()> {
    testbed.rounds(
        "fsync",
        amounts.rounds,
        |bare, cell| {
            let times = (0..amounts.syncs).map(|_| Ok(ms(bare.put_small(PAGE)?))).collect::<Result<Vec<_>>>()?;
            cell.add(SYNC, median(&times));
            Ok(())
        },
        |subject, cell| {
            let directory = subject.path().join(format!("synced-{}", cell.round));
            fs::create_dir(&directory)?;
            subject.settle()?;
            let written = |name: String| -> Result<File> {
                let file = File::create_new(directory.join(name))?;
                file.write_all_at(&[9; PAGE], 0)?;
                Ok(file)
            };
            let (mut times, mut puts) = (Vec::new(), Vec::new());
            for number in 0..amounts.syncs {
                let file = written(format!("one-{number}"))?;
                let (before, start) = (cell.requests(), Instant::now());
                file.sync_all()?;
                times.push(ms(start.elapsed()));
                puts.push((cell.requests() - before).puts as f64);
            }
            // An fsync that sends nothing to the store has made nothing durable.
            if subject.delay().is_none() || median(&puts) > 0.0 {
                cell.add(SYNC, median(&times));
            }
            if subject.delay().is_some() {
                cell.add(PUTS, median(&puts));
            }
            if subject.delay().is_some() && !subject.is_peer() {
                let files = (0..THREADS).map(|thread| written(format!("of-{thread}"))).collect::<Result<Vec<_>>>()?;
                let (before, start) = (cell.requests(), Instant::now());
                at_once(files, |_, file| file.sync_all()).into_iter().collect::<Result<(), _>>()?;
                cell.add(TIME_OF_ALL, ms(start.elapsed()));
                cell.add(PUTS_OF_ALL, (cell.requests() - before).puts as f64);
            }
            Ok(())
        },
    )
}

/// A tree of files, listed with empty caches.
pub(super) fn list(testbed: &mut Testbed, amounts: Amounts) -> Result<()> {
    testbed.prepare("cold tree", |subject, s3| {
        // Others keep each file as an object, and need long to make them one by one.
        let place = subject.object_of(s3, TREE).unwrap_or_else(|| subject.path().join(TREE));
        make_tree(&place, FILES_OF_TREE, FILES_OF_DIRECTORY, 100)?;
        subject.settle()
    })?;
    testbed.rounds(
        "cold tree",
        amounts.long_rounds,
        |_, _| Ok(()),
        |subject, cell| {
            if subject.is_peer() && cell.round > 0 {
                return Ok(()); // it takes up to minutes
            }
            cell.add(MOUNT, ms(subject.remount()?));
            let mut command = Command::new("ls");
            command.arg("-lR").arg(subject.path().join(TREE));
            let listed = time(&mut command, cell, LIST, LIST_REQUESTS)?;
            let names = listed.windows(6).filter(|window| *window == b" file-").count();
            ensure!(names == FILES_OF_TREE, "ls has listed {names} files");
            Ok(())
        },
    )
}

/// An archive with a git repository and its files: the one that this program runs in.
pub(super) fn archive(home: &Scratch) -> Result<PathBuf> {
    let (folder, archive) = (home.subdirectory("source")?, home.path().join("source.tar"));
    programs::run(Command::new("git").args(["clone", "--quiet", "--no-hardlinks", "."]).arg(folder.join("tree")))?;
    programs::run(Command::new("tar").arg("cf").arg(&archive).arg("-C").arg(&folder).arg("tree"))?;
    Ok(archive)
}

/// Unpacks `archive` and lets git look for changes.
pub(super) fn unpack(testbed: &mut Testbed, amounts: Amounts, archive: &Path) -> Result<()> {
    testbed.rounds(
        "source tree",
        amounts.long_rounds,
        |_, _| Ok(()),
        |subject, cell| {
            // Others need some requests for each file, one after another.
            if subject.is_peer() {
                return Ok(());
            }
            let folder = subject.path().join(format!("source-{}", cell.round));
            fs::create_dir(&folder)?;
            let start = Instant::now();
            programs::run(Command::new("tar").arg("xf").arg(archive).arg("-C").arg(&folder))?;
            cell.add(UNPACK, start.elapsed().as_secs_f64());
            subject.remount()?;
            let mut command = Command::new("git");
            command.arg("-C").arg(folder.join("tree")).args(["status", "--porcelain"]);
            let changes = time(&mut command, cell, STATUS, STATUS_REQUESTS)?;
            ensure!(changes.is_empty(), "git finds changes: {}", String::from_utf8_lossy(&changes));
            Ok(())
        },
    )
}

/// Runs a program, adds its seconds and its requests, and returns its output.
fn time(command: &mut Command, cell: &mut Cell<'_>, seconds: &str, requests: &str) -> Result<Vec<u8>> {
    let (before, start) = (cell.requests(), Instant::now());
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    cell.add(seconds, start.elapsed().as_secs_f64());
    let made: Requests = cell.requests() - before;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    if cell.has_store() {
        cell.add(requests, made.all as f64);
    }
    Ok(output.stdout)
}

/// Requests per second of the volume at each delay, while nothing uses it.
pub(super) fn idle(testbed: &Testbed, amounts: Amounts) -> Result<Vec<(Delay, f64)>> {
    let counts = || Delay::ALL.map(|delay| testbed.s3.requests(delay));
    interrupt::sleep(SETTLING)?;
    let before = counts();
    interrupt::sleep(amounts.idle)?;
    let per_s = |(now, before): (Requests, Requests)| (now - before).all as f64 / amounts.idle.as_secs_f64();
    Ok(Delay::ALL.into_iter().zip(counts().into_iter().zip(before).map(per_s)).collect())
}

/// Peaks of anonymous memory, in bytes: the arena is a shared mapping.
#[derive(Copy, Clone, Debug)]
pub(super) struct Peak {
    pub(super) files: usize,
    pub(super) object_volume: u64,
    pub(super) dir_volume: u64,
}

/// Creates files in fresh mounts, and returns the peaks at a few counts of files.
pub(super) fn memory(testbed: &mut Testbed, amounts: Amounts) -> Result<Vec<Peak>> {
    let chosen = |subject: &&mut Subject| !subject.is_peer() && subject.delay() != Some(Delay::Long);
    let (mut ours, mut dir) = (Vec::new(), Vec::new());
    for subject in testbed.subjects.iter_mut().filter(chosen) {
        subject.remount()?;
        let (peaks, pid) = (if subject.column() == OURS { &mut ours } else { &mut dir }, subject.pid()?);
        let mut made = 0;
        for count in amounts.counts {
            let folder = subject.path().join(format!("files-{count}"));
            let make = || {
                make_tree(&folder, count - made, FILES_OF_DIRECTORY, PAGE)?;
                subject.settle()
            };
            let peak = proc::most(|| proc::memory(pid, "RssAnon"), make);
            peaks.push(peak.with_context(|| format!("{count} files on {}", subject.column()))?.1);
            made = count;
        }
    }
    let peak = |(files, (object_volume, dir_volume))| Peak { files, object_volume, dir_volume };
    Ok(amounts.counts.into_iter().zip(ours.into_iter().zip(dir)).map(peak).collect())
}

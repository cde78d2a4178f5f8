//! Programs that work while their server dies again and again. None of them sees an error, and all of their work is in
//! the source after the unmount.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::kept::Kept;
use super::user::become_user;
use crate::rig::PATIENCE;
use crate::{bytes, runs};

/// Number of kills.
const RUNS_VARIABLE: &str = "SLACKWATER_MOUNT_KILLS";
const RUNS: u64 = 10;
/// The longest time between two of them.
const LIFE_MS: u64 = 200;
const BLOCK: usize = 10_000;
const BLOCKS: u64 = 40;

/// A program on a thread of its own, which tells how much it has done when it is stopped.
struct Program {
    name: &'static str,
    done: Receiver<io::Result<u64>>,
}

impl Program {
    /// Repeats the step that `begin` makes, which gets the number of the repetition, until `stop`.
    fn start<S: FnMut(u64) -> io::Result<()>>(
        name: &'static str,
        stop: &Arc<AtomicBool>,
        is_of_user: bool,
        begin: impl FnOnce() -> S + Send + 'static,
    ) -> Self {
        let (sender, done) = channel();
        let stop = Arc::clone(stop);
        thread::spawn(move || {
            if is_of_user {
                become_user();
            }
            let mut step = begin();
            let mut nth = 0;
            let outcome = loop {
                if stop.load(Ordering::Acquire) {
                    break Ok(nth);
                }
                if let Err(error) = step(nth) {
                    break Err(error);
                }
                nth += 1;
            };
            // An unmount may follow as soon as the outcome is known, and the step may have a file open.
            drop(step);
            let _ = sender.send(outcome);
        });
        Self { name, done }
    }

    /// Whether it has failed so far.
    #[track_caller]
    fn check(&self, errors: impl Fn() -> String) {
        if let Ok(Err(error)) = self.done.try_recv() {
            panic!("{} failed: {error}; {}", self.name, errors());
        }
    }

    #[track_caller]
    fn finish(self) -> u64 {
        match self.done.recv_timeout(PATIENCE) {
            Ok(Ok(times)) => times,
            Ok(Err(error)) => panic!("{} failed: {error}", self.name),
            Err(RecvTimeoutError::Timeout) => panic!("{} hangs", self.name),
            Err(RecvTimeoutError::Disconnected) => panic!("{} panicked", self.name),
        }
    }
}

fn expect(condition: bool, what: impl FnOnce() -> String) -> io::Result<()> {
    if condition { Ok(()) } else { Err(io::Error::other(what())) }
}

/// The block of the overwritten file in its `nth` version.
fn block(nth: u64) -> Vec<u8> {
    bytes(nth, BLOCK)
}

/// Overwrites blocks in turn, and reads each back through the same descriptor.
fn overwriter(path: PathBuf) -> impl FnMut(u64) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    move |nth| {
        let at = SeekFrom::Start(nth % BLOCKS * BLOCK as u64);
        file.seek(at)?;
        file.write_all(&block(nth))?;
        if nth % 16 == 0 {
            file.sync_data()?;
        }
        let mut read = vec![0; BLOCK];
        file.seek(at)?;
        file.read_exact(&mut read)?;
        expect(read == block(nth), || format!("block {nth} is not what was written"))
    }
}

/// Appends with `O_APPEND`: a repeated request would show as a duplicate.
fn appender(path: PathBuf) -> impl FnMut(u64) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    move |nth| writeln!(file, "line {nth}")
}

/// Reads a file that does not change, by opening it again each time.
fn reader(path: PathBuf, expected: Vec<u8>) -> impl FnMut(u64) -> io::Result<()> {
    fs::write(&path, &expected).unwrap();
    move |_| expect(fs::read(&path)? == expected, || "a file that does not change has changed".to_owned())
}

/// Makes, renames and removes names. Every operation that is carried out twice fails.
fn namer(dir: PathBuf) -> impl FnMut(u64) -> io::Result<()> {
    move |nth| {
        let (made, moved) = (dir.join(format!("made-{nth}")), dir.join(format!("moved-{nth}")));
        fs::create_dir(&made)?;
        File::options().write(true).create_new(true).open(made.join("file"))?.write_all(b"content")?;
        fs::hard_link(made.join("file"), made.join("link"))?;
        fs::rename(&made, &moved)?;
        expect(fs::read(moved.join("link"))? == b"content", || "a renamed file has other content".to_owned())?;
        if nth % 4 == 0 {
            return Ok(()); // to be found in the source
        }
        fs::remove_file(moved.join("link"))?;
        fs::remove_file(moved.join("file"))?;
        fs::remove_dir(&moved)
    }
}

/// Uses files after it has removed their names.
fn remover(dir: PathBuf) -> impl FnMut(u64) -> io::Result<()> {
    move |nth| {
        let path = dir.join(format!("removed-{nth}"));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.write_all(&bytes(nth, 5000))?;
        fs::remove_file(&path)?;
        thread::sleep(Duration::from_millis(nth % 30));
        file.write_all(b"more")?;
        file.rewind()?;
        let mut read = Vec::new();
        file.read_to_end(&mut read)?;
        let expected = [bytes(nth, 5000), b"more".to_vec()].concat();
        expect(read == expected, || format!("the removed file {nth} has lost its content: {} bytes", read.len()))
    }
}

/// Programs of every kind on a mount.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    programs: [Program; 5],
    fixed: Vec<u8>,
}

impl Load {
    #[track_caller]
    pub(super) fn start(mountpoint: &Path) -> Self {
        Self::start_as(mountpoint, false)
    }

    /// Starts the programs as the ordinary user, or as root.
    #[track_caller]
    pub(super) fn start_as(mountpoint: &Path, is_of_user: bool) -> Self {
        let at = |name: &str| mountpoint.join(name);
        let fixed = bytes(1, 300_000);
        let (path, content, dir, same_dir) =
            (at("fixed"), fixed.clone(), mountpoint.to_path_buf(), mountpoint.to_path_buf());
        let (overwritten, appended) = (at("overwritten"), at("appended"));
        let stop = Arc::new(AtomicBool::new(false));
        let programs = [
            Program::start("overwriter", &stop, is_of_user, || overwriter(overwritten)),
            Program::start("appender", &stop, is_of_user, || appender(appended)),
            Program::start("reader", &stop, is_of_user, || reader(path, content)),
            Program::start("namer", &stop, is_of_user, || namer(dir)),
            Program::start("remover", &stop, is_of_user, || remover(same_dir)),
        ];
        Self { stop, programs, fixed }
    }

    /// Fails if one of them has failed so far.
    #[track_caller]
    pub(super) fn check(&self, errors: impl Fn() -> String) {
        self.programs.iter().for_each(|program| program.check(&errors));
    }

    /// Stops them, and unmounts by `umount`. The source must have what they have done.
    #[track_caller]
    pub(super) fn finish(self, source: &Path, umount: impl FnOnce()) {
        self.stop.store(true, Ordering::Release);
        let [overwritten, appended, read, named, removed] = self.programs.map(Program::finish);
        println!("{overwritten} {appended} {read} {named} {removed}");
        assert!([overwritten, appended, read, named, removed].iter().all(|times| *times > 0), "a program did nothing");
        umount();
        check(source, overwritten, appended, named);
        assert!(fs::read(source.join("fixed")).unwrap() == self.fixed);
    }
}

#[test]
fn programs_notice_nothing_when_their_server_is_killed() {
    kill_under_load(Kept::new(&["--dirty-expire", "100ms", "--cache", "32MiB"]));
}

/// Kills the server at random moments under programs of every kind, and unmounts.
#[track_caller]
pub(super) fn kill_under_load(mut kept: Kept) {
    let load = load_and_kill(&kept);
    let source = kept.source.clone();
    load.finish(&source, || kept.umount().expect(0, &["everything is written back"]));
}

/// Starts programs of every kind, and kills the server under them at random moments.
#[track_caller]
pub(super) fn load_and_kill(kept: &Kept) -> Load {
    let load = Load::start_as(&kept.mountpoint, kept.is_of_user);
    let kills = runs(RUNS_VARIABLE, RUNS);
    let seed = bytes(u64::from(std::process::id()), kills as usize * 8);
    for (nth, life) in seed.chunks(8).enumerate() {
        let life = u64::from_le_bytes(life.try_into().unwrap()) % LIFE_MS;
        thread::sleep(Duration::from_millis(life));
        if nth % 3 == 2 {
            kept.kill_server(); // perhaps one that has not taken over yet
        } else {
            kept.replace_server();
        }
        load.check(|| kept.mount.errors());
    }
    thread::sleep(Duration::from_millis(LIFE_MS));
    assert!(kept.takeovers() > 0);
    load
}

/// Compares the source with what the programs have done.
#[track_caller]
fn check(source: &Path, overwritten: u64, appended: u64, named: u64) {
    let content = fs::read(source.join("overwritten")).unwrap();
    let last = |at: u64| (0..overwritten).rev().find(|nth| nth % BLOCKS == at);
    for (at, found) in content.chunks(BLOCK).enumerate() {
        let nth = last(at as u64).unwrap();
        assert!(found == block(nth), "block {at} is not version {nth}");
    }
    let lines = fs::read_to_string(source.join("appended")).unwrap();
    assert!(lines.lines().eq((0..appended).map(|nth| format!("line {nth}"))), "lines are lost or repeated");
    let mut names: Vec<_> =
        fs::read_dir(source).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut expected: Vec<_> = (0..named).step_by(4).map(|nth| format!("moved-{nth}")).collect();
    expected.extend(["appended", "fixed", "overwritten"].map(str::to_owned));
    expected.sort();
    assert_eq!(names, expected);
    for nth in (0..named).step_by(4) {
        let dir = source.join(format!("moved-{nth}"));
        assert_eq!(fs::read(dir.join("file")).unwrap(), b"content");
        assert_eq!(fs::read(dir.join("link")).unwrap(), b"content");
    }
}

#[test]
fn a_successor_that_is_killed_at_once_has_a_successor() {
    let mut kept = Kept::new(&["--dirty-expire", "1h"]);
    let path = kept.mountpoint.join("file");
    let mut file = File::create(&path).unwrap();
    for nth in 0..5_u8 {
        file.write_all(&[b'0' + nth]).unwrap();
        let first = kept.kill_server();
        let second = kept.server(Some(first));
        thread::sleep(Duration::from_millis(u64::from(nth) * 5));
        // It may have been replaced already.
        let _ = rustix::process::kill_process(second, rustix::process::Signal::KILL);
    }
    file.write_all(b"!").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"01234!");
    drop(file);
    kept.umount().expect(0, &["another one takes over", "everything is written back"]);
    assert_eq!(fs::read(kept.source.join("file")).unwrap(), b"01234!");
}

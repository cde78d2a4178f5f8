//! A source whose server does not answer: another mount of ours, stopped.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::bytes;
use crate::rig::{Mount, PATIENCE, Process, Scratch, need_fuse, wait_until};
use crate::sys::Mapped;

/// `base`, mounted at `middle` by `server`, which is the source of the mount at `top`.
pub(crate) struct Tower {
    base: PathBuf,
    pub(crate) top: PathBuf,
    pub(crate) middle: PathBuf,
    pub(crate) server: Mount,
    pub(crate) upper: Mount,
}

impl Tower {
    fn new(scratch: &Scratch) -> Self {
        Self::with(scratch, &["--cache", "32MiB"])
    }

    /// A tower with more arguments for the upper mount.
    pub(crate) fn with(scratch: &Scratch, more: &[&str]) -> Self {
        let (base, middle) = scratch.pair("base");
        let top = scratch.dir("top", 0o755);
        let server = scratch.mount_to_be_stopped(&base, &middle);
        let upper = scratch.mount(&middle, &top, &[&["--dirty-expire", "1h"], more].concat());
        Self { base, top, middle, server, upper }
    }

    /// Lets the stopped server continue, and unmounts everything.
    pub(crate) fn come_down(self, scratch: &Scratch) -> PathBuf {
        self.server.process.signal(Signal::CONT);
        scratch.umount_with(&self.top, &["--deadline", "10m"]);
        self.come_down_from_the_middle(scratch)
    }

    /// Unmounts the rest as [`come_down`](Self::come_down) does, when the upper mount has already ended.
    pub(crate) fn come_down_from_the_middle(self, scratch: &Scratch) -> PathBuf {
        drop(self.upper);
        scratch.umount(&self.middle);
        self.base
    }
}

#[test]
fn cached_access_continues_and_umount_ends_at_its_deadline() {
    need_fuse();
    let scratch = Scratch::new();
    let tower = Tower::new(&scratch);
    let (apart, apart_mount) = scratch.pair("apart");
    let beside = scratch.mount(&apart, &apart_mount, &[]);
    let options = OpenOptions::new().read(true).write(true).create(true).clone();
    let mut file = options.open(tower.top.join("file")).unwrap();
    file.write_all(&bytes(1, 1 << 20)).unwrap();

    tower.server.stop_at_rest();
    // Cached data can be read and written without the source.
    let mut found = vec![0; 1 << 20];
    file.rewind().unwrap();
    file.read_exact(&mut found).unwrap();
    assert!(found == bytes(1, 1 << 20));
    file.rewind().unwrap();
    file.write_all(&bytes(2, 1 << 20)).unwrap();
    drop(file);
    // Another mount is not affected.
    fs::write(apart_mount.join("file"), bytes(3, 3 << 20)).unwrap();
    File::open(apart_mount.join("file")).unwrap().sync_all().unwrap();
    scratch.umount(&apart_mount);
    drop(beside);

    let start = Instant::now();
    let output = scratch.run_when_free(["umount", tower.top.to_str().unwrap(), "--deadline", "1s"]);
    output.expect(4, &["the deadline passed", "still mounted", "nothing is lost"]);
    let took = start.elapsed();
    println!("umount with a deadline of 1 s took {took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    scratch.run(["status", tower.top.to_str().unwrap()]).expect(0, &["mounted"]);

    let base = tower.come_down(&scratch);
    assert!(fs::read(base.join("file")).unwrap() == bytes(2, 1 << 20));
}

#[test]
fn discard_ends_although_closing_source_files_would_block() {
    need_fuse();
    let scratch = Scratch::new();
    let mut tower = Tower::new(&scratch);
    let top = tower.top.to_str().unwrap();
    let mut files = ["one", "two"].map(|name| File::create(tower.top.join(name)).unwrap());
    files.iter_mut().for_each(|file| file.write_all(&bytes(1, 100_000)).unwrap());
    scratch.run(["sync", top]).expect(0, &[]);
    // The mount has these files open in the source because more data is to come; nothing else has them open.
    files.iter_mut().for_each(|file| file.write_all(&bytes(2, 100_000)).unwrap());
    drop(files);
    tower.server.stop_at_rest();
    let start = Instant::now();
    let output = scratch.run_when_free(["umount", top, "--discard", "--yes", "--deadline", "30s"]);
    output.expect(0, &["LOST"]);
    println!("umount --discard took {:?}", start.elapsed());
    scratch.run(["status", top]).expect(5, &[]);
    // Its last descriptors are closed when the server answers.
    tower.server.process.signal(Signal::CONT);
    tower.upper.wait().expect(0, &["Unmounted"]);
    scratch.umount(&tower.middle);
    for name in ["one", "two"] {
        assert!(fs::read(tower.base.join(name)).unwrap()[..100_000] == bytes(1, 100_000));
    }
}

#[test]
fn data_that_is_discarded_in_flight_is_not_left() {
    need_fuse();
    let scratch = Scratch::new();
    let mut tower = Tower::new(&scratch);
    let top = tower.top.to_str().unwrap();
    fs::write(tower.top.join("file"), bytes(1, 1 << 20)).unwrap();
    tower.server.stop_at_rest();
    let _syncing = Process::spawn(scratch.command(["sync", top]).stdout(Stdio::null()).stderr(Stdio::null()));
    wait_until("data is in flight", || {
        let status = scratch.run(["status", "--json", top]);
        let status: serde_json::Value = serde_json::from_str(&status.text).unwrap();
        status["mounts"][0]["writeback_bytes"].as_u64().unwrap() > 0
    });
    scratch.run_when_free(["umount", top, "--discard", "--yes", "--deadline", "30s"]).expect(0, &["LOST"]);
    tower.server.process.signal(Signal::CONT);
    tower.upper.wait().expect(0, &["Unmounted"]);
    tower.come_down_from_the_middle(&scratch);
}

/// A thread that asks the kernel for stores waits there for pages in flight, and no signal ends the wait. Once its
/// process is killed, no process answers the requests that it waits for.
#[test]
fn p09_a_killed_mount_that_waits_for_its_own_answer_is_ended() {
    need_fuse();
    let scratch = Scratch::new();
    let mut tower = Tower::new(&scratch);
    fs::write(tower.base.join("file"), bytes(1, 16 << 20)).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "hung_source::storing_program", "--nocapture"]);
    command.env(STORING_VARIABLE, tower.top.join("file")).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut program = Process::spawn(command.stderr(Stdio::piped()));
    program.0.stderr.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    let waits_for_page = |process: &Process| {
        let tasks = fs::read_dir(format!("/proc/{}/task", process.0.id())).unwrap();
        let place_of = |task: fs::DirEntry| fs::read_to_string(task.path().join("wchan")).unwrap_or_default();
        tasks.flatten().any(|task| place_of(task).contains("folio"))
    };
    tower.server.stop_at_rest();
    // A page far behind is being read into the kernel's cache for a store, and is locked.
    drop(program.0.stdin.take());
    wait_until("the page is being read", || waits_for_page(&program));
    let mut sync = Process::spawn(scratch.command(["sync", tower.top.to_str().unwrap()]).stderr(Stdio::null()));
    wait_until("the mount waits for the page", || waits_for_page(&tower.upper.process));
    tower.upper.process.0.kill().unwrap();
    tower.server.process.signal(Signal::CONT);
    // The next command ends it.
    scratch.status_after_death().expect(0, &["which died"]);
    sync.wait();
    tower.upper.process.wait();
    program.wait();
    let again = scratch.mount(&tower.middle, &tower.top, &[]);
    let found = fs::read(tower.top.join("file")).unwrap();
    assert!(found[..4096] == bytes(2, 4096) && found[4096..] == bytes(1, 16 << 20)[4096..]);
    scratch.umount(&tower.top);
    drop(again);
    tower.come_down_from_the_middle(&scratch);
}

/// A program, not a test: stores at the beginning of a file, says so, and stores far behind once its input ends. It is
/// a process because even a child of the process that has the file open waits for a mount that does not answer.
#[test]
fn storing_program() {
    if let Ok(path) = std::env::var(STORING_VARIABLE) {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut mapped = Mapped::new(&file);
        mapped.store_at(0, &bytes(2, 4096)).unwrap();
        mapped.sync().unwrap();
        std::io::stderr().write_all(b".").unwrap();
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        let _ = mapped.store_at(15 << 20, &[3]);
    }
}

const STORING_VARIABLE: &str = "SLACKWATER_STORING_PROGRAM";

/// The program that is killed, not a test.
#[test]
fn program() {
    if let Ok(path) = std::env::var(PROGRAM_VARIABLE) {
        let part = bytes(1, 64 << 10);
        let mut file = File::create(path).unwrap();
        loop {
            file.write_all(&part).unwrap();
            std::io::stderr().write_all(b".").unwrap();
        }
    }
}

const PROGRAM_VARIABLE: &str = "SLACKWATER_WRITING_PROGRAM";

fn writer(path: &Path) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "hung_source::program", "--nocapture"]).env(PROGRAM_VARIABLE, path);
    Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()))
}

#[test]
fn a_blocked_writer_can_be_killed_at_once() {
    need_fuse();
    let scratch = Scratch::new();
    let tower = Tower::new(&scratch);
    fs::write(tower.top.join("file"), "").unwrap();
    let mut program = writer(&tower.top.join("file"));
    let mut reports = program.0.stderr.take().unwrap();
    reports.read_exact(&mut [0; 8]).unwrap();
    tower.server.process.stop();
    // The writer waits when it is asleep and has written nothing for a while.
    let written = || fs::read_to_string(format!("/proc/{}/io", program.0.id())).unwrap_or_default();
    let mut before = (written(), Instant::now());
    wait_until("the writer is blocked", || {
        let now = written();
        if now != before.0 {
            before = (now, Instant::now());
        }
        before.1.elapsed() > Duration::from_secs(1)
    });
    let start = Instant::now();
    program.0.kill().unwrap();
    program.wait();
    println!("a killed writer ended after {:?}", start.elapsed());
    assert!(start.elapsed() < PATIENCE / 4);
    let base = tower.come_down(&scratch);
    let found = fs::read(base.join("file")).unwrap();
    let part = bytes(1, 64 << 10);
    assert!(found.len() >= 8 * part.len() && found.chunks(part.len()).all(|found| found == &part[..found.len()]));
}

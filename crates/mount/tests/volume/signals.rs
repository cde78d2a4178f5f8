//! Writers that wait for space: signals, stops and freezers let them wait, and only their death ends the wait.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use slackwater::Tunables;
use slackwater_testkit::{Rule, pattern};

use crate::needs;
use crate::programs::{LONG, until, wait};
use crate::rig::{Rig, assert_same};
use crate::tenants::is_asleep_in_a_request;

/// A volume's share is half of the arena: it is full after 4 MiB.
const ARENA_BYTES: u64 = 8 << 20;
/// Size of one write.
const WRITE_BYTES: usize = 1 << 20;

/// The beginning of each program. `write` neither repeats an interrupted call nor completes a short one, unlike
/// `os.write`.
const HEAD: &str = "import ctypes, errno, os, resource, signal, sys, threading\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    libc.write.restype = ctypes.c_ssize_t\n\
    def write(file, block):\n\
    \x20   count = libc.write(file, block, ctypes.c_size_t(len(block)))\n\
    \x20   return count if count >= 0 else -ctypes.get_errno()\n\
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n\
    signal.signal(signal.SIGWINCH, lambda *_: None)\n";

/// A volume whose share is full up to the last 300 KiB, so that a part of the next write is taken.
fn full() -> Rig {
    let rig = Rig::with(ARENA_BYTES, Tunables { dirty_percent: 100, ..Tunables::default() });
    rig.faults.add(Rule::hold().on("write"));
    fs::write(rig.file("full"), pattern(1, (4 << 20) - (300 << 10))).unwrap();
    rig
}

/// A python program with pipes. Its argument is the file `a` of the mount.
fn python(rig: &Rig, program: &str) -> Child {
    let program = format!("{HEAD}{program}");
    let mut command = Command::new("python3");
    command.args(["-I", "-c", &program]).arg(rig.file("a")).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.current_dir("/").spawn().unwrap()
}

/// Waits until the kernel has passed an interrupt on, and the thread waits for the answer or for a SIGKILL.
fn until_interrupted(pid: u32) {
    until("the writer is interrupted", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('D')) && is_asleep_in_a_request(pid)
    });
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// The rest of what the program prints before it ends with success.
fn last_words(mut child: Child) -> String {
    let mut output: ChildStdout = child.stdout.take().unwrap();
    assert!(wait(&mut child).expect("the program ends").success());
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    said.trim().to_owned()
}

/// A write that waited for space ended at any signal, with EINTR or a short count. Programs with a timer or with child
/// processes, such as PostgreSQL, take both for errors of the disk, since no local file system ends a write for that.
#[test]
fn p08_signals_that_a_program_handles_end_no_write() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    const BLOCKS: usize = 1200;
    for restarts in ["True", "False"] {
        let rig = full();
        let child = python(
            &rig,
            &format!(
                "signal.signal(signal.SIGALRM, lambda *_: None)\n\
                 signal.siginterrupt(signal.SIGALRM, not {restarts})\n\
                 signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)\n\
                 file, block = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), b'x' * 8192\n\
                 counts = [write(file, block) for _ in range({BLOCKS})]\n\
                 signal.setitimer(signal.ITIMER_REAL, 0)\n\
                 print([count for count in counts if count != 8192])"
            ),
        );
        until("a write waits", || rig.mounted.parked_writes() > 0);
        until_interrupted(child.id());
        rig.let_through();
        assert_eq!(last_words(child), "[]", "counts of interrupted writes, with SA_RESTART: {restarts}");
        rig.umount().unwrap();
        assert_same(&fs::read(rig.stored("a")).unwrap(), &[b'x'; BLOCKS * 8192]);
    }
}

/// A program with one write, during which a signal arrives. It prints the count.
const ONE_WRITE: &str = "print(write(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | FLAGS), b'x' * (1 << 20)))";

/// Runs `ONE_WRITE`, until it waits and a part of it is taken.
fn one_write(rig: &Rig, flags: &str, before: &str) -> Child {
    let child = python(rig, &format!("{before}\n{}", ONE_WRITE.replace("FLAGS", flags)));
    until("the write waits", || rig.mounted.parked_writes() > 0);
    child
}

/// Bytes taken of a write with `O_SYNC` are not acknowledged before they are durable, even after an interrupt.
#[test]
fn p01_an_interrupted_synchronous_write_waits_until_all_of_it_is_durable() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    let rig = full();
    let mut child = one_write(&rig, "os.O_SYNC", "");
    signal(&child, Signal::WINCH);
    until_interrupted(child.id());
    assert!(child.try_wait().unwrap().is_none());
    rig.let_through();
    assert_eq!(last_words(child), WRITE_BYTES.to_string());
    assert_same(&fs::read(rig.stored("a")).unwrap(), &[b'x'; WRITE_BYTES]);
    rig.umount().unwrap();
}

/// Blocked and ignored signals are pending or dropped, and stops are no death.
#[test]
fn p08_a_stopped_program_has_written_all_or_waits_on() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    let rig = full();
    let before = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGQUIT, signal.SIGINT])";
    let child = one_write(&rig, "os.O_APPEND", before);
    for harmless in [Signal::QUIT, Signal::INT, Signal::TERM, Signal::STOP] {
        signal(&child, harmless);
    }
    until_interrupted(child.id());
    assert!(rig.mounted.parked_writes() == 1, "it still waits");
    rig.let_through();
    until("the program is stopped", || {
        fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") T ")
    });
    assert_eq!(fs::metadata(rig.file("a")).unwrap().len(), WRITE_BYTES as u64);
    signal(&child, Signal::CONT);
    assert_eq!(last_words(child), WRITE_BYTES.to_string());
    rig.umount().unwrap();
}

/// The mount points of cgroup hierarchies that can freeze.
fn freezers() -> Vec<(PathBuf, [&'static str; 3])> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let found = mounts.lines().filter_map(|line| {
        let (mount, rest) = line.split_once(" - ")?;
        let point = PathBuf::from(mount.split(' ').nth(4)?);
        match rest.split(' ').next()? {
            "cgroup2" => Some((point, ["cgroup.freeze", "1", "0"])),
            "cgroup" if rest.ends_with(",freezer") => Some((point, ["freezer.state", "FROZEN", "THAWED"])),
            _ => None,
        }
    });
    found.collect()
}

/// A cgroup that is thawed and removed at the end.
struct Frozen(PathBuf, [&'static str; 3]);

impl Frozen {
    fn is_frozen(&self) -> bool {
        let read = |name: &str| fs::read_to_string(self.0.join(name)).unwrap_or_default();
        read("cgroup.events").contains("frozen 1") || read("freezer.state").trim() == "FROZEN"
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let [file, _, thawed] = self.1;
        let _ = fs::write(self.0.join(file), thawed);
        let start = std::time::Instant::now();
        while self.0.exists() && fs::remove_dir(&self.0).is_err() && start.elapsed() < LONG {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

/// A container that was frozen in the middle of an append had written a part of its line, and another program's line
/// followed.
#[test]
fn p08_a_frozen_append_is_whole() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    let freezers = freezers();
    if freezers.is_empty() {
        println!("skipped: no cgroup hierarchy is mounted");
    }
    for (hierarchy, [file, frozen, thawed]) in freezers {
        let cgroup = hierarchy.join(format!("slackwater-signals-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&cgroup) {
            println!("skipped: no cgroup can be made in {}: {error}", hierarchy.display());
            continue;
        }
        let cgroup = Frozen(cgroup, [file, frozen, thawed]);
        let rig = full();
        let child = one_write(&rig, "os.O_APPEND", "");
        fs::write(cgroup.0.join("cgroup.procs"), child.id().to_string()).unwrap();
        fs::write(cgroup.0.join(file), frozen).unwrap();
        until_interrupted(child.id());
        assert!(rig.mounted.parked_writes() == 1, "it still waits");
        rig.let_through();
        until("the program is frozen", || cgroup.is_frozen());
        assert_eq!(fs::metadata(rig.file("a")).unwrap().len(), WRITE_BYTES as u64, "in {}", hierarchy.display());
        let mut other = fs::File::options().append(true).open(rig.file("a")).unwrap();
        other.write_all(b"beside").unwrap();
        drop(other);
        fs::write(cgroup.0.join(file), thawed).unwrap();
        assert_eq!(last_words(child), WRITE_BYTES.to_string());
        rig.umount().unwrap();
        assert!(fs::read(rig.stored("a")).unwrap().ends_with(b"xbeside"));
    }
}

/// A harmless signal comes first or not: the kernel passes only the first interrupt of a request on. It is one that does
/// not end the next program, for which it may still be pending.
#[test]
fn p08_a_waiting_writer_ends_at_once_with_its_process() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    // The end by another thread of the program, and the exit status.
    let ends = [
        ("os.kill(os.getpid(), signal.SIGKILL)", None),
        ("os.kill(os.getpid(), signal.SIGTERM)", None),
        ("os.kill(os.getpid(), signal.SIGQUIT)", None),
        ("signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)", None),
        ("signal.pthread_kill(threading.main_thread().ident, signal.SIGABRT)", None),
        ("os._exit(3)", Some(3)),
        ("os.execv('/bin/false', ['false'])", Some(1)),
    ];
    for (end, code) in ends {
        for is_interrupted in [false, true] {
            let rig = full();
            let before = format!(
                "def end():\n\x20   sys.stdin.readline()\n\x20   {end}\n\
                 signal.signal(signal.SIGINT, signal.SIG_DFL)\n\
                 threading.Thread(target=end, daemon=True).start()"
            );
            let mut child = one_write(&rig, "0", &before);
            if is_interrupted {
                signal(&child, Signal::WINCH);
                until_interrupted(child.id());
            }
            child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
            let status = wait(&mut child).unwrap_or_else(|| panic!("{end}: the program waits for its write"));
            assert_eq!(status.code(), code, "{end}");
            let mut said = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
            assert_eq!(said, "", "{end}: it has seen the count of its write");
            until("the rest of its payload is dropped", || rig.mounted.parked_bytes() == 0);
            let taken = fs::metadata(rig.file("a")).unwrap().len();
            assert!(0 < taken && taken < WRITE_BYTES as u64, "{end}: {taken} bytes were taken");
            rig.let_through();
            until("the taken bytes are written back", || rig.umount().is_ok());
            assert_eq!(fs::metadata(rig.stored("a")).unwrap().len(), taken, "{end}");
        }
    }
}

//! Many kills of the process of a kept mount, under programs of all kinds. None of them sees an error, and everything that
//! was acknowledged is there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use slackwater_testkit::Random;

use super::user::in_own_namespace;
use crate::needs;
use crate::rig::{Mount, PATIENCE, Process, Scratch, need_fuse, run, wait_until};
use crate::sys::Mapped;
use crate::{bytes, runs};

/// Number of kills per test.
pub(super) const KILLS_VARIABLE: &str = "SLACKWATER_KEPT_KILLS";
pub(super) const KILLS: u64 = 20;
/// The longest time between a takeover and the next kill.
const LIFE_US: u64 = 500_000;
/// The mean number of kills of which one hits the takeover.
const SOON_EVERY: u64 = 6;
/// The programs of PostgreSQL, in a directory for each version.
const POSTGRESQL: &str = "/usr/lib/postgresql";
const APPEND_MAX: usize = 8 << 20;
const SLOT_BYTES: usize = 1500;
const SLOTS: u64 = 2000;
/// The space of a source that fills up: two thirds of what a program stores through a mapping.
const FULL_BYTES: u64 = 16 << 20;

/// A kept mount, whose server is killed.
struct Rig {
    scratch: Scratch,
    mount: Mount,
    source: PathBuf,
    mountpoint: PathBuf,
}

impl Rig {
    fn new(more: &[&str]) -> Self {
        need_fuse();
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("kept");
        Self::of(scratch, source, mountpoint, more)
    }

    /// A mount whose source has space for [`FULL_BYTES`].
    fn of_small_source() -> Self {
        need_fuse();
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("kept");
        let options = std::ffi::CString::new(format!("size={FULL_BYTES}")).unwrap();
        mount("tmpfs", &source, "tmpfs", MountFlags::empty(), options.as_c_str()).unwrap();
        Self::of(scratch, source, mountpoint, &[])
    }

    fn of(scratch: Scratch, source: PathBuf, mountpoint: PathBuf, more: &[&str]) -> Self {
        let options = ["--keep", "--transport", "dev", "--dirty-expire", "300ms"];
        let mount = scratch.mount(&source, &mountpoint, &[&options, more].concat());
        Self { scratch, mount, source, mountpoint }
    }

    fn kill(&self) {
        let keeper = self.mount.process.0.id();
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
        // Older ones have not quite ended. Between two servers there is none.
        if let Some(pid) = children.split_whitespace().next_back().and_then(|pid| Pid::from_raw(pid.parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Kills servers until there were enough, or a program has failed.
    fn kill_many(&self, programs: &[Program]) {
        let kills = runs(KILLS_VARIABLE, KILLS);
        let mut random = Random::new(u64::from(std::process::id()));
        for nth in 0..kills {
            if programs.iter().any(|program| program.thread.is_finished()) {
                return;
            }
            let before = self.takeovers();
            self.kill();
            if random.below(SOON_EVERY) == 0 {
                thread::sleep(Duration::from_micros(random.below(40_000)));
                self.kill();
            }
            wait_until(&format!("the mount is taken over after kill {nth}"), || self.takeovers() > before);
            thread::sleep(Duration::from_micros(random.below(LIFE_US)));
        }
    }

    fn takeovers(&self) -> usize {
        self.mount.said("has taken the mount over")
    }

    /// Ends the mount. Nothing was moved aside.
    fn end(mut self) -> Scratch {
        println!("{} takeovers", self.takeovers());
        self.scratch.umount(&self.mountpoint);
        let output = self.mount.wait();
        assert_eq!(output.code, Some(0), "{}", output.text);
        assert!(!output.text.contains("its data is in a file of its own"), "{}", output.text);
        // A server whose last threads wait for the successor was killed all the same, and is no reason for a delay.
        assert!(!output.text.contains(") died: another one takes over"), "{}", output.text);
        self.scratch
    }
}

/// A thread that works until the kills have ended.
pub(super) struct Program {
    name: &'static str,
    pub(super) thread: JoinHandle<io::Result<()>>,
}

/// Starts a program, which repeats `step` with a growing number.
pub(super) fn start(
    name: &'static str,
    stop: &Arc<AtomicBool>,
    mut step: impl FnMut(u64) -> io::Result<()> + Send + 'static,
) -> Program {
    let stop = Arc::clone(stop);
    let thread = thread::spawn(move || (0..).take_while(|_| !stop.load(Ordering::Relaxed)).try_for_each(&mut step));
    Program { name, thread }
}

#[track_caller]
pub(super) fn finish(programs: Vec<Program>, stop: &AtomicBool) {
    stop.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + PATIENCE;
    for Program { name, thread } in programs {
        while !thread.is_finished() {
            assert!(Instant::now() < deadline, "{name} hangs");
            thread::sleep(Duration::from_millis(10));
        }
        match thread.join() {
            Ok(outcome) => outcome.unwrap_or_else(|error| panic!("{name}: {error}")),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Appends, reads back what was acknowledged, and begins again when the file is large.
fn appender(path: PathBuf, seed: u64) -> impl FnMut(u64) -> io::Result<()> {
    let all = bytes(seed, APPEND_MAX);
    let mut file = None;
    let mut written = 0;
    move |nth| {
        let open = || OpenOptions::new().read(true).append(true).create(true).open(&path);
        let file = file.get_or_insert(open()?);
        let part = &all[written..(written + 1 + (nth as usize * 7919) % 30_000).min(APPEND_MAX)];
        file.write_all(part)?;
        written += part.len();
        if nth % 40 == 0 {
            file.sync_all()?;
        }
        if nth % 25 == 0 || written == APPEND_MAX {
            let mut found = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut found)?;
            assert!(found == all[..written], "{}: {} of {written} bytes are as appended", path.display(), found.len());
        }
        if written == APPEND_MAX {
            file.set_len(0)?;
            written = 0;
        }
        Ok(())
    }
}

/// Overwrites slots at random, and reads one back.
fn overwriter(path: PathBuf, seed: u64) -> impl FnMut(u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    let mut versions = vec![0; SLOTS as usize];
    let slot_bytes = move |slot: u64, version: u64| bytes(seed << 48 | slot << 32 | version, SLOT_BYTES);
    move |nth| {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        let (slot, other) = (random.below(SLOTS), random.below(SLOTS));
        versions[slot as usize] += 1;
        file.write_all_at(&slot_bytes(slot, versions[slot as usize]), slot * SLOT_BYTES as u64)?;
        if nth % 50 == 0 {
            file.sync_data()?;
        }
        for slot in [slot, other].into_iter().filter(|slot| versions[*slot as usize] > 0) {
            let mut found = vec![0; SLOT_BYTES];
            file.read_exact_at(&mut found, slot * SLOT_BYTES as u64)?;
            assert!(found == slot_bytes(slot, versions[slot as usize]), "{}: slot {slot}", path.display());
        }
        Ok(())
    }
}

/// Stores through a mapping, and reads through another descriptor.
fn mapper(path: PathBuf) -> impl FnMut(u64) -> io::Result<()> {
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut mapped = Mapped::new(&file);
    move |nth| {
        let (at, text) = ((nth * 5003 % 1_000_000) as usize, nth.to_le_bytes());
        mapped.store_at(at, &text)?;
        if nth % 20 == 0 {
            mapped.sync()?;
        }
        let mut found = [0; 8];
        File::open(&path)?.read_exact_at(&mut found, at as u64)?;
        assert_eq!(found, text, "a store through a mapping");
        Ok(())
    }
}

/// Saves by a rename; and uses a file that it has removed.
fn saver(folder: PathBuf) -> impl FnMut(u64) -> io::Result<()> {
    move |nth| {
        let (temporary, target) = (folder.join("saved.new"), folder.join("saved"));
        let content = bytes(nth, 5000);
        fs::write(&temporary, &content)?;
        fs::rename(&temporary, &target)?;
        assert!(fs::read(&target)? == content, "version {nth}");
        let path = folder.join("removed");
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        file.write_all(&content[..100])?;
        fs::remove_file(&path)?;
        file.write_all(&content[100..])?;
        let mut found = vec![0; 5000];
        file.read_exact_at(&mut found, 0)?;
        let differs = found.iter().zip(&content).position(|(one, other)| one != other);
        let zeros = found.iter().filter(|byte| **byte == 0).count();
        assert_eq!(differs, None, "the removed file of version {nth}: {zeros} zeros");
        Ok(())
    }
}

/// A lock that is held all the time is never free for another.
fn locker(path: PathBuf) -> impl FnMut(u64) -> io::Result<()> {
    let holder = File::create(&path).unwrap();
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    move |_| {
        let _held = &holder;
        let other = File::open(&path)?;
        assert!(flock(&other, FlockOperation::NonBlockingLockShared).is_err(), "the lock was lost");
        thread::sleep(Duration::from_millis(5));
        Ok(())
    }
}

fn sqlite(database: &Path, script: &str) -> io::Result<String> {
    let mut command = Command::new("sqlite3");
    let mut child = command.args(["-batch", "-bail"]).arg(database);
    child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn()?;
    child.stdin.take().unwrap().write_all(script.as_bytes())?;
    let output = child.wait_with_output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// Transactions in a database that another program uses too. Each number that was committed is there.
fn database_user(database: PathBuf, writer: u64) -> impl FnMut(u64) -> io::Result<()> {
    move |nth| {
        let inserts: String = (0..5)
            .map(|row| format!("BEGIN IMMEDIATE; INSERT INTO t VALUES ({writer}, {}); COMMIT;\n", nth * 5 + row))
            .collect();
        let question = format!("SELECT count(*) FROM t WHERE writer = {writer};\n");
        let found = sqlite(&database, &format!(".timeout 100000\n{inserts}{question}"))?;
        assert_eq!(found, (nth * 5 + 5).to_string(), "transactions of {writer}");
        Ok(())
    }
}

#[test]
fn no_program_notices_many_kills() {
    let rig = Rig::new(&[]);
    let folder = rig.mountpoint.clone();
    let database = folder.join("database");
    sqlite(&database, "PRAGMA journal_mode=wal; CREATE TABLE t (writer INTEGER, n INTEGER);").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let programs = vec![
        start("an appender", &stop, appender(folder.join("appended-1"), 1)),
        start("another appender", &stop, appender(folder.join("appended-2"), 2)),
        start("an overwriter", &stop, overwriter(folder.join("slots-1"), 3)),
        start("another overwriter", &stop, overwriter(folder.join("slots-2"), 4)),
        start("a program with a mapping", &stop, mapper(folder.join("mapped"))),
        start("a saver", &stop, saver(folder.clone())),
        start("a locker", &stop, locker(folder.join("locked"))),
        start("a user of a database", &stop, database_user(database.clone(), 1)),
        start("another user of the database", &stop, database_user(database, 2)),
    ];
    rig.kill_many(&programs);
    finish(programs, &stop);
    let source = rig.source.clone();
    let _scratch = rig.end();
    let found = sqlite(&source.join("database"), "PRAGMA integrity_check;").unwrap();
    assert_eq!(found, "ok", "the database in the source");
}

/// Moves a file and leaves a whiteout, as overlayfs does.
fn whiteouter(folder: PathBuf) -> impl FnMut(u64) -> io::Result<()> {
    let (from, to) = (folder.join("hidden"), folder.join("moved"));
    move |nth| {
        let content = bytes(nth, 3000);
        let mut file = File::create_new(&from)?;
        file.write_all(&content)?;
        if nth % 2 == 0 {
            file.sync_all()?;
        }
        renameat_with(CWD, &from, CWD, &to, RenameFlags::WHITEOUT)?;
        assert!(fs::read(&to)? == content, "version {nth} after a whiteout");
        assert!(fs::symlink_metadata(&from)?.file_type().is_char_device(), "the whiteout of {nth}");
        fs::remove_file(&from)?;
        if nth % 3 == 0 { fs::remove_file(&to) } else { Ok(()) }
    }
}

/// Truncates a file and writes it anew: the source has the new bytes once it is closed.
fn truncater(path: PathBuf, source: PathBuf) -> impl FnMut(u64) -> io::Result<()> {
    move |nth| {
        let content = bytes(nth, 1 + (nth as usize * 997) % 20_000);
        let mut file = OpenOptions::new().write(true).create(true).truncate(nth % 2 == 0).open(&path)?;
        if nth % 2 == 1 {
            file.set_len(0)?;
        }
        file.write_all(&content)?;
        drop(file);
        // The first time, the file was new.
        assert!(nth < 2 || fs::read(&source)? == content, "the source after the close of version {nth}");
        Ok(())
    }
}

/// Renames of every form, among names of one file and directories.
fn renamer(folder: PathBuf) -> impl FnMut(u64) -> io::Result<()> {
    fs::create_dir(&folder).unwrap();
    move |nth| {
        let at = |name: &str| folder.join(name);
        let rename = |from: &str, to: &str, flags| renameat_with(CWD, at(from), CWD, at(to), flags);
        let (content, other) = (bytes(nth, 700), bytes(nth + 1, 800));
        fs::write(at("a"), &content)?;
        fs::hard_link(at("a"), at("b"))?;
        fs::write(at("c"), &other)?;
        rename("b", "c", RenameFlags::empty())?;
        assert!(!at("b").exists() && fs::read(at("c"))? == content, "{nth}: over a file");
        rename("a", "c", RenameFlags::empty())?;
        assert!(at("a").exists() && fs::read(at("c"))? == content, "{nth}: two names of one file");
        rename("c", "d", RenameFlags::NOREPLACE)?;
        assert_eq!(rename("d", "a", RenameFlags::NOREPLACE), Err(Errno::EXIST), "{nth}");
        fs::write(at("e"), &other)?;
        rename("e", "d", RenameFlags::EXCHANGE)?;
        assert!(fs::read(at("e"))? == content && fs::read(at("d"))? == other, "{nth}: exchanged");
        fs::create_dir(at("f"))?;
        fs::create_dir(at("g"))?;
        rename("e", "f/e", RenameFlags::empty())?;
        rename("f", "g", RenameFlags::empty())?;
        assert!(fs::read(at("g/e"))? == content && !at("f").exists(), "{nth}: over a directory");
        fs::remove_dir_all(at("g"))?;
        ["a", "d"].iter().try_for_each(|name| fs::remove_file(at(name)))
    }
}

/// Hides a file of the lower layer of an overlay by another, and moves that.
fn overlay_user(merged: PathBuf) -> impl FnMut(u64) -> io::Result<()> {
    move |nth| {
        let (covering, moved) = (merged.join("below"), merged.join("moved"));
        let content = bytes(nth, 2000);
        fs::write(&covering, &content)?;
        fs::rename(&covering, &moved)?;
        assert!(fs::read(&moved)? == content && !covering.exists(), "version {nth} on the overlay");
        fs::remove_file(&moved)
    }
}

#[test]
fn no_rename_or_truncation_is_lost_in_many_kills() {
    let rig = Rig::new(&[]);
    let folder = rig.mountpoint.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let programs = vec![
        start("a program with whiteouts", &stop, whiteouter(folder.clone())),
        start("a program that truncates", &stop, truncater(folder.join("cut"), rig.source.join("cut"))),
        start("a program that renames", &stop, renamer(folder.join("renamed"))),
    ];
    rig.kill_many(&programs);
    finish(programs, &stop);
    let _scratch = rig.end();
}

#[test]
fn an_overlay_on_a_kept_mount_loses_nothing_in_many_kills() {
    in_own_namespace(|| {
        let rig = Rig::new(&[]);
        let [lower, merged] = ["lower", "merged"].map(|name| rig.scratch.dir(name, 0o755));
        fs::write(lower.join("below"), b"below").unwrap();
        let [upper, work] = ["upper", "work"].map(|name| rig.mountpoint.join(name));
        [&upper, &work].iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let options = std::ffi::CString::new(options).unwrap();
        match mount("overlay", &merged, "overlay", MountFlags::empty(), options.as_c_str()) {
            Ok(()) => {
                let stop = Arc::new(AtomicBool::new(false));
                let programs = vec![start("a program on the overlay", &stop, overlay_user(merged.clone()))];
                rig.kill_many(&programs);
                finish(programs, &stop);
                wait_until("no thread uses the overlay", || unmount(&merged, UnmountFlags::empty()).is_ok());
            }
            Err(error) => println!("skipped: overlayfs cannot be mounted here: {error}"),
        }
        let _scratch = rig.end();
    });
}

/// Stores to each page through a mapping, for which the source has too little space. Where a sync succeeds, all of it is
/// in the source.
const STORES: &str = "
import errno, mmap, os, sys
path, source = sys.argv[1:]
fd = os.open(path, os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 24 << 20)
m = mmap.mmap(fd, 24 << 20)
for value in range(1, 5):
    for at in range(0, len(m), 4096): m[at] = value
    try: m.flush() if value % 2 else os.fsync(fd)
    except OSError as e: assert e.errno == errno.ENOSPC, e
    else:
        found = open(source, 'rb').read()[::4096]
        assert found == bytes([value]) * len(found), 'stores are missing'
";

/// Starts a program that stores to a mapping. Ends it by SIGKILL every other time, and by a truncation every third. It
/// always ends.
fn storer(mountpoint: PathBuf, source: PathBuf) -> impl FnMut(u64) -> io::Result<()> {
    move |nth| {
        let path = mountpoint.join("mapped");
        let file = match File::create(&path) {
            // Not even a name has a place until the other program removes a file.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
            file => file?,
        };
        let mut command = Command::new("python3");
        command.args(["-I", "-c", STORES]).args([&path, &source.join("mapped")]).current_dir("/").stdin(Stdio::null());
        let mut program = Process::spawn(command.stderr(Stdio::piped()));
        thread::sleep(Duration::from_millis(nth * 37 % 300));
        if nth % 3 == 0 {
            file.set_len(1 << 20)?;
        }
        if nth % 2 == 0 {
            program.0.kill()?;
        }
        let status = program.wait();
        let mut said = String::new();
        program.0.stderr.take().unwrap().read_to_string(&mut said)?;
        // SIGBUS: the page has no place in the source, or is behind the end.
        let is_expected = status.success() || [Some(9), Some(7)].contains(&status.signal()) || nth % 3 == 0;
        assert!(is_expected, "{status}: {said}");
        fs::remove_file(&path)
    }
}

/// Saves files while the source has space, and removes them. Synced data is in the source.
fn saver_while_there_is_space(mountpoint: PathBuf, source: PathBuf) -> impl FnMut(u64) -> io::Result<()> {
    move |nth| {
        let name = format!("small-{nth}");
        let content = bytes(nth, 1 + (nth as usize * 7919) % 60_000);
        let saved = File::create(mountpoint.join(&name)).and_then(|mut file| {
            file.write_all(&content)?;
            file.sync_all()
        });
        match saved {
            Ok(()) => assert!(fs::read(source.join(&name))? == content, "{name} of version {nth}"),
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
            Err(error) => return Err(error),
        }
        match fs::remove_file(mountpoint.join(&name)) {
            // Not even the name had a place.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

#[test]
fn programs_with_mappings_end_on_a_full_source_in_many_kills() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    let rig = Rig::of_small_source();
    let stop = Arc::new(AtomicBool::new(false));
    let (mountpoint, source) = (&rig.mountpoint, &rig.source);
    let programs = vec![
        start("a program with mappings", &stop, storer(mountpoint.clone(), source.clone())),
        start("a saver", &stop, saver_while_there_is_space(mountpoint.clone(), source.clone())),
    ];
    rig.kill_many(&programs);
    finish(programs, &stop);
    let _scratch = rig.end();
}

/// Runs a command as the user of PostgreSQL.
fn postgres(directory: &Path, script: &str) -> io::Result<String> {
    let bin = fs::read_dir(POSTGRESQL)?.flatten().next().map(|version| version.path().join("bin"));
    let bin = bin.ok_or_else(|| io::Error::other("PostgreSQL is not installed"))?;
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--", "bash", "-e", "-c", script]).current_dir(directory).stdin(Stdio::null());
    command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/bin", bin.display())).env("PGHOST", directory);
    let output = run(command);
    match output.code {
        Some(0) => Ok(output.text),
        _ => Err(io::Error::other(output.text)),
    }
}

#[test]
#[ignore = "long: six minutes for SLACKWATER_KEPT_KILLS=1000"]
fn postgresql_loses_no_transaction() {
    if !Path::new(POSTGRESQL).is_dir() {
        println!("skipped: PostgreSQL is not installed");
        return;
    }
    let rig = Rig::new(&["--allow-other"]);
    let folder = rig.mountpoint.join("postgres");
    fs::create_dir(&folder).unwrap();
    assert!(Command::new("chown").arg("postgres").arg(&folder).status().unwrap().success());
    postgres(&folder, "initdb -D data > initdb.log").unwrap();
    let options = "-c listen_addresses= -c unix_socket_directories=/tmp";
    let start_it = format!("pg_ctl -D data -w -t 60 -l log -o '{options}' start < /dev/null > /dev/null 2>&1");
    postgres(&folder, &start_it).unwrap();
    postgres(&folder, "export PGHOST=/tmp; createdb bench; pgbench -q -i -s 2 bench").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let place = folder.clone();
    let mut acknowledged = 0;
    let bench = start("pgbench", &stop, move |_| {
        let output = postgres(&place, "export PGHOST=/tmp; pgbench -n -c 4 -j 2 -T 10 bench")?;
        let count = output.lines().find_map(|line| line.strip_prefix("number of transactions actually processed: "));
        acknowledged += count.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0);
        let question = "export PGHOST=/tmp; psql -qAt bench -c 'select count(*) from pgbench_history'";
        let found = postgres(&place, question)?;
        assert_eq!(found.trim(), acknowledged.to_string(), "transactions: {output}");
        Ok(())
    });
    let programs = vec![bench];
    rig.kill_many(&programs);
    finish(programs, &stop);
    let ended = postgres(
        &folder,
        "export PGHOST=/tmp; psql -qAt bench -c 'select count(*) from pgbench_history'; pg_ctl -D data -m fast -w stop",
    );
    println!("{}", ended.unwrap());
    rig.end();
}

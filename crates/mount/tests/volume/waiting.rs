//! Backends that hang or are full, and callers that wait for them or are killed.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use slackwater::Tunables;
use slackwater_fuse::PoolOptions;
use slackwater_mount::{MountedError, UmountRequest};
use slackwater_testkit::{Rule, pattern};

use crate::needs;
use crate::programs::{LONG, in_own_process, spawn, until, wait};
use crate::rig::{Rig, assert_same, new_home, within};
use crate::tenants::is_asleep_in_a_request;

/// A volume's share is half of the arena: it is full after 4 MiB.
const ARENA_BYTES: u64 = 8 << 20;

fn hung() -> Rig {
    // Its share is used up before any writer is throttled.
    let rig = Rig::with(ARENA_BYTES, Tunables { dirty_percent: 100, ..Tunables::default() });
    rig.faults.add(Rule::hold().on("write"));
    rig
}

fn dd(path: &Path, count: usize) -> Child {
    spawn("dd", &["if=/dev/zero", &format!("of={}", path.display()), "bs=1M", &format!("count={count}")])
}

fn is_parked(rig: &Rig) -> bool {
    rig.mounted.parked_bytes() > 0
}

#[test]
fn a_killed_writer_that_is_parked_exits_at_once() {
    let rig = hung();
    let mut child = dd(&rig.file("a"), 64);
    until("the write is parked", || is_parked(&rig));
    child.kill().unwrap();
    assert!(wait(&mut child).expect("the writer exits while its backend hangs").code().is_none());
    until("the rest of its payload is dropped", || !is_parked(&rig));
    rig.faults.clear();
    rig.faults.release_all();
    until("the taken bytes are written back", || rig.umount().is_ok());
    assert!(fs::metadata(rig.stored("a")).unwrap().len() >= 1 << 20);
}

#[test]
fn parked_writes_hold_no_thread_and_continue_when_frames_are_free() {
    let rig = hung();
    let wanted = pattern(1, 1 << 20);
    let writers: Vec<_> = (0..100)
        .map(|i| {
            let (path, wanted) = (rig.file(format!("{i}")), wanted.clone());
            std::thread::spawn(move || fs::write(path, wanted).unwrap())
        })
        .collect();
    until("writes are parked", || is_parked(&rig));
    // Other calls are served meanwhile.
    let path = rig.path.clone();
    within("lookups in the mount", move || {
        for _ in 0..50 {
            assert!(fs::read_dir(&path).unwrap().count() > 0);
            fs::metadata(&path).unwrap();
        }
    });
    rig.faults.clear();
    rig.faults.release_all();
    within("all writes", move || writers.into_iter().for_each(|writer| writer.join().unwrap()));
    rig.umount().unwrap();
    for i in 0..100 {
        assert_same(&fs::read(rig.stored(format!("{i}"))).unwrap(), &wanted);
    }
}

/// Calls of one volume that may wait for the backend, with the threads of [`PoolOptions::default`].
const BLOCKED_MAX: usize = 64;

#[test]
fn callers_without_a_thread_are_queued_and_released_when_killed() {
    const CALLERS: usize = BLOCKED_MAX + 20;
    let rig = Rig::new();
    // Each in its own directory: a change of a directory waits for lookups in it, and later calls wait for the change.
    for number in 0..CALLERS {
        fs::create_dir_all(rig.stored(format!("{number}/x"))).unwrap();
        fs::metadata(rig.file(number.to_string())).unwrap();
    }
    let file = File::options().read(true).write(true).create_new(true).open(rig.file("cached")).unwrap();
    file.write_all_at(b"cached", 0).unwrap();
    rig.faults.add(Rule::hold().on("lookup"));
    let look = |path: std::path::PathBuf| std::thread::spawn(move || fs::metadata(path).map(|found| found.is_dir()));
    let callers: Vec<_> = (0..CALLERS).map(|number| look(rig.file(format!("{number}/x")))).collect();
    assert_eq!(rig.faults.wait_held(BLOCKED_MAX, LONG).len(), BLOCKED_MAX);
    // A later caller, for which no thread is left, is killed.
    let mut late = spawn("stat", &[rig.file("late").to_str().unwrap()]);
    until("the caller waits", || is_asleep_in_a_request(late.id()));
    late.kill().unwrap();
    assert!(wait(&mut late).expect("a killed caller exits without a thread").code().is_none());
    within("reads that need no thread", move || {
        let mut found = [0; 6];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"cached");
        file.write_all_at(b"written", 0).unwrap();
    });
    assert_eq!(rig.faults.wait_held(BLOCKED_MAX, LONG).len(), BLOCKED_MAX, "the limit of blocked calls");
    let soon = UmountRequest { deadline: Some(Duration::from_millis(300)), ..UmountRequest::default() };
    let error = rig.mounted.umount(soon, &|_| {}).unwrap_err();
    assert!(matches!(error, MountedError::Busy { .. } | MountedError::Deadline { .. }), "{error}");
    rig.faults.clear();
    rig.faults.release_all();
    within("all callers", move || callers.into_iter().for_each(|caller| assert!(caller.join().unwrap().unwrap())));
    rig.umount().unwrap();
    assert_eq!(fs::read(rig.stored("cached")).unwrap(), b"written");
}

#[test]
fn parked_payload_is_bounded_and_written() {
    /// The limit in `worker.rs`.
    const VOLUME_BYTES: usize = 64 << 20;
    const KEPT_BYTES: usize = 64 << 10;
    const WRITERS: usize = 90;
    let rig = hung();
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let path = rig.file(number.to_string());
            std::thread::spawn(move || fs::write(path, pattern(number as u64, 1 << 20)).unwrap())
        })
        .collect();
    let full = VOLUME_BYTES - (1 << 20);
    let mut most = 0;
    until("the limit of parked payload is reached", || {
        most = most.max(rig.mounted.parked_bytes());
        most > full
    });
    // No payload is kept twice, and the excess is cut off.
    for _ in 0..100 {
        most = most.max(rig.mounted.parked_bytes());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(most <= VOLUME_BYTES + WRITERS * KEPT_BYTES, "{most}");
    rig.faults.clear();
    rig.faults.release_all();
    within("all writes", move || writers.into_iter().for_each(|writer| writer.join().unwrap()));
    // A writer is answered before its payload is freed.
    until("no write is parked any more", || !is_parked(&rig));
    rig.umount().unwrap();
    for number in 0..WRITERS {
        assert_same(&fs::read(rig.stored(number.to_string())).unwrap(), &pattern(number as u64, 1 << 20));
    }
}

/// Over io_uring, the payload of each waiting write stayed in the entry of its request, and the memory of the entry was
/// never given back. So a program with many threads made the process of the mount as large as it liked.
#[test]
fn p08_waiting_writes_and_those_before_take_no_more_memory_than_is_kept_of_payloads() {
    in_own_process(
        "waiting::p08_waiting_writes_and_those_before_take_no_more_memory_than_is_kept_of_payloads",
        wait_with_payloads,
    );
}

fn wait_with_payloads() {
    /// The limits in `worker.rs`, and in `ring/mod.rs` for entries.
    const VOLUME_BYTES: u64 = 64 << 20;
    const KEPT_BYTES: u64 = 64 << 10;
    const ENTRY_BYTES: u64 = 64 << 20;
    /// Memory for stacks and everything else.
    const MORE: u64 = 48 << 20;
    const WRITERS: u64 = 400;
    let resident = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    let rig = hung();
    let payload = std::sync::Arc::new(pattern(1, 1 << 20));
    let before = resident();
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let (path, payload) = (rig.file(number.to_string()), payload.clone());
            std::thread::spawn(move || fs::write(path, &*payload).unwrap())
        })
        .collect();
    // Some are within the share, and some are being tried.
    until("the others wait", || rig.mounted.parked_writes() as u64 > WRITERS - 40);
    until("little more than the kept payloads is in memory", || {
        resident() < before + VOLUME_BYTES + WRITERS * KEPT_BYTES + MORE
    });
    rig.faults.clear();
    rig.faults.release_all();
    within("all writes", move || writers.into_iter().for_each(|writer| writer.join().unwrap()));
    until("the memory is given back", || resident() < before + ENTRY_BYTES + MORE);
    rig.umount().unwrap();
    for number in 0..WRITERS {
        assert_same(&fs::read(rig.stored(number.to_string())).unwrap(), &payload);
    }
}

/// Runs python in the mount until it blocks in a call of this kind.
fn held_in(rig: &Rig, call: &'static str, statement: &str) -> Child {
    let held = rig.faults.held().len();
    rig.faults.add(Rule::hold().on(call));
    let handler = "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)";
    let child = spawn("python3", &["-I", "-c", &format!("{handler}\nos.chdir({:?})\n{statement}", rig.path)]);
    assert_eq!(rig.faults.wait_held(held + 1, LONG).len(), held + 1, "{call}");
    child
}

#[test]
fn a_killed_caller_without_a_change_exits_while_its_call_hangs() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    let rig = Rig::new();
    for (call, statement) in [("lookup", "os.stat('b')"), ("statfs", "os.statvfs('.')")] {
        let mut child = held_in(&rig, call, statement);
        child.kill().unwrap();
        assert!(wait(&mut child).unwrap_or_else(|| panic!("{call} hangs")).code().is_none());
        rig.faults.clear();
        rig.faults.release_all();
    }
    // The calls completed without their callers, and their handles and lookups were taken back.
    until("no handle or lookup is left", || rig.umount().is_ok());
}

#[test]
fn a_change_that_a_killed_caller_began_is_made_before_it_exits() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    let rig = Rig::new();
    for name in ["removed", "moved", "protected", "emptied"] {
        fs::write(rig.file(name), b"old").unwrap();
    }
    rig.mounted.sync().unwrap();
    let (path, stored) = (|name: &str| rig.file(name), |name: &str| rig.stored(name));
    let is_there = |name: &str| {
        assert_eq!(path(name).exists(), stored(name).exists(), "the mount and the source differ in {name}");
        stored(name).exists()
    };
    let mode = |name: &str| fs::metadata(path(name)).unwrap().permissions().mode() & 0o777;
    let changes: [(&'static str, &str, &dyn Fn() -> bool); 6] = [
        ("make", "os.mkdir('directory')", &|| is_there("directory")),
        ("make", "open('file', 'w')", &|| is_there("file")),
        ("remove", "os.unlink('removed')", &|| !is_there("removed")),
        ("rename", "os.rename('moved', 'there')", &|| !is_there("moved") && is_there("there")),
        ("setattr", "os.chmod('protected', 0o400)", &|| mode("protected") == 0o400),
        ("setattr", "open('emptied', 'w')", &|| fs::metadata(path("emptied")).unwrap().len() == 0),
    ];
    for (call, statement, is_done) in changes {
        let mut child = held_in(&rig, call, statement);
        child.kill().unwrap();
        let status = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(200));
                rig.faults.clear();
                rig.faults.release_all();
            });
            let status = wait(&mut child);
            assert!(is_done(), "the caller exited before its change: {statement}");
            status
        });
        assert!(status.expect("it dies").code().is_none());
    }
    rig.umount().unwrap();
}

#[test]
fn a_change_that_a_killed_caller_has_not_begun_is_never_made() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    let rig = Rig::new();
    fs::write(rig.file("a"), b"a").unwrap();
    fs::set_permissions(rig.file("a"), Permissions::from_mode(0o644)).unwrap();
    let statements = format!("a = os.open({:?}, os.O_RDWR)\ninput('.')\nprint('.', flush=True)", rig.file("a"));
    let program = format!("import os\n{statements}\nos.fchmod(a, 0)");
    let mut command = Command::new("python3");
    let mut child = command.args(["-I", "-c", &program]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    output.read_exact(&mut [0; 1]).unwrap();
    rig.faults.add(Rule::hold().on("statfs"));
    let most = PoolOptions::default().blocked_max;
    std::thread::scope(|scope| {
        for _ in 0..most {
            scope.spawn(|| rustix::fs::statvfs(&rig.path).unwrap());
        }
        assert_eq!(rig.faults.wait_held(most, LONG).len(), most, "the limit of blocked calls is reached");
        input.write_all(b"\n").unwrap();
        output.read_exact(&mut [0; 1]).unwrap();
        // Gives the request time to arrive.
        std::thread::sleep(Duration::from_millis(200));
        child.kill().unwrap();
        let status = wait(&mut child);
        rig.faults.clear();
        rig.faults.release_all();
        assert!(status.expect("the caller exits while its change is queued").code().is_none());
    });
    rig.umount().unwrap();
    assert_eq!(fs::metadata(rig.stored("a")).unwrap().permissions().mode() & 0o777, 0o644);
}

/// How long the kernel caches attributes and names, as set by the volume.
const VALID: Duration = Duration::from_secs(1);

#[test]
fn a_killed_caller_exits_before_a_change_that_hangs_for_long_and_the_kernel_is_notified_of_the_change() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    // On a very busy machine the kernel's cached attributes may have expired.
    assert!((0..6).any(|_| changes_without_callers() < VALID), "changes show only when the kernel's cache expires");
}

/// The time from when the kernel cached attributes, while changes of killed callers hung, until the mount shows the
/// changes.
fn changes_without_callers() -> Duration {
    let rig = Rig::new();
    // Each in its own directory, which the change locks.
    for name in ["removed/a", "moved/a", "linked/a"] {
        fs::create_dir(rig.file(name).parent().unwrap()).unwrap();
        fs::write(rig.file(name), b"a").unwrap();
    }
    fs::create_dir(rig.file("made")).unwrap();
    rig.mounted.sync().unwrap();
    let mut children = [
        held_in(&rig, "make", "os.mkdir('made/new')"),
        held_in(&rig, "remove", "os.unlink('removed/a')"),
        held_in(&rig, "rename", "os.rename('moved/a', 'moved/b')"),
        held_in(&rig, "link", "os.link('linked/a', 'linked/b')"),
    ];
    children.iter_mut().for_each(|child| child.kill().unwrap());
    for mut child in children {
        assert!(wait(&mut child).expect("the caller exits while its change hangs").code().is_none());
    }
    let seen = |path: &Path| {
        let names = ["made/new", "removed/a", "moved/a", "moved/b", "linked/b"];
        (names.map(|name| path.join(name).exists()), fs::metadata(path.join("linked/a")).unwrap().nlink())
    };
    let cached_at = Instant::now();
    assert_eq!(seen(&rig.path), ([false, true, true, false, false], 1));
    rig.faults.clear();
    rig.faults.release_all();
    // The changes were made without their callers, and their handles and lookups were taken back.
    let made = ([true, false, false, true, true], 2);
    until("the changes are made", || seen(&rig.source) == made);
    until("the changes are visible", || seen(&rig.path) == made);
    let elapsed = cached_at.elapsed();
    until("no handle or lookup is left", || rig.umount().is_ok());
    elapsed
}

#[test]
fn a_nonfatal_signal_interrupts_no_call_but_a_later_kill_does() {
    if needs::are_missing(&["python3"]) {
        return;
    }
    let rig = Rig::new();
    let mut child = held_in(&rig, "lookup", "os.stat('b')");
    kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none(), "the caller still waits");
    child.kill().unwrap();
    assert!(wait(&mut child).expect("a caller that was interrupted before can be killed").code().is_none());
}

#[test]
fn a_full_source_is_reported_by_write_and_loses_nothing() {
    let home = new_home();
    let source = home.join("source");
    fs::create_dir(&source).unwrap();
    let small = std::ffi::CString::new("size=4m").unwrap();
    rustix::mount::mount("tmpfs", &source, "tmpfs", rustix::mount::MountFlags::empty(), small.as_c_str()).unwrap();
    let unmount = scopeguard(source.clone());
    let rig = Rig::over(home, source, 32 << 20, Tunables::default());
    let file = File::create(rig.file("a")).unwrap();
    let mut taken = 0;
    let error = loop {
        match file.write_at(&pattern(1, 1 << 20)[..], taken) {
            Ok(bytes) => taken += bytes as u64,
            Err(error) => break error,
        }
        assert!(taken < 100 << 20, "a source of 4 MiB took {taken} bytes");
    };
    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    assert!(taken >= 2 << 20, "{taken}");
    file.sync_all().unwrap();
    assert_eq!(fs::metadata(rig.stored("a")).unwrap().len(), taken);
    drop(file);
    fs::remove_file(rig.file("a")).unwrap();
    until("the closed file has left its space", || fs::write(rig.file("b"), pattern(2, 1 << 20)).is_ok());
    rig.umount().unwrap();
    assert_same(&fs::read(rig.stored("b")).unwrap(), &pattern(2, 1 << 20));
    drop(rig);
    drop(unmount);
}

/// Unmounts the tmpfs at the end, whatever happens.
fn scopeguard(path: std::path::PathBuf) -> impl Drop {
    struct Guard(std::path::PathBuf);
    impl Drop for Guard {
        fn drop(&mut self) {
            let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
            let _ = fs::remove_dir(&self.0);
            let _ = fs::remove_dir(self.0.parent().unwrap());
        }
    }
    Guard(path)
}

#[test]
fn a_failed_write_back_is_reported_by_close_and_fsync_and_the_data_is_kept() {
    // The flusher does not try again by itself: that would be another error for the second fsync.
    let hour = Duration::from_secs(3600);
    let rig = Rig::with(32 << 20, Tunables { retry_min: hour, retry_max: hour, ..Tunables::default() });
    let file = File::create(rig.file("a")).unwrap();
    let rule = rig.faults.add(Rule::fail(slackwater::ErrorKind::Io).on("write"));
    file.write_all_at(&pattern(3, 10_000), 0).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    rig.faults.remove(rule);
    file.sync_all().unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(3, 10_000));
}

/// `close` reports an error to a program that checks its result; when a child exits, the result is ignored.
#[test]
fn p02_a_close_whose_result_is_ignored_hides_no_error() {
    let rig = Rig::new();
    let path = rig.file("a");
    // Opens the file for writing, writes nothing, and checks the result of close.
    let look = || {
        let to = format!("of={}", path.display());
        wait(&mut spawn("dd", &["if=/dev/null", &to, "conv=notrunc"])).unwrap().success()
    };
    let file = File::create(&path).unwrap();
    let rule = rig.faults.add(Rule::fail(slackwater::ErrorKind::Io).on("write"));
    file.write_all_at(&pattern(3, 10_000), 0).unwrap();
    rig.mounted.sync().unwrap_err();
    rig.faults.remove(rule);
    // A child that inherits the descriptor and exits.
    assert!(Command::new("true").stdin(file.try_clone().unwrap()).status().unwrap().success());
    assert!([look(), look()] == [false, false], "closes report the error until an fsync does");
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    file.sync_all().unwrap();
    assert!(look(), "a reported error is not reported again");
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(3, 10_000));
}

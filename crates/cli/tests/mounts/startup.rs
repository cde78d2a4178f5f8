//! Starts that fail, are interrupted, or inherit descriptors that they must not keep.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::mount::{MountFlags, mount};
use rustix::process::Signal;

use crate::rig::{Process, Scratch, need_fuse, run, wait_until};

fn is_mounted(mountpoint: &Path) -> bool {
    fs::read_to_string("/proc/self/mounts").unwrap().contains(mountpoint.to_str().unwrap())
}

/// A mount in the background that can be interrupted.
fn background(scratch: &Scratch, source: &Path, mountpoint: &Path, more: &[&str]) -> Command {
    let arena = scratch.arena("a");
    let mut words = vec!["mount", "--background", "--arena", arena.to_str().unwrap()];
    words.extend(more);
    words.extend([source.to_str().unwrap(), mountpoint.to_str().unwrap()]);
    scratch.command(words)
}

/// Names in the registry that belong to a process.
fn registered(scratch: &Scratch) -> Vec<String> {
    let names = fs::read_dir(scratch.path.join("run")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "lock").collect()
}

#[test]
fn interrupting_the_command_ends_the_start_and_leaves_nothing() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mut interrupted = 0;
    for run in 0..24 {
        let mut command = background(&scratch, &source, &mountpoint, &["--cache", "64MiB"]);
        let mut starter = Process::spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        // The new process holds the pipe until it detaches.
        let mut stderr = starter.0.stderr.take().unwrap();
        let closed = thread::spawn(move || stderr.read_to_end(&mut Vec::new()).unwrap());
        thread::sleep(Duration::from_millis(run * 7));
        starter.signal([Signal::KILL, Signal::TERM, Signal::INT][run as usize % 3]);
        interrupted += u32::from(starter.wait().signal().is_some());
        wait_until("the new process has detached or ended", || closed.is_finished());
        // It may just have detached, and it may be unmounting.
        let ended = scratch.run_when_free(["umount", mountpoint.to_str().unwrap()]);
        assert!(matches!(ended.code, Some(0 | 3 | 5)), "run {run}: {}", ended.text);
        wait_until("everything is released", || !is_mounted(&mountpoint) && !scratch.arena("a").exists());
        assert!(fs::read_dir(&mountpoint).unwrap().next().is_none(), "run {run}");
    }
    assert!(interrupted > 0);
}

#[test]
fn a_background_mount_keeps_no_descriptor_of_its_starter() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let command = background(&scratch, &source, &mountpoint, &["--cache", "32MiB"]);
    let lock = scratch.path.join("script.lock");
    let mut script = Command::new("sh");
    script.args(["-c", "exec 9>\"$0\"; flock 9; exec \"$@\""]).arg(&lock).arg(command.get_program());
    script.args(command.get_args()).env("SLACKWATER_RUNTIME_DIR", scratch.path.join("run")).stdin(Stdio::null());
    run(script).expect(0, &["Mounted"]);
    flock(File::open(&lock).unwrap(), FlockOperation::NonBlockingLockExclusive).unwrap();
    scratch.umount(&mountpoint);
}

#[test]
fn starts_that_fail_and_mounts_that_are_killed_leave_no_empty_log() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let not_memory = scratch.path.join("arena");
    let words = ["mount", "--background", "--arena", not_memory.to_str().unwrap()];
    let places = [source.to_str().unwrap(), mountpoint.to_str().unwrap()];
    scratch.run(words.iter().chain(&places)).expect(2, &["an arena is memory"]);
    assert!(registered(&scratch).is_empty(), "{:?}", registered(&scratch));

    run(background(&scratch, &source, &mountpoint, &["--cache", "32MiB"])).expect(0, &[]);
    let entry = registered(&scratch).into_iter().find(|name| name.ends_with(".json")).unwrap();
    let pid = entry.trim_end_matches(".json").parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    wait_until("it is dead", || !Path::new(&format!("/proc/{pid}")).exists());
    run(background(&scratch, &source, &mountpoint, &["--cache", "32MiB"])).expect(0, &[]);
    let left = registered(&scratch);
    assert!(left.iter().all(|name| !name.starts_with(&format!("{pid}."))), "{left:?}");
    scratch.umount(&mountpoint);
    // The answer is sent just before the process ends.
    wait_until("its files are gone", || registered(&scratch).is_empty());
}

#[test]
fn a_signal_ends_the_allocation_of_the_cache() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let memory = scratch.dir("memory", 0o755);
    mount("none", &memory, "tmpfs", MountFlags::empty(), c"size=3g").unwrap();
    let arena = memory.join("arena");
    let words = ["mount", "--cache", "2GiB", "--arena", arena.to_str().unwrap()];
    let places = [source.to_str().unwrap(), mountpoint.to_str().unwrap()];
    let used = || {
        let space = rustix::fs::statvfs(&memory).unwrap();
        (space.f_blocks - space.f_bfree) * space.f_frsize
    };
    for signal in [Signal::INT, Signal::TERM] {
        // On a busy machine the cache may be complete before the signal arrives. Then it is mounted, and the signal
        // unmounts it.
        let met = (0..20).any(|_| {
            let mut command = scratch.command(words.iter().chain(&places));
            let mut process = Process::spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()));
            wait_until("part of it is allocated", || used() > 0);
            process.signal(signal);
            let code = process.wait().code();
            let mut said = String::new();
            process.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert!(!arena.exists() && !is_mounted(&mountpoint) && registered(&scratch).is_empty());
            wait_until("its memory is freed", || used() == 0);
            code == Some(1) && said.contains("Interrupted before it was mounted")
        });
        assert!(met, "{signal:?} arrives too late every time");
    }
}

#[test]
fn an_impossible_arena_is_refused_and_leaves_nothing() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let [from, to] = [&source, &mountpoint].map(|path| path.to_str().unwrap());
    scratch
        .run(["mount", from, to, "--cache", "32MiB", "--arena", "/dev/shm"])
        .expect(2, &["is a directory", "name a file"]);
    // Refused before the memory is allocated.
    let memory = scratch.dir("memory", 0o755);
    mount("none", &memory, "tmpfs", MountFlags::empty(), c"size=64m").unwrap();
    let arena = memory.join("arena");
    let refused = scratch.run(["mount", from, to, "--cache", "128MiB", "--arena", arena.to_str().unwrap()]);
    refused.expect(1, &["does not have", "that this cache needs"]);
    assert!(!arena.exists());
    let mount = scratch.mount(&source, &mountpoint, &[]);
    scratch.umount(&mountpoint);
    drop(mount);
}

//! The end of a kept mount whose server was killed while its source hung: no other server can start before the source answers.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};

use super::kept::Kept;
use super::process::is_mounted;
use crate::rig::{Process, Scratch, need_fuse, run, wait_until};

/// An ext4 in a file, which can be frozen: calls that change it wait then, and no signal ends them.
struct Disk {
    image: PathBuf,
    path: PathBuf,
}

impl Disk {
    fn new(scratch: &Scratch) -> Self {
        let (image, path) = (scratch.arena("disk"), scratch.dir("disk", 0o755));
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        shell(&["mkfs.ext4", "-q", "-F", image.to_str().unwrap()]);
        shell(&["mount", "-o", "loop", image.to_str().unwrap(), path.to_str().unwrap()]);
        Self { image, path }
    }

    fn freeze(&self) {
        shell(&["fsfreeze", "-f", self.path.to_str().unwrap()]);
    }

    fn thaw(&self) {
        shell(&["fsfreeze", "-u", self.path.to_str().unwrap()]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for words in [&["fsfreeze", "-u"][..], &["umount", "-l"]] {
            let _ = Command::new(words[0]).args(&words[1..]).arg(&self.path).stderr(Stdio::null()).status();
        }
        let _ = fs::remove_file(&self.image);
    }
}

#[track_caller]
fn shell(words: &[&str]) {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    run(command).expect(0, &[]);
}

/// Whether a thread of the process waits for a frozen file system. Kernel: `percpu_rwsem_wait`.
fn is_held(process: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).into_iter().flatten().flatten();
    let mut places = tasks.map(|task| fs::read_to_string(task.path().join("wchan")).unwrap_or_default());
    places.any(|place| place.contains("percpu_rwsem_wait"))
}

/// A kept mount whose server is dead and waits for the frozen source, and a program that waits for the mount. The last word
/// that the program wrote is in the cache alone.
fn held_up() -> HeldUp {
    need_fuse();
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch);
    let (source, mountpoint) = (disk.path.join("source"), scratch.dir("a-mount", 0o755));
    fs::create_dir(&source).unwrap();
    let kept = Kept::of(scratch, source, mountpoint, &["--dirty-expire", "1h"]);
    let path = kept.mountpoint.join("file");
    fs::write(&path, "old").unwrap();
    kept.run(&["sync"]).expect(0, &[]);
    // It opens the file before, because that may change the source. Another process has it open: each child of one that has
    // closes a copy, and waits for the mount.
    let mut program = Command::new("sh");
    program.args(["-c", r#"exec 3<> "$0"; echo; read -r _; printf new >&3; echo; exec sync "$0""#]).arg(&path);
    let mut syncing = Process::spawn(program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()));
    let mut steps = BufReader::new(syncing.0.stdout.take().unwrap()).lines();
    steps.next().unwrap().unwrap();
    disk.freeze();
    drop(syncing.0.stdin.take());
    steps.next().unwrap().unwrap();
    let server = kept.server(None);
    wait_until("the server waits for its source", || is_held(server));
    kill_process(server, Signal::KILL).unwrap();
    HeldUp { disk, kept, syncing }
}

/// The result of [`held_up`]. It is dropped in this order: a frozen disk cannot be unmounted.
struct HeldUp {
    disk: Disk,
    kept: Kept,
    syncing: Process,
}

impl HeldUp {
    /// The calls of programs fail, and the keeper ends. After the source answers, the next mount writes the data back: in place,
    /// or in a file of its own if the last call of the dead server has changed the time of the file.
    #[track_caller]
    fn check_that_nothing_is_lost(mut self) {
        assert_ne!(self.syncing.wait().code(), Some(0), "the sync fails");
        // The dead server has the pipes of its output still.
        assert_eq!(self.kept.mount.process.wait().code(), Some(7));
        self.kept.mount.wait_said("is given up", 1);
        assert!(!is_mounted(&self.kept.mountpoint));
        self.disk.thaw();
        let kept = &self.kept;
        kept.scratch.status_after_death().expect(0, &["which died"]);
        let again = kept.scratch.mount(&kept.source, &kept.mountpoint, &[]);
        kept.scratch.umount(&kept.mountpoint);
        drop(again);
        let files = fs::read_dir(&kept.source).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
        let contents: Vec<_> = files.collect();
        assert!(contents.iter().any(|content| content == "new"), "{contents:?}");
    }
}

/// The command waited for an answer that no process could give, and programs waited for the source.
#[test]
fn p03_a_forced_unmount_ends_at_its_deadline_while_the_source_holds_a_dead_server() {
    let held = held_up();
    let forced = held.kept.run(&["umount", "--force", "--deadline", "1s"]);
    forced.expect(7, &["is unmounted", "has died", "is kept in"]);
    assert!(!is_mounted(&held.kept.mountpoint));
    held.check_that_nothing_is_lost();
}

/// The keeper took no signal while it waited for the source.
#[test]
fn p03_signals_end_a_mount_while_the_source_holds_a_dead_server() {
    let held = held_up();
    let (kept, keeper) = (&held.kept, held.kept.keeper());
    wait_until("the keeper waits for the source", || kept.mount.said("waiting for the source") == 1);
    for _ in 0..3 {
        assert!(is_mounted(&kept.mountpoint));
        kept.mount.process.signal(Signal::INT);
        wait_until("the keeper has taken the signal", || !is_pending(keeper));
    }
    kept.mount.wait_said("Press Ctrl-C again", 1);
    held.check_that_nothing_is_lost();
}

/// A dead process has descriptors of connections that have ended, and the kernel gives their numbers to the next mounts. The
/// command that ended such a process also ended those mounts.
#[test]
fn p09_a_dead_process_ends_no_other_mount_that_has_the_number_of_its_own() {
    need_fuse();
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch);
    let (source, mountpoint) = (disk.path.join("source"), scratch.dir("held", 0o755));
    fs::create_dir(&source).unwrap();
    let mut held = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    let number = device(&mountpoint);
    fs::write(mountpoint.join("file"), "old").unwrap();
    disk.freeze();
    let sync = Process::spawn(scratch.command(["sync", mountpoint.to_str().unwrap()]).stderr(Stdio::null()));
    let dead = Pid::from_child(&held.process.0);
    wait_until("the process waits for its source", || is_held(dead));
    kill_process(dead, Signal::KILL).unwrap();
    drop(sync);
    unmount(&mountpoint, UnmountFlags::DETACH).unwrap();

    let (other_source, other) = scratch.pair("other");
    fs::write(other_source.join("file"), "other").unwrap();
    let mut mounted = None;
    wait_until("a mount has the number", || {
        if !is_next(&scratch, number) {
            return false;
        }
        let next = scratch.mount(&other_source, &other, &[]);
        if device(&other) != number {
            scratch.umount(&other);
            return false;
        }
        mounted = Some(next);
        true
    });
    let status = scratch.run(["status"]);
    assert!(is_held(dead), "it is still there: {}", status.text);
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "other");
    scratch.umount(&other);
    drop(mounted);
    disk.thaw();
    held.process.wait();
    scratch.status_after_death().expect(0, &["which died"]);
    let again = scratch.mount(&source, &mountpoint, &[]);
    assert_eq!(fs::read_to_string(mountpoint.join("file")).unwrap(), "old");
    scratch.umount(&mountpoint);
    drop(again);
}

fn device(path: &Path) -> u64 {
    fs::metadata(path).unwrap().dev()
}

/// Lets other mounts have all lower numbers that are free. Returns whether the next mount gets `number`, if no test mounts
/// meanwhile.
fn is_next(scratch: &Scratch, number: u64) -> bool {
    static PLACES: AtomicU32 = AtomicU32::new(0);
    loop {
        let place = scratch.dir(&format!("number-{}", PLACES.fetch_add(1, Ordering::Relaxed)), 0o755);
        mount("none", &place, "tmpfs", MountFlags::empty(), None).unwrap();
        let found = device(&place);
        if found >= number {
            unmount(&place, UnmountFlags::empty()).unwrap();
            return found == number;
        }
    }
}

/// Whether a signal waits for the process.
fn is_pending(process: Pid) -> bool {
    let path = format!("/proc/{}/status", process.as_raw_nonzero());
    let status = fs::read_to_string(Path::new(&path)).unwrap_or_default();
    status.lines().any(|line| line.starts_with("ShdPnd:") && !line.ends_with("0000000000000000"))
}

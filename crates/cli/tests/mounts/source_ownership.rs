//! A source has one owner, across processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use rustix::process::Signal;
use slackwater::backend::MemBackend;
use slackwater::{Engine, Tunables};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::SystemClock;
use slackwater_fuse::mount::MountOptions;
use slackwater_fuse::{Pool, PoolOptions};
use slackwater_mount::{MountedVolume, UmountRequest};
use slackwater_testkit::{Fault, FaultControl, Rule};

use crate::bytes;
use crate::needs;
use crate::rig::{Mount, Process, Scratch, need_fuse, wait_until};

#[test]
fn the_same_source_its_parent_and_its_child_are_refused_with_the_owner() {
    need_fuse();
    let scratch = Scratch::new();
    let (parent, mountpoint) = scratch.pair("a");
    let source = parent.join("source");
    let child = source.join("child");
    fs::create_dir_all(&child).unwrap();
    let other = scratch.dir("other", 0o755);
    let other = other.to_str().unwrap();
    let mount = scratch.mount(&source, &mountpoint, &[]);
    let pid = format!("pid {}", mount.process.0.id());
    for (path, words) in [(&source, "is already mounted at"), (&child, "is inside"), (&parent, "contains")] {
        let refused = scratch.run(["mount", path.to_str().unwrap(), other, "--dirty-ratio", "33"]);
        refused.expect(3, &[words, &pid, mountpoint.to_str().unwrap(), "slackwater umount"]);
    }
    // The mount point is taken as well.
    let apart = scratch.dir("apart", 0o755);
    let taken = ["mount", apart.to_str().unwrap(), mountpoint.to_str().unwrap()];
    scratch.run(taken).expect(3, &["is already a mount point", "fuse.slackwater"]);
    // On the mount itself the source would be hidden.
    let on_itself = mountpoint.join("child");
    scratch
        .run(["mount", on_itself.to_str().unwrap(), mountpoint.to_str().unwrap()])
        .expect(2, &["inside the mount point"]);
    // Another user's registry does not list it; the lock reveals it.
    let elsewhere = scratch.dir("elsewhere", 0o700);
    let mut command = scratch.command(["mount", source.to_str().unwrap(), other]);
    command.env("SLACKWATER_RUNTIME_DIR", &elsewhere);
    crate::rig::run(command).expect(3, &["is locked by", &pid]);
    // The lock is not on the parent or the child; the kernel's mount table reveals them.
    for path in [&child, &parent] {
        let mut command = scratch.command(["mount", path.to_str().unwrap(), other]);
        command.env("SLACKWATER_RUNTIME_DIR", &elsewhere);
        crate::rig::run(command).expect(3, &["overlaps", "another user mounted at", mountpoint.to_str().unwrap()]);
    }
    // A sibling directory is not affected.
    let brother = parent.join("brother");
    fs::create_dir(&brother).unwrap();
    let second = scratch.mount(&brother, &apart, &[]);
    scratch.umount(&apart);
    drop(second);
    scratch.umount(&mountpoint);
}

/// Through a bind mount a directory has another parent; only its place in the file system is the same.
#[test]
fn a_bind_mount_of_a_part_of_a_source_is_refused() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let (part, bound, other) = (source.join("sub/part"), scratch.dir("bound", 0o755), scratch.dir("other", 0o755));
    fs::create_dir_all(&part).unwrap();
    mount_bind(source.join("sub"), &bound).unwrap();
    let paths = [bound.clone(), bound.join("part")];
    let first = scratch.mount(&source, &mountpoint, &[]);
    for path in &paths {
        scratch.run([Path::new("mount"), path, &other]).expect(3, &["is inside", mountpoint.to_str().unwrap()]);
    }
    scratch.umount(&mountpoint);
    drop(first);
    // In the other order.
    let first = scratch.mount(&bound.join("part"), &mountpoint, &[]);
    scratch.run([Path::new("mount"), &source, &other]).expect(3, &["contains", mountpoint.to_str().unwrap()]);
    scratch.run([Path::new("mount"), &source.join("sub"), &other]).expect(3, &["contains"]);
    scratch.umount(&mountpoint);
    drop(first);
}

/// Data that a dead mount left is older than what the next one makes durable.
#[test]
fn data_of_a_dead_mount_is_written_back_before_a_parent_or_child_is_mounted() {
    need_fuse();
    let scratch = Scratch::new();
    let (parent, first_point) = scratch.pair("a");
    let child = parent.join("child");
    fs::create_dir(&child).unwrap();
    let second_point = scratch.dir("second", 0o755);
    let both = [(child.clone(), parent.clone(), "child/file"), (parent.clone(), child.clone(), "file")];
    for (seed, (first, second, name)) in (0..).zip(both) {
        let (old, new) = (bytes(2 * seed, 9000), bytes(2 * seed + 1, 9000));
        let mut dying = scratch.mount(&first, &first_point, &["--dirty-expire", "1h"]);
        let below = if first == child { "file" } else { "child/file" };
        // Not truncated: the close of a truncated file starts write-back.
        let file = fs::File::options().write(true).create(true).truncate(false).open(first_point.join(below)).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &old, 0).unwrap();
        drop(file);
        dying.kill();
        drop(dying);
        let mut next = scratch.mount(&second, &second_point, &["--dirty-expire", "1h"]);
        next.wait_said("died with unwritten data: writing it back", 1);
        assert!(fs::read(second_point.join(name)).unwrap() == old, "it was written back first");
        let file = fs::File::create(second_point.join(name)).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &new, 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        next.kill();
        drop(next);
        let again = scratch.mount(&first, &first_point, &[]);
        assert!(fs::read(first_point.join(below)).unwrap() == new, "older data overwrote newer data");
        scratch.umount(&first_point);
        drop(again);
        assert!(fs::read(child.join("file")).unwrap() == new);
    }
}

/// XFS uses the device number as its id, and so does the next file system on that device.
#[test]
fn another_file_system_on_the_same_device_is_another_source() {
    need_fuse();
    if needs::are_missing(&["mkfs.xfs"]) {
        return;
    }
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let image = scratch.arena("image");
    let shell = |words: &[&str]| {
        let mut command = std::process::Command::new(words[0]);
        command.args(&words[1..]).output().is_ok_and(|output| output.status.success())
    };
    let [image, path] = [&image, &source].map(|path| path.to_str().unwrap());
    let mut device = None;
    for nth in 0..2 {
        let _ = fs::remove_file(image);
        fs::File::create(image).unwrap().set_len(320 << 20).unwrap();
        if !shell(&["mkfs.xfs", "-q", "-f", image]) || !shell(&["mount", "-o", "loop,nouuid", image, path]) {
            return needs::skip("XFS cannot be mounted here");
        }
        let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = text.lines().find(|line| line.contains(path)).unwrap().split(' ').nth(2).unwrap().to_owned();
        fs::write(source.join("file"), "as it was").unwrap();
        if nth == 0 {
            let mut dying = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
            fs::write(mountpoint.join("file"), bytes(1, 9000)).unwrap();
            dying.kill();
            drop(dying);
            assert!(shell(&["umount", path]));
            device = Some(own);
        } else if device.as_ref() == Some(&own) {
            let arena = scratch.arena("a-mount");
            let words =
                ["mount", path, mountpoint.to_str().unwrap(), "--cache", "32MiB", "--arena", arena.to_str().unwrap()];
            scratch.run(words).expect(1, &["of another source"]);
            scratch.run(&words[..5]).expect(1, &["unwritten", "is a different directory now"]);
            assert_eq!(fs::read(source.join("file")).unwrap(), b"as it was");
        } else {
            needs::skip("another test has taken the loop device meanwhile");
        }
    }
}

#[test]
fn a_waiting_mount_gets_the_source_once_it_is_free() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let other = scratch.dir("other", 0o755);
    let mut first = scratch.mount(&source, &mountpoint, &[]);
    fs::write(mountpoint.join("file"), bytes(1, 1 << 20)).unwrap();
    let arena = scratch.arena("second");
    let mut words = vec!["mount", "--wait", "--cache", "32MiB", "--arena", arena.to_str().unwrap()];
    words.extend([source.to_str().unwrap(), other.to_str().unwrap()]);
    let command = scratch.command(words);
    let second = std::thread::spawn({
        let other = other.clone();
        move || Mount::start(command, &other)
    });
    first.process.signal(Signal::TERM);
    first.wait().expect(0, &[]);
    let second = second.join().unwrap();
    assert!(fs::read(other.join("file")).unwrap() == bytes(1, 1 << 20));
    scratch.umount(&other);
    drop(second);
}

#[test]
fn an_arena_of_another_source_or_another_mount_is_not_taken() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let (second_source, second_mountpoint) = scratch.pair("b");
    let arena = scratch.arena("shared");
    let arena = arena.to_str().unwrap();
    let mut first = scratch.mount(&source, &mountpoint, &["--arena", arena, "--dirty-expire", "1h"]);
    fs::write(mountpoint.join("file"), bytes(7, 300_000)).unwrap();
    let words = ["mount", "--arena", arena, second_source.to_str().unwrap(), second_mountpoint.to_str().unwrap()];
    scratch.run(words).expect(3, &["in use by another process"]);
    first.kill();
    scratch.run(words).expect(1, &["of another source", "mount that source"]);
    assert!(fs::metadata(arena).unwrap().permissions().mode() & 0o777 == 0o600);
    // A mount of the right source takes it over, even with another cache size.
    let second = scratch.mount(&source, &mountpoint, &["--arena", arena, "--cache", "32MiB"]);
    assert!(fs::read(source.join("file")).unwrap() == bytes(7, 300_000), "it is there before the mount");
    scratch.umount(&mountpoint);
    drop(second);
}

/// A file system without its own device, such as FUSE, has another number each time it is mounted.
#[test]
fn an_arena_of_a_remounted_source_is_refused_with_advice() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let mount_anew = || mount("tmpfs", &source, "tmpfs", MountFlags::empty(), None).unwrap();
    mount_anew();
    let mut first = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    fs::write(mountpoint.join("file"), bytes(7, 300_000)).unwrap();
    first.kill();
    mount_anew();
    let arena = scratch.arena("a-mount");
    let arena = arena.to_str().unwrap();
    let words = ["mount", "--arena", arena, source.to_str().unwrap(), mountpoint.to_str().unwrap()];
    let away = format!("mv {arena} {arena}.bad");
    scratch.run(words).expect(1, &["of another source", "remounted", &away]);
    let elsewhere = scratch.arena("elsewhere");
    let mut words = words;
    words[2] = elsewhere.to_str().unwrap();
    scratch.run(words).expect(1, &["296 KiB of unwritten data", "remounted", &away]);
    // Nothing is lost: once the right source is back, it gets its data.
    wait_until("no process uses it", || unmount(&source, UnmountFlags::empty()).is_ok());
    scratch.run(words).expect(1, &["unwritten", &format!("--arena {arena} first"), &away]);
    let second = scratch.mount(&source, &mountpoint, &[]);
    assert!(fs::read(source.join("file")).unwrap() == bytes(7, 300_000));
    scratch.umount(&mountpoint);
    drop(second);
}

/// A source that accepts no write while it is held: a volume served by this process on a backend that can wait.
struct HeldSource {
    dir: std::path::PathBuf,
    faults: FaultControl,
    mounted: Arc<MountedVolume>,
    _engine: Engine,
    _pool: Pool,
}

impl HeldSource {
    fn new(scratch: &Scratch) -> Self {
        let dir = scratch.dir("held", 0o755);
        let pool = Pool::new(PoolOptions::default()).unwrap();
        let arena = Arena::create(&ArenaConfig::memfd(16 << 20)).unwrap();
        let engine = Engine::new(arena, Arc::new(SystemClock), Tunables::default());
        let (backend, faults) = Fault::new(Arc::new(MemBackend::new()));
        let volume = engine.mount("held", Arc::new(backend)).unwrap();
        let mounted = MountedVolume::mount(&pool, volume, &dir, &MountOptions::default(), None).unwrap();
        Self { dir, faults, mounted, _engine: engine, _pool: pool }
    }

    fn hold(&self) {
        self.faults.add(Rule::hold().on("write"));
    }

    fn release(&self) {
        self.faults.clear();
        self.faults.release_all();
    }
}

impl Drop for HeldSource {
    fn drop(&mut self) {
        self.release();
        let _ = self.mounted.umount(UmountRequest { discard: true, force: true, ..UmountRequest::default() }, &|_| {});
    }
}

#[test]
fn a_mount_waits_for_the_flush_of_its_predecessor_after_umount2() {
    need_fuse();
    let scratch = Scratch::new();
    let held = HeldSource::new(&scratch);
    let source = held.dir.join("source");
    fs::create_dir(&source).unwrap();
    let (_, mountpoint) = scratch.pair("a");
    let other = scratch.dir("other", 0o755);
    let mut first = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    fs::write(mountpoint.join("file"), bytes(1, 1 << 20)).unwrap();
    held.hold();
    wait_until("no process uses it", || unmount(&mountpoint, UnmountFlags::empty()).is_ok());
    wait_until("status shows the flush", || scratch.run(["status"]).text.contains("unmounted, flushing"));
    let arena = scratch.arena("other");
    let mut words = vec!["mount", "--cache", "32MiB", "--arena", arena.to_str().unwrap()];
    words.extend([source.to_str().unwrap(), other.to_str().unwrap()]);
    let mut second = Process::spawn(scratch.command(words).stdout(Stdio::null()).stderr(Stdio::piped()));
    let mut line = String::new();
    // Closed after one line: later output goes nowhere and stops nothing.
    BufReader::new(second.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("waiting until it is free") && line.contains("is already mounted"), "{line}");
    held.release();
    first.wait().expect(0, &["everything is written back"]);
    wait_until("the second is mounted", || fs::read(other.join("file")).is_ok_and(|found| found == bytes(1, 1 << 20)));
    scratch.umount(&other);
    assert_eq!(second.wait().code(), Some(0));
}

#[test]
fn a_view_of_a_source_is_not_mounted_in_that_source() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let inside = source.join("inside");
    fs::create_dir(&inside).unwrap();
    let _mount = scratch.mount(&source, &mountpoint, &[]);
    let mount = |from: &Path| scratch.run(["mount".as_ref(), from.as_os_str(), inside.as_os_str()]);
    mount(&mountpoint).expect(2, &["is inside", "which the source", "elsewhere"]);
    mount(&mountpoint.join("inside")).expect(2, &["would contain itself"]);
    scratch.umount(&mountpoint);
}

#[test]
fn a_mount_over_a_non_empty_directory_warns() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    fs::write(mountpoint.join("hidden"), "x").unwrap();
    let mut mount = scratch.mount(&source, &mountpoint, &[]);
    scratch.umount(&mountpoint);
    mount.wait().expect(0, &["is not empty", "hidden until the unmount"]);
    assert_eq!(fs::read(mountpoint.join("hidden")).unwrap(), b"x");
}

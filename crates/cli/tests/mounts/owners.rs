//! A source has one owner, across processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use slackwater::backend::MemBackend;
use slackwater::{Engine, Tunables};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::{Fault, FaultControl, Rule, SystemClock};
use slackwater_fuse::mount::MountOptions;
use slackwater_fuse::{MountedVolume, Pool, PoolOptions, UmountRequest};

use crate::bytes;
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
    for (path, words) in [(&source, "is mounted already, at"), (&child, "lies in"), (&parent, "contains")] {
        let refused = scratch.run(["mount", path.to_str().unwrap(), other]);
        refused.expect(3, &[words, &pid, mountpoint.to_str().unwrap(), "slackwater umount"]);
    }
    // The place is taken too.
    let apart = scratch.dir("apart", 0o755);
    let taken = ["mount", apart.to_str().unwrap(), mountpoint.to_str().unwrap()];
    scratch.run(taken).expect(3, &["is a mount point already", "fuse.slackwater"]);
    // On the mount itself the source would be hidden.
    let on_itself = mountpoint.join("child");
    scratch
        .run(["mount", on_itself.to_str().unwrap(), mountpoint.to_str().unwrap()])
        .expect(2, &["inside the mount point"]);
    // Another user's registry does not know of it; the lock does.
    let elsewhere = scratch.dir("elsewhere", 0o700);
    let mut command = scratch.command(["mount", source.to_str().unwrap(), other]);
    command.env("SLACKWATER_RUNTIME_DIR", &elsewhere);
    crate::rig::run(command).expect(3, &["is locked by", &pid]);
    // A brother is nobody's business.
    let brother = parent.join("brother");
    fs::create_dir(&brother).unwrap();
    let second = scratch.mount(&brother, &apart, &[]);
    scratch.umount(&apart);
    drop(second);
    scratch.umount(&mountpoint);
}

#[test]
fn who_waits_gets_the_source_when_it_is_free() {
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
    // The right source takes it over, also where the next cache has another size.
    let second = scratch.mount(&source, &mountpoint, &["--arena", arena, "--cache", "32MiB"]);
    assert!(fs::read(source.join("file")).unwrap() == bytes(7, 300_000), "it was to be there before the mount");
    scratch.umount(&mountpoint);
    drop(second);
}

/// A file system without a device of its own, FUSE for one, has another number each time it is mounted.
#[test]
fn an_arena_of_a_source_that_was_mounted_anew_is_refused_with_what_to_do() {
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
    scratch.run(words).expect(1, &["of another source", "mounted anew", &away]);
    let elsewhere = scratch.arena("elsewhere");
    let mut words = words;
    words[2] = elsewhere.to_str().unwrap();
    scratch.run(words).expect(1, &["296 KiB not in it yet", "mounted anew", &away]);
    // Nothing is lost: where the right one is back, it gets its data.
    wait_until("nobody is in it", || unmount(&source, UnmountFlags::empty()).is_ok());
    scratch.run(words).expect(1, &["not in it yet", &format!("--arena {arena} first"), &away]);
    let second = scratch.mount(&source, &mountpoint, &[]);
    assert!(fs::read(source.join("file")).unwrap() == bytes(7, 300_000));
    scratch.umount(&mountpoint);
    drop(second);
}

/// A source that takes no write while it is held: a volume that this process serves, on a backend that can wait.
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
fn a_mount_waits_for_the_flush_after_an_umount2_of_the_one_before() {
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
    wait_until("nobody is in it", || unmount(&mountpoint, UnmountFlags::empty()).is_ok());
    wait_until("it is known to flush", || scratch.run(["status"]).text.contains("unmounted, flushing"));
    let arena = scratch.arena("other");
    let mut words = vec!["mount", "--cache", "32MiB", "--arena", arena.to_str().unwrap()];
    words.extend([source.to_str().unwrap(), other.to_str().unwrap()]);
    let mut second = Process::spawn(scratch.command(words).stdout(Stdio::null()).stderr(Stdio::piped()));
    let mut line = String::new();
    // Closed after one line: what it says later is nobody's, and stops nothing.
    BufReader::new(second.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("waiting until it is free") && line.contains("is mounted already"), "{line}");
    held.release();
    first.wait().expect(0, &["everything is in"]);
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
    mount(&mountpoint).expect(2, &["lies inside", "which the source", "elsewhere"]);
    mount(&mountpoint.join("inside")).expect(2, &["would contain itself"]);
    scratch.umount(&mountpoint);
}

#[test]
fn what_a_mount_hides_is_said() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    fs::write(mountpoint.join("hidden"), "x").unwrap();
    let mut mount = scratch.mount(&source, &mountpoint, &[]);
    scratch.umount(&mountpoint);
    mount.wait().expect(0, &["is not empty", "hidden until the unmount"]);
    assert_eq!(fs::read(mountpoint.join("hidden")).unwrap(), b"x");
}

//! A source has one owner, across processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::process::Signal;

use crate::rig::{Mount, Process, Scratch, wait_until};
use crate::{bytes, need_fuse};

#[test]
fn the_same_source_its_parent_and_its_child_are_refused_with_the_owner() {
    need_fuse!();
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
    need_fuse!();
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
    need_fuse!();
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

/// A source that takes no write while it lives: a frozen ext4 on a loop device. Thawed and gone when dropped.
struct Frozen {
    dir: std::path::PathBuf,
}

impl Frozen {
    /// `None` where the tools or the devices are missing.
    fn new(scratch: &Scratch) -> Option<Self> {
        let (image, dir) = (scratch.path.join("image"), scratch.dir("loop", 0o755));
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let mut command = std::process::Command::new(program);
            let command = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let (image, path) = (image.to_str().unwrap(), dir.to_str().unwrap());
        let is_there = run("mkfs.ext4", &["-q", image]) && run("mount", &["-o", "loop", image, path]);
        if !is_there {
            println!("SKIPPED: no ext4 on a loop device here");
            return None;
        }
        Some(Self { dir })
    }

    fn freeze(&self, how: &str) -> bool {
        std::process::Command::new("fsfreeze").arg(how).arg(&self.dir).status().is_ok_and(|status| status.success())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.freeze("--unfreeze");
        }
        let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_mount_waits_for_the_flush_after_an_umount2_of_the_one_before() {
    need_fuse!();
    let scratch = Scratch::new();
    let Some(frozen) = Frozen::new(&scratch) else { return };
    let source = frozen.dir.join("source");
    fs::create_dir(&source).unwrap();
    let (_, mountpoint) = scratch.pair("a");
    let other = scratch.dir("other", 0o755);
    let mut first = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    fs::write(mountpoint.join("file"), bytes(1, 1 << 20)).unwrap();
    assert!(frozen.freeze("--freeze"), "an ext4 of our own can be frozen");
    rustix::mount::unmount(&mountpoint, rustix::mount::UnmountFlags::empty()).unwrap();
    wait_until("it is known to flush", || scratch.run(["status"]).text.contains("unmounted, flushing"));
    let arena = scratch.arena("other");
    let mut words = vec!["mount", "--cache", "32MiB", "--arena", arena.to_str().unwrap()];
    words.extend([source.to_str().unwrap(), other.to_str().unwrap()]);
    let mut second = Process::spawn(scratch.command(words).stdout(Stdio::null()).stderr(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(second.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("waiting until it is free") && line.contains("is mounted already"), "{line}");
    assert!(frozen.freeze("--unfreeze"));
    first.wait().expect(0, &["everything is in"]);
    wait_until("the second is mounted", || fs::read(other.join("file")).is_ok_and(|found| found == bytes(1, 1 << 20)));
    scratch.umount(&other);
    assert_eq!(second.wait().code(), Some(0));
}

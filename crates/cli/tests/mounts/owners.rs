//! A source has one owner, across processes.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;

use crate::rig::{Mount, Scratch};
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

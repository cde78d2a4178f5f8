//! Mounts that cannot be kept.

use std::process::Command;

use crate::rig::{Scratch, need_fuse, run};

#[test]
fn mounts_that_cannot_be_kept_are_refused_before_anything_is_mounted() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let (from, to) = (source.to_str().unwrap(), mountpoint.to_str().unwrap());
    let refused: [(&[&str], &str); 3] = [
        (&["mount", "--keep", "s3://bucket/volume", to], "an object volume cannot be kept"),
        (&["mount", "--keep", "--transport", "uring", from, to], "over io_uring"),
        (&["mount", "--keep", "--daemon", from, to], "cannot be used with"),
    ];
    for (words, why) in refused {
        scratch.run(words).expect(2, &["--keep", why]);
        scratch.run([&words[..1], &["--background"], &words[1..]].concat()).expect(2, &["--keep"]);
    }
    scratch.run(["mount", "-o", "keep,transport=uring", from, to]).expect(2, &["over io_uring"]);
    scratch.run(["mount", "--kept", from, to]).expect(1, &["cannot communicate with the keeper"]);
    scratch.run(["status"]).expect(0, &["Nothing is mounted"]);
}

/// A successor could not find the files of a source without lasting file handles.
#[test]
fn a_source_without_file_handles_is_refused() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, middle) = scratch.pair("lower");
    let _lower = scratch.mount(&source, &middle, &[]);
    let top = scratch.dir("top", 0o755);
    let arena = scratch.arena("top");
    let words = ["mount", "--keep", "--cache", "32MiB", "--arena", arena.to_str().unwrap()];
    let refused = scratch.run([&words[..], &[middle.to_str().unwrap(), top.to_str().unwrap()]].concat());
    refused.expect(1, &["no file handles", "without --keep"]);
    assert!(!arena.exists(), "nothing is left");
    scratch.umount(&middle);
}

#[test]
fn another_user_than_root_cannot_keep_a_mount() {
    need_fuse();
    let scratch = Scratch::new();
    let command = scratch.command_for_all();
    let mut user = Command::new("setpriv");
    user.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(command);
    user.args(["mount", "--keep", "/tmp", "/mnt"]).env("SLACKWATER_RUNTIME_DIR", "/nonexistent");
    run(user).expect(2, &["--keep", "only root"]);
}

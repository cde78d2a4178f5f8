//! Mounts whose files no process finds by a number: those of ordinary users, and of sources without lasting file handles.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, statat};
use rustix::mount::{MountFlags, mount};
use rustix::process::Signal;

use super::kept::{Kept, command_of_user};
use super::load::kill_under_load;
use super::user::{as_user, in_own_namespace};
use crate::bytes;
use crate::rig::{Scratch, need_fuse, wait_until};

fn new_file(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

fn read(dir: &OwnedFd, name: &str) -> String {
    let mut text = String::new();
    let file = openat(dir.as_fd(), name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    File::from(file).read_to_string(&mut text).unwrap();
    text
}

/// Mounts the overlay of two directories of one file system at `at`. Returns whether that is possible here.
pub(super) fn overlay(scratch: &Scratch, at: &Path) -> bool {
    let layers = scratch.dir("layers", 0o755);
    mount("none", &layers, "tmpfs", MountFlags::empty(), None).unwrap();
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| layers.join(name));
    [&lower, &upper, &work].iter().for_each(|dir| fs::create_dir(dir).unwrap());
    fs::write(lower.join("from below"), b"below").unwrap();
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let options = std::ffi::CString::new(options).unwrap();
    let mounted = mount("overlay", at, "overlay", MountFlags::empty(), options.as_c_str());
    if let Err(error) = mounted {
        println!("skipped: overlayfs cannot be mounted here: {error}");
    }
    mounted.is_ok()
}

/// Descriptors that the keeper has.
pub(super) fn kept_descriptors(kept: &Kept) -> usize {
    fs::read_dir(format!("/proc/{}/fd", kept.keeper().as_raw_nonzero())).unwrap().count()
}

/// Uses what a program has open over a few kills.
fn use_over_kills(kept: &Kept, is_removed_file_kept: bool) {
    let at = |name: &str| kept.mountpoint.join(name);
    let removed = new_file(&at("removed"));
    removed.write_all_at(&bytes(1, 1_000_000), 0).unwrap();
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::write(at("a/b/c/file"), b"deep").unwrap();
    let dir: OwnedFd = File::open(at("a/b/c")).unwrap().into();
    let path_only = openat(CWD, at("a/b"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let mut log = OpenOptions::new().append(true).create_new(true).open(at("log")).unwrap();
    fs::remove_file(at("removed")).unwrap();
    for round in 0..3 {
        writeln!(log, "round {round}").unwrap();
        fs::rename(at("a"), at("moved")).unwrap();
        kept.replace_server();
        assert_eq!(read(&dir, "file"), "deep");
        assert_eq!(read(&path_only, "c/file"), "deep");
        assert_eq!(read(&dir, "../../../moved/b/c/file"), "deep");
        mkdirat(&dir, format!("made-{round}"), Mode::from_raw_mode(0o755)).unwrap();
        assert!(statat(&path_only, format!("c/made-{round}"), rustix::fs::AtFlags::empty()).is_ok());
        fs::rename(at("moved"), at("a")).unwrap();
        if is_removed_file_kept {
            let mut found = vec![0; 1_000_000];
            removed.read_exact_at(&mut found, 0).unwrap();
            assert!(found == bytes(1, 1_000_000), "round {round}");
        }
    }
    drop(removed);
    fs::remove_dir_all(at("a")).unwrap();
}

/// Compares the source with the end of [`use_over_kills`].
fn check_source(source: &Path) {
    assert_eq!(fs::read_to_string(source.join("log")).unwrap(), "round 0\nround 1\nround 2\n");
    assert!(!source.join("a").exists() && !source.join("removed").exists());
}

#[test]
fn programs_of_a_user_notice_nothing_when_their_server_is_killed() {
    in_own_namespace(|| kill_under_load(Kept::of_user(&[], &["--dirty-expire", "100ms"])));
}

#[test]
fn programs_on_an_overlay_notice_nothing_when_their_server_is_killed() {
    need_fuse();
    in_own_namespace(|| {
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("a");
        if overlay(&scratch, &source) {
            fs::remove_file(source.join("from below")).unwrap();
            kill_under_load(Kept::of(scratch, source, mountpoint, &["--dirty-expire", "100ms", "--cache", "32MiB"]));
        }
    });
}

#[test]
fn a_user_keeps_what_is_open_and_every_way_to_unmount_ends_everything() {
    in_own_namespace(|| {
        for way in ["slackwater", "fusermount3", "umount", "signal"] {
            let mut kept = Kept::of_user(&[], &[]);
            as_user(|| use_over_kills(&kept, true));
            assert_eq!(kept.status()["kept"]["takeovers"], 3);
            match way {
                "signal" => kept.mount.process.signal(Signal::TERM),
                "slackwater" => kept.umount_by(|kept| command_of_user(&kept.scratch, &[], &["umount"])),
                helper => kept.umount_by(|_| {
                    let mut command = Command::new("setpriv");
                    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", helper]);
                    command.args(["-u"].iter().filter(|_| helper == "fusermount3"));
                    command
                }),
            }
            kept.mount.wait().expect(0, &["everything is written back"]);
            check_source(&kept.source);
            assert_eq!(fs::read_dir(&kept.mountpoint).unwrap().count(), 0, "{way}");
            kept.run(&["status"]).expect(5, &["is not mounted"]);
        }
    });
}

#[test]
fn files_of_a_source_without_lasting_handles_are_found_again() {
    need_fuse();
    in_own_namespace(|| {
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("a");
        if overlay(&scratch, &source) {
            let mut kept = Kept::of(scratch, source, mountpoint, &[]);
            let below = File::open(kept.mountpoint.join("from below")).unwrap();
            use_over_kills(&kept, true);
            let mut text = [0; 5];
            below.read_exact_at(&mut text, 0).unwrap();
            assert_eq!(&text, b"below");
            drop(below);
            kept.umount().expect(0, &["everything is written back"]);
            check_source(&kept.source);
        }
    });
    // A source that is a FUSE file system. A file without a name is in the hands of its server.
    let scratch = Scratch::new();
    let (base, middle) = scratch.pair("base");
    let lower = scratch.mount(&base, &middle, &[]);
    let top = scratch.dir("top", 0o755);
    let mut kept = Kept::of(Scratch::new(), middle.clone(), top, &[]);
    use_over_kills(&kept, true);
    kept.umount().expect(0, &["everything is written back"]);
    check_source(&middle);
    scratch.umount(&middle);
    drop(lower);
    check_source(&base);
}

#[test]
fn the_keeper_has_no_more_descriptors_than_the_kernel_has_nodes() {
    in_own_namespace(|| {
        let mut kept = Kept::of_user(&[], &[]);
        let before = kept_descriptors(&kept);
        let names = as_user(|| {
            let names: Vec<_> = (0..500).map(|nth| kept.mountpoint.join(nth.to_string())).collect();
            names.iter().for_each(|name| fs::write(name, b"x").unwrap());
            names
        });
        wait_until("the keeper has them", || kept_descriptors(&kept) >= before + 400);
        kept.replace_server();
        as_user(|| names.iter().for_each(|name| fs::remove_file(name).unwrap()));
        wait_until("their descriptors are closed", || kept_descriptors(&kept) <= before + 5);
        kept.umount().expect(0, &["everything is written back"]);
    });
}

/// A file that its owner may not open for writing, as Git makes them, with data that is not written back at the kill.
#[test]
fn a_user_loses_nothing_in_a_read_only_file() {
    in_own_namespace(|| {
        let mut kept = Kept::of_user(&[], &["--dirty-expire", "1h"]);
        as_user(|| {
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true);
            let mut file =
                std::os::unix::fs::OpenOptionsExt::mode(options, 0o444).open(kept.mountpoint.join("object")).unwrap();
            file.write_all(b"before").unwrap();
            kept.replace_server();
            file.write_all(b" and after").unwrap();
            file.sync_all().unwrap();
        });
        kept.umount().expect(0, &["everything is written back"]);
        assert_eq!(fs::read(kept.source.join("object")).unwrap(), b"before and after");
    });
}

/// The oldest of too many nodes are given up. Open files and directories are not among them, and names lead to the others
/// again.
#[test]
fn too_many_nodes_leave_what_is_open() {
    in_own_namespace(|| {
        let mut kept = Kept::of_user(&["prlimit", "--nofile=1000:1000"], &[]);
        let at = |name: &str| kept.mountpoint.join(name);
        as_user(|| {
            let mut log = new_file(&at("log"));
            fs::create_dir(at("dir")).unwrap();
            let dir: OwnedFd = File::open(at("dir")).unwrap().into();
            (0..600).for_each(|nth| fs::write(at("dir").join(nth.to_string()), nth.to_string()).unwrap());
            assert!(kept_descriptors(&kept) < 350, "{}", kept_descriptors(&kept));
            kept.replace_server();
            log.write_all(b"still here").unwrap();
            for nth in (0..600).rev() {
                assert_eq!(fs::read_to_string(at("dir").join(nth.to_string())).unwrap(), nth.to_string());
                assert_eq!(read(&dir, &nth.to_string()), nth.to_string());
            }
        });
        kept.umount().expect(0, &["everything is written back"]);
        assert_eq!(fs::read(kept.source.join("log")).unwrap(), b"still here");
        assert_eq!(fs::read_dir(kept.source.join("dir")).unwrap().count(), 600);
    });
}

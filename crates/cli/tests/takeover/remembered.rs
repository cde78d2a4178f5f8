//! State of files and directories that no request repeats outlives its process: the next one knows it too.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, XattrFlags, fsetxattr, openat, statat};
use rustix::io::Errno;
use slackwater_fuse::abi::Opcode;

use super::by_descriptor::{kept_descriptors, overlay};
use super::kept::Kept;
use super::renames::{CHANGE, kill_each_change};
use super::requests::{Call, Rig};
use super::user::in_own_namespace;
use crate::bytes;
use crate::rig::{PATIENCE, Scratch, need_fuse, wait_until};

/// Write-back begins long after the test.
const LATE: [&str; 2] = ["--dirty-expire", "1h"];

/// truncate(2), of a file that no program has open.
fn truncate_by_name(path: &Path) {
    let script = "import os,sys\nos.truncate(sys.argv[1], 0)";
    assert!(Command::new("python3").args(["-c", script]).arg(path).status().unwrap().success());
}

fn truncated(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).truncate(true).open(path)
}

/// A close after a truncation writes the new data back first. That a file was truncated was only in the memory of the
/// process, so after a takeover the source had no bytes when the close returned.
#[test]
fn p01_a_close_after_a_truncation_writes_back_whichever_process_serves() {
    let mut kept = Kept::new(&LATE);
    let path = |name: &str| kept.mountpoint.join(name);
    let (old, new) = (bytes(1, 40_000), bytes(2, 15_000));
    for name in ["opened", "cut", "cut by name", "whole"] {
        fs::write(path(name), &old).unwrap();
    }
    kept.run(&["sync"]).expect(0, &[]);
    let mut opened = truncated(&path("opened")).unwrap();
    let mut cut = OpenOptions::new().write(true).open(path("cut")).unwrap();
    cut.set_len(0).unwrap();
    truncate_by_name(&path("cut by name"));
    let mut whole = OpenOptions::new().write(true).open(path("whole")).unwrap();
    for _ in 0..2 {
        kept.replace_server();
    }
    let mut by_name = OpenOptions::new().write(true).open(path("cut by name")).unwrap();
    for file in [&mut opened, &mut cut, &mut by_name, &mut whole] {
        file.write_all(&new).unwrap();
    }
    drop((opened, cut, by_name, whole));
    let in_source = |name: &str| fs::read(kept.source.join(name)).unwrap();
    for name in ["opened", "cut", "cut by name"] {
        assert!(in_source(name) == new, "{name}: {} bytes", in_source(name).len());
    }
    assert!(in_source("whole") == old, "a file that was not truncated is written back later");
    // Once it is written back and closed, it is like any other file. The kernel reports the last close later.
    let append = || OpenOptions::new().append(true).open(path("opened")).unwrap();
    wait_until("a close writes nothing back", || {
        append().write_all(b"more").unwrap();
        in_source("opened").len() < fs::metadata(path("opened")).unwrap().len() as usize
    });
    let mut opened = append();
    kept.replace_server();
    opened.write_all(b"more").unwrap();
    drop(opened);
    assert!(in_source("opened").len() < fs::metadata(path("opened")).unwrap().len() as usize);
    kept.umount();
}

/// Each process that a shell starts closes its copy of a descriptor, perhaps while another writes to the same open file. Only
/// the first close wrote back, and so did none after an fsync.
#[test]
fn p01_each_close_of_a_truncated_file_writes_back_what_is_new() {
    let mut kept = Kept::new(&LATE);
    let path = kept.mountpoint.join("file");
    fs::write(&path, b"old").unwrap();
    kept.run(&["sync"]).expect(0, &[]);
    let in_source = || fs::read_to_string(kept.source.join("file")).unwrap();
    let mut file = truncated(&path).unwrap();
    for (line, expected) in [("one ", "one "), ("two ", "one two "), ("three ", "one two three ")] {
        file.write_all(line.as_bytes()).unwrap();
        drop(file.try_clone().unwrap());
        assert_eq!(in_source(), expected);
    }
    file.sync_all().unwrap();
    file.write_all(b"four ").unwrap();
    // The end of another open file does not end it: a child may still have the one from before the truncation.
    drop(OpenOptions::new().write(true).open(&path).unwrap());
    kept.replace_server();
    file.write_all(b"five").unwrap();
    drop(file);
    assert_eq!(in_source(), "one two three four five");
    kept.umount();
}

/// A shell that redirects output to a file opens it, moves the descriptor and closes the first one. That close counted as
/// the one after the new data, which was therefore not written back.
#[test]
fn p01_a_redirection_of_a_shell_writes_back_before_it_ends() {
    let mut kept = Kept::new(&LATE);
    fs::write(kept.mountpoint.join("file"), b"old").unwrap();
    kept.run(&["sync"]).expect(0, &[]);
    let status = Command::new("sh").args(["-c", "echo new > file"]).current_dir(&kept.mountpoint).status();
    assert!(status.unwrap().success());
    assert_eq!(fs::read(kept.source.join("file")).unwrap(), b"new\n");
    kept.umount();
}

/// The same if the process dies while it truncates or closes.
#[test]
fn p01_a_truncation_or_close_that_is_killed_on_its_way_leaves_the_new_bytes() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("kept");
    let rig = Rig::of(scratch, source, mountpoint);
    kill_each_change(
        &rig,
        &CHANGE,
        &[
            ("an open that truncates", Opcode::Open, |mount, source, n| rewrite(mount, source, n, truncated)),
            ("a truncation", Opcode::Setattr, |mount, source, n| rewrite(mount, source, n, cut)),
        ],
    );
    let closes: [(_, _, Call); 1] =
        [("a close", Opcode::Flush, |mount, source, n| rewrite(mount, source, n, truncated))];
    kill_each_change(&rig, &["Read", "CarriedOut", "Answered"], &closes);
    rig.umount();
}

fn cut(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.set_len(0)?;
    Ok(file)
}

/// Replaces the bytes of a file. They are in the source when it is closed.
fn rewrite(mount: &Path, source: &Path, n: u32, truncate: fn(&Path) -> io::Result<File>) -> io::Result<()> {
    let name = format!("f{n}");
    fs::write(source.join(&name), bytes(1, 40_000))?;
    let mut file = truncate(&mount.join(&name))?;
    file.write_all(&bytes(2, 15_000))?;
    drop(file);
    assert!(fs::read(source.join(&name))? == bytes(2, 15_000), "{name}");
    Ok(())
}

/// The attribute of a file was read when the file was opened, and forgotten in a takeover.
#[test]
fn p10_an_open_file_stays_out_of_the_cache_after_a_kill() {
    let mut kept = Kept::new(&LATE);
    let file = File::options().write(true).create_new(true).open(kept.mountpoint.join("file")).unwrap();
    fsetxattr(&file, c"user.slackwater.dontcache", b"1", XattrFlags::empty()).unwrap();
    kept.replace_server();
    file.write_all_at(&[1; 100_000], 0).unwrap();
    wait_until("it is written back at once", || fs::metadata(kept.source.join("file")).unwrap().len() == 100_000);
    drop(file);
    kept.umount();
}

/// `.` and `..` of a listing have the numbers of the directories. That of the parent was only in memory.
#[test]
fn p09_a_listing_after_a_kill_names_the_parent() {
    let mut kept = Kept::new(&[]);
    fs::create_dir_all(kept.mountpoint.join("a/b")).unwrap();
    let dir = File::open(kept.mountpoint.join("a/b")).unwrap();
    kept.replace_server();
    let mut buffer = [MaybeUninit::uninit(); 2000];
    let mut entries = RawDir::new(&dir, &mut buffer);
    let mut found = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.unwrap();
        found.push((entry.file_name().to_str().unwrap().to_owned(), entry.ino()));
    }
    let ino = |path: &str| fs::metadata(kept.source.join(path)).unwrap().ino();
    assert_eq!(found, [(".".to_owned(), ino("a/b")), ("..".to_owned(), ino("a"))]);
    drop(dir);
    kept.umount();
}

/// A directory that was removed while a program had it open, or as its working directory, could not be found after a
/// takeover: ESTALE. On other file systems it is empty and has no links.
#[test]
fn p09_a_removed_directory_in_use_stays_over_kills() {
    use_removed_directories(&mut Kept::new(&[]));
}

#[test]
fn p09_a_removed_directory_of_an_overlay_in_use_stays_over_kills() {
    need_fuse();
    in_own_namespace(|| {
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("a");
        if overlay(&scratch, &source) {
            use_removed_directories(&mut Kept::of(scratch, source, mountpoint, &[]));
        }
    });
}

fn use_removed_directories(kept: &mut Kept) {
    let at = |name: &str| kept.mountpoint.join(name);
    let before = kept_descriptors(kept);
    let names = ["open", "path", "replaced"];
    names.iter().chain(&["new"]).for_each(|name| fs::create_dir(at(name)).unwrap());
    let open: OwnedFd = File::open(at("open")).unwrap().into();
    // As a working directory: the server has no handle of it.
    let by_path =
        |name: &str| openat(CWD, at(name), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let (path, replaced) = (by_path("path"), by_path("replaced"));
    fs::remove_dir(at("open")).unwrap();
    fs::remove_dir(at("path")).unwrap();
    fs::rename(at("new"), at("replaced")).unwrap();
    for round in 0..3 {
        kept.replace_server();
        for (dir, name) in [(&open, "open"), (&path, "path"), (&replaced, "replaced")] {
            let found =
                statat(dir, c"", AtFlags::EMPTY_PATH).unwrap_or_else(|errno| panic!("{name}, {round}: {errno}"));
            assert_eq!(found.st_nlink, 0, "{name}, {round}");
            let listed = openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
            let listed = fs::read_dir(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&listed))).unwrap();
            assert_eq!(listed.count(), 0, "{name}, {round}");
            let made =
                openat(dir, "file", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::from_raw_mode(0o644));
            assert_eq!(made.err(), Some(Errno::NOENT), "{name}, {round}");
        }
        fs::create_dir(at("again")).unwrap();
        fs::remove_dir(at("again")).unwrap();
    }
    drop((open, path, replaced));
    fs::remove_dir(at("replaced")).unwrap();
    wait_until("the keeper has no more descriptors than before", || kept_descriptors(kept) <= before);
    kept.umount();
}

/// The age of dirty data began anew with each process: where processes died more often than data became old, nothing was
/// written back.
#[test]
fn p05_data_is_written_back_however_often_its_process_dies() {
    let mut kept = Kept::new(&["--dirty-expire", "2s"]);
    let written = Instant::now();
    fs::write(kept.mountpoint.join("file"), [1; 10_000]).unwrap();
    // A process is older than the limit only if the machine was busy: then the test shows nothing.
    let mut oldest_process = Duration::ZERO;
    while fs::metadata(kept.source.join("file")).unwrap().len() == 0 {
        let began = Instant::now();
        assert!(written.elapsed() < PATIENCE, "it stays young");
        kept.replace_server();
        oldest_process = oldest_process.max(began.elapsed());
    }
    println!("written back after {:?}; the oldest process lived for {oldest_process:?}", written.elapsed());
    kept.umount();
}

//! Each open file reports an error of write-back once, whichever process serves the mount.

mod sys;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::mount::{MountFlags, mount};

use super::kept::Kept;
use super::requests::Rig;
use crate::bytes;
use crate::rig::{Scratch, need_fuse};

const MIB: usize = 1 << 20;
/// The size of a page: an attempt to write one back fails once.
const PAGE: usize = 4096;
/// Write-back begins with a sync only.
const PASSIVE: [&str; 4] = ["--dirty-ratio", "90", "--dirty-expire", "1h"];
/// FSYNC in the protocol.
const FSYNC: u32 = 20;

/// A small file system with a source, whose free space other programs can take.
struct Small {
    scratch: Scratch,
    source: PathBuf,
    mountpoint: PathBuf,
    filler: PathBuf,
}

impl Small {
    fn new() -> Self {
        need_fuse();
        let scratch = Scratch::new();
        let root = scratch.dir("small", 0o755);
        mount("tmpfs", &root, "tmpfs", MountFlags::empty(), Some(c"size=16m")).unwrap();
        let source = root.join("source");
        fs::create_dir(&source).unwrap();
        let mountpoint = scratch.dir("mount", 0o755);
        Self { scratch, source, mountpoint, filler: root.join("filler") }
    }
}

/// Takes all free space.
fn fill(filler: &Path) {
    let file = OpenOptions::new().append(true).create(true).open(filler).unwrap();
    for step in [MIB, PAGE] {
        while fallocate(&file, FallocateFlags::empty(), file.metadata().unwrap().len(), step as u64).is_ok() {}
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Write-back that fails so often does not try again by itself for 12 s.
const IN_VAIN: u32 = 8;

fn sync_in_vain(file: &File) {
    (0..IN_VAIN).for_each(|_| assert_no_space(file.sync_all()));
}

#[track_caller]
fn assert_no_space(outcome: io::Result<()>) {
    let errno = outcome.as_ref().err().and_then(Errno::from_io_error);
    assert_eq!(errno, Some(Errno::NOSPC), "{outcome:?}");
}

/// The attempts to write back that have failed in the process that serves the mount.
fn failures(status: &mut Command) -> u64 {
    let output = status.output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    status["mounts"][0]["failures"].as_u64().unwrap()
}

/// Closing one of its descriptors shows an error that stays to be reported.
fn peek(file: &File) -> io::Result<()> {
    sys::close(fcntl_dupfd_cloexec(file, 0).unwrap())
}

#[test]
fn p02_each_open_file_reports_an_error_once_over_kills() {
    let Small { scratch, source, mountpoint, filler } = Small::new();
    let mut kept = Kept::of(scratch, source, mountpoint, &PASSIVE);
    let path = kept.mountpoint.join("file");
    let (seer, writer, reader) = (open(&path), open(&path), File::open(&path).unwrap());
    seer.write_all_at(&bytes(1, PAGE), 0).unwrap();
    fill(&filler);
    sync_in_vain(&seer);
    fs::remove_file(&filler).unwrap();
    let late = open(&path);
    kept.replace_server();
    assert_no_space(peek(&writer));
    peek(&seer).unwrap();
    // From here on the file is clean.
    seer.sync_all().unwrap();
    kept.replace_server();
    assert_no_space(peek(&writer));
    assert_no_space(writer.sync_all());
    writer.sync_all().unwrap();
    kept.replace_server();
    for file in [&writer, &seer, &late, &open(&path)] {
        peek(file).unwrap();
        file.sync_all().unwrap();
    }
    assert_no_space(reader.sync_all());
    reader.sync_all().unwrap();
    // The same error again is news for all.
    seer.write_all_at(&bytes(2, PAGE), PAGE as u64).unwrap();
    fill(&filler);
    sync_in_vain(&reader);
    fs::remove_file(&filler).unwrap();
    kept.replace_server();
    reader.sync_all().unwrap();
    for file in [&writer, &seer, &late] {
        assert_no_space(file.sync_all());
        file.sync_all().unwrap();
    }
    drop((seer, writer, reader, late));
    assert_eq!(fs::read(kept.source.join("file")).unwrap().len(), 2 * PAGE);
    kept.umount();
}

#[test]
fn p02_an_error_that_no_open_file_has_reported_is_reported_to_the_next_one_after_a_kill() {
    let Small { scratch, source, mountpoint, filler } = Small::new();
    let mut kept = Kept::of(scratch, source, mountpoint, &PASSIVE);
    let path = kept.mountpoint.join("file");
    open(&path).write_all_at(&bytes(1, PAGE), 0).unwrap();
    fill(&filler);
    let failed = kept.run(&["sync"]);
    assert_ne!(failed.code, Some(0), "{}", failed.text);
    fs::remove_file(&filler).unwrap();
    kept.replace_server();
    kept.run(&["sync"]).expect(0, &[]);
    kept.replace_server();
    let (first, second) = (open(&path), open(&path));
    assert_no_space(first.sync_all());
    first.sync_all().unwrap();
    kept.replace_server();
    first.sync_all().unwrap();
    assert_no_space(second.sync_all());
    open(&path).sync_all().unwrap();
    drop((first, second));
    kept.umount();
}

#[test]
fn p02_a_sync_that_is_killed_on_its_way_reports_its_error_once() {
    let Small { scratch, source, mountpoint, filler } = Small::new();
    let rig = Rig::of(scratch, source, mountpoint);
    for (round, point) in ["Read", "CarriedOut", "Recorded", "Answered"].into_iter().enumerate() {
        let (mut sync, mut status) = (rig.command(&["sync"]), rig.command(&["status", "--json"]));
        let filler = filler.clone();
        let call = move |mountpoint: &Path, _: &Path| {
            let path = mountpoint.join(format!("file{round}"));
            let (file, other) = (open(&path), open(&path));
            file.write_all_at(&bytes(1, PAGE), 0)?;
            fill(&filler);
            // A server that is about to die does not try again by itself.
            (0..IN_VAIN).for_each(|_| assert!(!sync.output().unwrap().status.success()));
            assert_no_space(file.sync_all());
            fs::remove_file(&filler)?;
            // After `Read`, the next server carries the call out. It has failed only once, so it may try again by itself.
            // That may be another error.
            if point == "Read" && failures(&mut status) > 1 {
                let _ = file.sync_all();
            }
            file.sync_all()?;
            assert_no_space(other.sync_all());
            other.sync_all()
        };
        let has_died = rig.dies(point, &format!("{point} {FSYNC} 1"), call);
        assert!(has_died, "{point}: no process died there");
    }
    rig.umount();
}

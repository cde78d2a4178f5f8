//! Trees of files: listed with empty caches, and a source tree that is unpacked and looked at by git.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::long_rounds;
use super::subject::Subject;
use super::testbed::{Cell, Testbed};
use crate::harness::Options;
use crate::programs;
use crate::scratch::Scratch;

pub(super) const LIST: &str = "cold ls -lR of 10,000 files, s";
pub(super) const LIST_REQUESTS: &str = "requests of a cold ls -lR";
pub(super) const MOUNT: &str = "mount, ms";
pub(super) const UNPACK: &str = "untar of a source tree, s";
pub(super) const STATUS: &str = "git status after a remount, s";
pub(super) const STATUS_REQUESTS: &str = "requests of that git status";

const TREE: &str = "tree";
const DIRECTORIES: usize = 10;
const FILES_OF_EACH: usize = 1000;
const BYTES: usize = 100;

pub(super) fn list(testbed: &mut Testbed, options: &Options) -> Result<()> {
    testbed.prepare("cold tree", |subject, s3| {
        // Others keep each file as an object, and need long to make them one by one.
        let place = subject.object_of(s3, TREE).unwrap_or_else(|| subject.path().join(TREE));
        make(&place).and_then(|()| subject.settle())
    })?;
    testbed.rounds(
        "cold tree",
        long_rounds(options),
        |_, _| Ok(()),
        |subject, cell| {
            if subject.is_peer() && cell.round > 0 {
                return Ok(()); // it takes up to minutes
            }
            cell.add(MOUNT, subject.remount()?.as_secs_f64() * 1e3);
            let mut command = Command::new("ls");
            command.arg("-lR").arg(subject.path().join(TREE)).stdout(Stdio::piped());
            let (before, start) = (cell.requests(), Instant::now());
            let output = command.output().context("cannot run ls")?;
            let (time, requests) = (start.elapsed(), cell.requests() - before);
            let names = output.stdout.windows(6).filter(|window| *window == b" file-").count();
            ensure!(output.status.success(), "ls: {}", String::from_utf8_lossy(&output.stderr));
            ensure!(names == DIRECTORIES * FILES_OF_EACH, "ls has listed {names} files");
            cell.add(LIST, time.as_secs_f64());
            if subject.delay().is_some() {
                cell.add(LIST_REQUESTS, requests.all as f64);
            }
            Ok(())
        },
    )
}

fn make(tree: &Path) -> Result<()> {
    fs::create_dir(tree)?;
    for directory in 0..DIRECTORIES {
        let path = tree.join(format!("directory-{directory}"));
        fs::create_dir(&path)?;
        for number in 0..FILES_OF_EACH {
            File::create_new(path.join(format!("file-{number}")))?.write_all_at(&[1; BYTES], 0)?;
        }
    }
    Ok(())
}

/// An archive with a git repository and its files: the one that this program runs in.
pub(super) fn archive(home: &Scratch) -> Result<PathBuf> {
    let (folder, archive) = (home.subdirectory("source")?, home.path().join("source.tar"));
    programs::run(Command::new("git").args(["clone", "--quiet", "--no-hardlinks", "."]).arg(folder.join("tree")))?;
    programs::run(Command::new("tar").arg("cf").arg(&archive).arg("-C").arg(&folder).arg("tree"))?;
    Ok(archive)
}

/// Unpacks `archive` and lets git look for changes.
pub(super) fn unpack(testbed: &mut Testbed, options: &Options, archive: &Path) -> Result<()> {
    testbed.rounds(
        "source tree",
        long_rounds(options),
        |_, _| Ok(()),
        |subject, cell| {
            // Others need some requests for each file, one after another.
            if subject.is_peer() { Ok(()) } else { unpack_and_look(subject, cell, archive) }
        },
    )
}

fn unpack_and_look(subject: &mut Subject, cell: &mut Cell<'_>, archive: &Path) -> Result<()> {
    let folder = subject.path().join(format!("source-{}", cell.round));
    fs::create_dir(&folder)?;
    let start = Instant::now();
    programs::run(Command::new("tar").arg("xf").arg(archive).arg("-C").arg(&folder))?;
    cell.add(UNPACK, start.elapsed().as_secs_f64());
    subject.remount()?;
    let mut command = Command::new("git");
    command.arg("-C").arg(folder.join("tree")).args(["status", "--porcelain"]);
    let (before, start) = (cell.requests(), Instant::now());
    let output = command.output().context("cannot run git")?;
    let (time, requests) = (start.elapsed(), cell.requests() - before);
    ensure!(output.status.success(), "git status: {}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.stdout.is_empty(), "git finds changes: {}", String::from_utf8_lossy(&output.stdout));
    cell.add(STATUS, time.as_secs_f64());
    if subject.delay().is_some() {
        cell.add(STATUS_REQUESTS, requests.all as f64);
    }
    Ok(())
}

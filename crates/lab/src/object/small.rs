//! Small writes that no one waits for: into a file at random, and as files of their own.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::Result;
use slackwater_backends::Random;

use super::subject::Subject;
use super::testbed::{Cell, Testbed};
use crate::harness::Options;
use crate::harness::threads::wait_until;

pub(super) const WRITES: &str = "4 KiB random writes per s";
pub(super) const CREATES: &str = "files of 4 KiB created per s";
pub(super) const REQUESTS: &str = "requests per 1,000 files";

const PAGE: usize = 4096;
/// Pages of the file that is overwritten.
const PAGES: u64 = 8192;
const FILE: &str = "random";
/// Files that others create in a turn: each costs them some requests, one after another.
pub(super) const FILES_OF_PEERS: usize = 50;

/// Amounts of a turn.
pub(super) fn writes(options: &Options) -> usize {
    options.pick(10_000, 2000)
}

pub(super) fn files(options: &Options) -> usize {
    options.pick(10_000, 1000)
}

pub(super) fn measure(testbed: &mut Testbed, options: &Options) -> Result<()> {
    let (writes, files) = (writes(options), files(options));
    testbed.prepare("small writes", |subject, _| {
        let file = File::create(subject.path().join(FILE))?;
        file.write_all_at(&vec![1; PAGE * PAGES as usize], 0)?;
        file.sync_all()?;
        subject.settle()
    })?;
    testbed.rounds(
        "small writes",
        options.rounds(),
        |_, _| Ok(()),
        |subject, cell| {
            let file = OpenOptions::new().write(true).open(subject.path().join(FILE))?;
            let mut random = Random::new(options.seed.wrapping_add(u64::from(cell.round)));
            let start = Instant::now();
            for _ in 0..writes {
                file.write_all_at(&[3; PAGE], random.below(PAGES) * PAGE as u64)?;
            }
            cell.add(WRITES, writes as f64 / start.elapsed().as_secs_f64());
            file.sync_all()?;
            drop(file);
            subject.settle()?;
            create(subject, cell, if subject.is_peer() { FILES_OF_PEERS } else { files })
        },
    )
}

fn create(subject: &Subject, cell: &mut Cell<'_>, files: usize) -> Result<()> {
    let name = format!("files-{}", cell.round);
    let directory = subject.path().join(&name);
    fs::create_dir(&directory)?;
    subject.settle()?;
    let before = cell.requests();
    let paths: Vec<_> = (0..files).map(|number| directory.join(format!("file-{number}"))).collect();
    let start = Instant::now();
    for path in &paths {
        File::create_new(path)?.write_all_at(&[7; PAGE], 0)?;
    }
    cell.add(CREATES, files as f64 / start.elapsed().as_secs_f64());
    subject.settle()?;
    if let Some(objects) = subject.object_of(cell.s3, &name) {
        let are_there = || Ok(fs::read_dir(&objects).map_or(0, Iterator::count) >= files);
        wait_until("the files do not reach the store", are_there)?;
    }
    if subject.delay().is_some() {
        cell.add(REQUESTS, (cell.requests() - before).all as f64 * 1e3 / files as f64);
    }
    Ok(())
}

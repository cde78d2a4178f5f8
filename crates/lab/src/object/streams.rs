//! One large file: written and made durable, and read with empty caches.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::long_rounds;
use super::subject::Subject;
use super::testbed::{Cell, Testbed};
use crate::harness::threads::wait_until;
use crate::harness::{Options, mb_per_s};

pub(super) const WRITE: &str = "write + fsync MB/s";
pub(super) const READ: &str = "cold read MB/s";

const FILE: &str = "large";
const BLOCK_BYTES: usize = 1 << 20;

/// Bytes of the file.
pub(super) fn bytes(options: &Options) -> u64 {
    options.pick(1 << 30, 64 << 20)
}

pub(super) fn measure(testbed: &mut Testbed, options: &Options) -> Result<()> {
    let bytes = bytes(options);
    testbed.rounds(
        "streams",
        long_rounds(options),
        |bare, cell| {
            cell.s3.settle()?;
            cell.add(WRITE, mb_per_s(bytes, bare.put(bytes)?));
            cell.add(READ, mb_per_s(bytes, bare.get(bytes)?));
            Ok(())
        },
        |subject, cell| {
            let path = subject.path().join(FILE);
            cell.s3.settle()?;
            let start = Instant::now();
            write(&path, bytes)?;
            wait_for_object(subject, cell, bytes)?;
            cell.add(WRITE, mb_per_s(bytes, start.elapsed()));
            subject.remount()?;
            let start = Instant::now();
            read(&path, bytes)?;
            cell.add(READ, mb_per_s(bytes, start.elapsed()));
            fs::remove_file(&path)?;
            subject.settle()
        },
    )
}

fn write(path: &Path, bytes: u64) -> Result<()> {
    let (mut file, block) = (File::create(path)?, vec![5; BLOCK_BYTES]);
    for _ in 0..bytes / BLOCK_BYTES as u64 {
        file.write_all(&block)?;
    }
    Ok(file.sync_all()?)
}

/// File systems of others may write when the file is closed, after its fsync.
fn wait_for_object(subject: &Subject, cell: &Cell<'_>, bytes: u64) -> Result<()> {
    let Some(object) = subject.object_of(cell.s3, FILE) else { return Ok(()) };
    let is_whole = || Ok(fs::metadata(&object).is_ok_and(|object| object.len() == bytes));
    wait_until("the file does not reach the store", is_whole)
}

fn read(path: &Path, bytes: u64) -> Result<()> {
    let (mut file, mut block) = (File::open(path)?, vec![0; BLOCK_BYTES]);
    for _ in 0..bytes / BLOCK_BYTES as u64 {
        file.read_exact(&mut block)?;
        ensure!(block[0] == 5 && block[BLOCK_BYTES - 1] == 5, "the bytes that were read differ from those written");
    }
    Ok(())
}

//! Reading and writing files of a mounted directory, one system call after another; and creating empty files, reading their
//! attributes and removing them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::fs::{Advice, AtFlags, CWD, StatxFlags, fadvise, statx};
use slackwater_testkit::Random;

use super::servers::Subject;
use crate::files::{BLOCK_BYTES, read_blocks, writable, write_blocks};
use crate::harness::placement::Placement;
use crate::harness::{Series, amounts, axis, mb_per_s, threads, time_us};
use crate::scratch::make_directory;

pub(super) const PAGE: usize = 4096;
const CLIENTS: [usize; 2] = [1, 2];

/// Client and server on one CPU, on two, and where the scheduler puts them.
pub(super) const SEQUENTIAL: [&str; 3] =
    ["4 KiB write, sequential", "4 KiB write, sequential, 2 CPUs", "4 KiB write, sequential, free"];
pub(super) const RANDOM: [&str; 3] =
    ["4 KiB write, random", "4 KiB write, random, 2 CPUs", "4 KiB write, random, free"];
pub(super) const SYNC: &str = "4 KiB write and fdatasync";
pub(super) const WRITE: [&str; 2] = ["1 MiB write, 1 client", "1 MiB write, 2 clients"];
pub(super) const READ: [&str; 2] = ["1 MiB read, 1 client", "1 MiB read, 2 clients"];
pub(super) const READ_AGAIN: [&str; 2] = ["1 MiB read again, 1 client", "1 MiB read again, 2 clients"];

amounts! {
    /// How much of everything in a turn.
    pub(super) struct Amounts {
        /// Small writes of each kind.
        small: usize = 4000, 1500;
        /// Small writes with fdatasync.
        synced: usize = 100, 30;
        /// Pages of the file that is overwritten at random.
        pages: u64 = 16_384, 8192;
        /// Blocks of each client's large file.
        blocks: u64 = 128, 64;
        /// Files that are created, looked at and removed.
        files: usize = 1000, 400;
    }
}

/// Makes the files that are overwritten and read.
pub(super) fn prepare(subject: &Subject, amounts: Amounts) -> Result<()> {
    let blocks = amounts.pages * PAGE as u64 / BLOCK_BYTES as u64;
    write_blocks(&writable(&subject.file("random"))?, blocks)?;
    for client in CLIENTS {
        write_blocks(&writable(&large(subject, client - 1))?, amounts.blocks)?;
    }
    Ok(())
}

/// Measures one turn of writing.
pub(super) fn write(subject: &Subject, amounts: Amounts, seed: u64, series: &mut Series) -> Result<()> {
    let (name, page) = (subject.name(), [7; PAGE]);
    let path = subject.file("small");
    for (placement, (sequential, scattered)) in Placement::ALL.into_iter().zip(SEQUENTIAL.into_iter().zip(RANDOM)) {
        if subject.keeps_files() && path.exists() {
            std::fs::remove_file(&path)?;
        }
        let (small, file) = (writable(&path)?, writable(&subject.file("random"))?);
        let _placed = placement.place(subject.pid())?;
        let us = timed(amounts.small, |number| small.write_all_at(&page, (number * PAGE) as u64))?;
        series.add_latencies(sequential, name, &us);
        let mut random = Random::new(seed);
        let us = timed(amounts.small, |_| file.write_all_at(&page, random.below(amounts.pages) * PAGE as u64))?;
        series.add_latencies(scattered, name, &us);
    }

    for (clients, row) in CLIENTS.into_iter().zip(WRITE) {
        let files = (0..clients).map(|client| writable(&large(subject, client))).collect::<Result<Vec<_>>>()?;
        let time = threads::run_lanes(files, |file| write_blocks(file, amounts.blocks))?;
        series.add(row, name, mb_per_s(clients as u64 * amounts.blocks * BLOCK_BYTES as u64, time));
    }
    Ok(())
}

/// Measures one turn of reading the large files, and of writes with fdatasync.
pub(super) fn read_and_sync(subject: &Subject, amounts: Amounts, series: &mut Series) -> Result<()> {
    let name = subject.name();
    for (clients, (row, again)) in CLIENTS.into_iter().zip(READ.into_iter().zip(READ_AGAIN)) {
        let bytes = clients as u64 * amounts.blocks * BLOCK_BYTES as u64;
        let mut rates = [0.0; 2];
        for (pass, rate) in rates.iter_mut().enumerate() {
            let open = |client| -> Result<File> {
                let path = large(subject, client);
                let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
                if pass == 0 && subject.is_mounted() {
                    // Drops the kernel's pages; the server's cache stays.
                    fadvise(&file, 0, None, Advice::DontNeed)?;
                }
                Ok(file)
            };
            let files = (0..clients).map(open).collect::<Result<Vec<_>>>()?;
            *rate = mb_per_s(bytes, threads::run_lanes(files, |file| read_blocks(file, amounts.blocks))?);
        }
        series.add(row, name, rates[0]);
        series.add(again, name, rates[1]);
    }
    let (small, page) = (writable(&subject.file("small"))?, [9; PAGE]);
    let synced = timed(amounts.synced, |number| {
        small.write_all_at(&page, (number * PAGE) as u64)?;
        small.sync_data()
    })?;
    series.add_latencies(SYNC, name, &synced);
    Ok(())
}

fn timed(count: usize, mut work: impl FnMut(usize) -> io::Result<()>) -> Result<Vec<f64>> {
    let mut us = Vec::with_capacity(count);
    (0..count).try_for_each(|number| time_us(&mut us, || work(number)))?;
    Ok(us)
}

fn large(subject: &Subject, client: usize) -> PathBuf {
    subject.file(&format!("large-{client}"))
}

pub(super) const CREATE: &str = "create per s";
pub(super) const STAT: &str = "stat per s";
pub(super) const STAT_OF_SERVER: &str = "stat, forced, per s";
pub(super) const UNLINK: &str = "unlink per s";
pub(super) const RATES: [&str; 4] = [CREATE, STAT, STAT_OF_SERVER, UNLINK];

axis! {
    /// The operation on the files. Each phase runs for the files of all rounds before the next one begins. One reason is ext4
    /// without a journal: when it creates a file, it looks at every inode that any process has removed in the last minute.
    pub(super) enum Phase {
        /// Each name is new, so it is in no cache.
        Create = "create",
        /// Reads the attributes of each file twice: once as the kernel may cache them, and once forced, so that the server
        /// has to answer.
        Stat = "stat",
        Unlink = "unlink",
    }
}

impl Phase {
    /// Measures one turn.
    pub(super) fn measure(self, subject: &Subject, amounts: Amounts, round: u32, series: &mut Series) -> Result<()> {
        let files = amounts.files;
        let directory = subject.path().join(format!("names-{round}"));
        let paths: Vec<PathBuf> = (0..files).map(|number| directory.join(format!("file-{number}"))).collect();
        let _placed = Placement::Together.place(subject.pid())?;
        let mut time = |row, work: &dyn Fn(&Path) -> io::Result<()>| -> Result<()> {
            let start = Instant::now();
            paths
                .iter()
                .try_for_each(|path| work(path))
                .with_context(|| format!("{row} in {}", directory.display()))?;
            series.add(row, subject.name(), files as f64 / start.elapsed().as_secs_f64());
            Ok(())
        };
        let look = |path: &Path| fs::metadata(path).map(drop);
        match self {
            Self::Create => {
                make_directory(&directory)?;
                time(CREATE, &|path| File::create_new(path).map(drop))
            }
            Self::Stat => {
                paths.iter().try_for_each(|path| look(path)).context("cannot read the attributes of a new file")?;
                time(STAT, &look)?;
                let force = |path: &Path| statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
                time(STAT_OF_SERVER, &|path| Ok(force(path).map(drop)?))
            }
            Self::Unlink => {
                paths.iter().try_for_each(|path| look(path)).context("cannot read the attributes of a new file")?;
                time(UNLINK, &|path| fs::remove_file(path))?;
                fs::remove_dir(&directory).with_context(|| format!("cannot remove {}", directory.display()))
            }
        }
    }
}

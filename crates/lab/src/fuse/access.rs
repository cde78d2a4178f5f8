//! Reading and writing files of a mounted directory, one system call after another.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, fadvise};
use slackwater_backends::Random;

use super::subject::Subject;
use crate::harness::placement::Placement;
use crate::harness::{Options, Series, mb_per_s, threads};

pub(crate) const PAGE: usize = 4096;
const BLOCK: usize = 1 << 20;
const CLIENTS: [usize; 2] = [1, 2];

/// Client and server on one CPU, on two, and where the scheduler puts them.
pub(crate) const SEQUENTIAL: [&str; 3] =
    ["4 KiB write, sequential", "4 KiB write, sequential, 2 CPUs", "4 KiB write, sequential, free"];
pub(crate) const RANDOM: [&str; 3] =
    ["4 KiB write, random", "4 KiB write, random, 2 CPUs", "4 KiB write, random, free"];
pub(crate) const SYNC: &str = "4 KiB write and fdatasync";
pub(crate) const WRITE: [&str; 2] = ["1 MiB write, 1 client", "1 MiB write, 2 clients"];
pub(crate) const READ: [&str; 2] = ["1 MiB read, 1 client", "1 MiB read, 2 clients"];
pub(crate) const READ_AGAIN: [&str; 2] = ["1 MiB read again, 1 client", "1 MiB read again, 2 clients"];

/// The two rows of a latency.
pub(crate) fn p50(row: &str) -> String {
    format!("{row}, p50 us")
}

pub(crate) fn p99(row: &str) -> String {
    format!("{row}, p99 us")
}

/// How much of everything in a turn.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Amounts {
    /// Small writes of each kind.
    small: usize,
    /// Small writes with fdatasync.
    synced: usize,
    /// Pages of the file that is overwritten at random.
    pages: u64,
    /// Blocks of each client's large file.
    blocks: u64,
}

impl Amounts {
    pub(crate) fn of(options: &Options) -> Self {
        let (small, synced) = (options.pick(4000, 1500), options.pick(100, 30));
        Self { small, synced, pages: options.pick(16_384, 8192), blocks: options.pick(128, 64) }
    }
}

/// Makes the files that are overwritten and read.
pub(crate) fn prepare(subject: &Subject, amounts: Amounts) -> Result<()> {
    let blocks = amounts.pages * PAGE as u64 / BLOCK as u64;
    write_blocks(&writable(&subject.file("random"))?, blocks)?;
    for client in CLIENTS {
        write_blocks(&writable(&large(subject, client - 1))?, amounts.blocks)?;
    }
    Ok(())
}

/// One turn of writing.
pub(crate) fn write(subject: &Subject, amounts: Amounts, seed: u64, series: &mut Series) -> Result<()> {
    let (name, page) = (subject.name(), [7; PAGE]);
    let path = subject.file("small");
    for (placement, (sequential, scattered)) in Placement::ALL.into_iter().zip(SEQUENTIAL.into_iter().zip(RANDOM)) {
        if subject.keeps_files() && path.exists() {
            std::fs::remove_file(&path)?;
        }
        let (small, file) = (writable(&path)?, writable(&subject.file("random"))?);
        let _placed = placement.place(subject.pid())?;
        let times = timed(amounts.small, |number| small.write_all_at(&page, (number * PAGE) as u64))?;
        add(series, sequential, name, times);
        let mut random = Random::new(seed);
        let times = timed(amounts.small, |_| file.write_all_at(&page, random.below(amounts.pages) * PAGE as u64))?;
        add(series, scattered, name, times);
    }

    for (clients, row) in CLIENTS.into_iter().zip(WRITE) {
        let files = (0..clients).map(|client| writable(&large(subject, client))).collect::<Result<Vec<_>>>()?;
        let time = threads::run_lanes(files, |file| write_blocks(file, amounts.blocks))?;
        series.add(row, name, mb_per_s(clients as u64 * amounts.blocks * BLOCK as u64, time));
    }
    Ok(())
}

/// One turn of reading the large files, and of writes with fdatasync.
pub(crate) fn read_and_sync(subject: &Subject, amounts: Amounts, series: &mut Series) -> Result<()> {
    let name = subject.name();
    for (clients, (row, again)) in CLIENTS.into_iter().zip(READ.into_iter().zip(READ_AGAIN)) {
        let bytes = clients as u64 * amounts.blocks * BLOCK as u64;
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
    add(series, SYNC, name, synced);
    Ok(())
}

/// Makes all files durable, so that the next turn is undisturbed.
pub(crate) fn sync(subject: &Subject) -> Result<()> {
    for entry in std::fs::read_dir(subject.path())? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    Ok(())
}

fn add(series: &mut Series, row: &str, subject: &'static str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
    series.add(&p50(row), subject, at(50));
    series.add(&p99(row), subject, at(99));
}

fn timed(count: usize, mut work: impl FnMut(usize) -> std::io::Result<()>) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(count);
    for number in 0..count {
        let start = Instant::now();
        work(number)?;
        times.push(start.elapsed());
    }
    Ok(times)
}

fn large(subject: &Subject, client: usize) -> PathBuf {
    subject.file(&format!("large-{client}"))
}

fn writable(path: &Path) -> Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    file.with_context(|| format!("cannot open {} for writing", path.display()))
}

fn write_blocks(file: &File, blocks: u64) -> Result<()> {
    let block = vec![5; BLOCK];
    (0..blocks).try_for_each(|number| Ok(file.write_all_at(&block, number * BLOCK as u64)?))
}

fn read_blocks(file: &File, blocks: u64) -> Result<()> {
    let mut block = vec![0; BLOCK];
    for number in 0..blocks {
        file.read_exact_at(&mut block, number * BLOCK as u64)?;
        ensure!(block[0] == 5 && block[BLOCK - 1] == 5, "the bytes that were read differ from those that were written");
    }
    Ok(())
}

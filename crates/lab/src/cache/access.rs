//! Overwriting and reading cached pages in sequential and random order, and the first write of a file.
//!
//! The turn of a setting: every page of all subjects is written once; then pages are written in both orders; then everything
//! is settled; then pages are read in both orders. So writes meet dirty pages while writeback runs as it does by default,
//! and reads meet clean pages. In each of the four steps the subjects follow directly on one another: the use of the
//! machine's memory by others changes within a second, and what is wanted is ratios.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use slackwater::Tunables;
use slackwater_testkit::Random;

use super::subject::Memory;
use super::subject::{Cached, Kernel, Operation, Sharing, Subject, Writer};
use crate::harness::{Options, Series, axis, rounds, threads};

/// Bytes that every operation copies.
pub(crate) const PAGE: usize = 4096;

axis! {
    /// The order in which pages are used.
    pub(crate) enum Order {
        Sequential = "sequential",
        /// Every page is equally likely each time.
        Random = "random",
    }
}

/// An endless sequence of page numbers.
#[derive(Clone, Debug)]
pub(crate) enum Pattern {
    Sequential { next: u64, pages: u64 },
    Random { random: Random, pages: u64 },
}

impl Pattern {
    /// A pattern of the pages `0..pages`; a sequential one begins at `start` and wraps around.
    pub(crate) fn new(order: Order, start: u64, pages: u64, seed: u64) -> Self {
        match order {
            Order::Sequential => Self::Sequential { next: start % pages, pages },
            Order::Random => Self::Random { random: Random::new(seed ^ start.rotate_left(32)), pages },
        }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        match self {
            Self::Sequential { next, pages } => {
                let page = *next;
                *next = if page + 1 == *pages { 0 } else { page + 1 };
                page
            }
            Self::Random { random, pages } => random.below(*pages),
        }
    }
}

/// An aligned page to write from or to read into.
#[repr(align(4096))]
pub(crate) struct PageBuffer(pub(crate) [u8; PAGE]);

/// Size of each file in a full and in a quick run: far more than any processor's cache.
const FILE_BYTES: (u64, u64) = (256 << 20, 128 << 20);
const ARENA_BYTES: u64 = 1 << 30;
/// Number of files: one for each of two threads.
const FILES: usize = 2;

/// The number of threads, and whether they share a file.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Setting {
    pub(crate) threads: usize,
    pub(crate) sharing: Sharing,
}

impl Setting {
    pub(crate) const ONE: Self = Self { threads: 1, sharing: Sharing::Own };
    pub(crate) const TWO_OWN: Self = Self { threads: 2, sharing: Sharing::Own };
    pub(crate) const TWO_SHARED: Self = Self { threads: 2, sharing: Sharing::Shared };
    pub(crate) const ALL: [Self; 3] = [Self::ONE, Self::TWO_OWN, Self::TWO_SHARED];
}

/// `write random, 2 on own files`.
pub(crate) fn row(operation: Operation, order: Order, setting: Setting) -> String {
    let threads = match (setting.threads, setting.sharing) {
        (1, _) => "1 thread".to_owned(),
        (threads, Sharing::Own) => format!("{threads} on own files"),
        (threads, Sharing::Shared) => format!("{threads} on one file"),
    };
    format!("{} {}, {threads}", operation.name(), order.name())
}

/// The row of first writes.
pub(crate) const FIRST_WRITE: &str = "first write sequential, 1 thread";

/// Writeback by amount starts only beyond what is written, as it does for the kernel's files, where it starts at a tenth of the
/// machine's memory. Here the cache is just large enough for the files. Old data is written back on both sides.
fn tunables() -> Tunables {
    Tunables { volume_share_percent: 75, dirty_background_percent: 75, dirty_percent: 100, ..Tunables::default() }
}

/// Size of each file.
pub(crate) fn file_bytes(options: &Options) -> u64 {
    options.pick(FILE_BYTES.0, FILE_BYTES.1)
}

/// All subjects. The kernel's disk is the file system of `dir`.
fn subjects(options: &Options, dir: &Path, files: usize) -> Result<Vec<Box<dyn Subject>>> {
    let bytes = file_bytes(options);
    let mut subjects: Vec<Box<dyn Subject>> = vec![
        Box::new(Memory::new(files, bytes)),
        Box::new(Cached::new(dir, ARENA_BYTES, tunables(), files, bytes, Writer::Root)?),
        Box::new(Cached::new(dir, ARENA_BYTES, tunables(), files, bytes, Writer::Tenant)?),
        Box::new(Kernel::new(super::DISK, dir, files, bytes, true)?),
    ];
    let shared_memory = Path::new("/dev/shm");
    if shared_memory.is_dir() {
        subjects.push(Box::new(Kernel::new(super::TMPFS, shared_memory, files, bytes, false)?));
    }
    Ok(subjects)
}

/// Measures overwriting and reading, in ns per page and thread.
pub(crate) fn overwrite_and_read(options: &Options, dir: &Path, series: &mut Series) -> Result<()> {
    let (count, pages) = (options.pick(65_536, 16_384), file_bytes(options) / PAGE as u64);
    let mut subjects = subjects(options, dir, FILES)?;
    for subject in &mut subjects {
        for setting in [Setting::TWO_OWN, Setting::TWO_SHARED] {
            touch(&mut **subject, setting, pages)?;
        }
        subject.settle()?;
    }
    rounds::run("access", options.rounds(), &Setting::ALL, |round, setting| {
        let (setting, seed) = (*setting, options.seed.wrapping_add(u64::from(round)));
        for subject in &mut subjects {
            touch(&mut **subject, setting, pages)?;
        }
        for operation in Operation::ALL {
            for order in Order::ALL {
                for subject in &mut subjects {
                    let time = batch(&mut **subject, operation, order, setting, count, seed)?;
                    let ns = time.as_nanos() as f64 / count as f64;
                    series.add(&row(operation, order, setting), subject.name(), ns);
                }
            }
            for subject in &mut subjects {
                subject.settle()?;
            }
        }
        Ok(())
    })
}

/// Measures writes that make a file grow.
pub(crate) fn first_write(options: &Options, dir: &Path, series: &mut Series) -> Result<()> {
    let mut subjects = subjects(options, dir, 1)?;
    let count = file_bytes(options) / PAGE as u64;
    let turns: Vec<usize> = (0..subjects.len()).collect();
    rounds::run("first write", options.rounds(), &turns, |_, turn| {
        let subject = &mut *subjects[*turn];
        subject.empty()?;
        let time = batch(subject, Operation::Write, Order::Sequential, Setting::ONE, count, 0)?;
        series.add(FIRST_WRITE, subject.name(), time.as_nanos() as f64 / count as f64);
        subject.empty()?;
        subject.settle()
    })
}

/// Writes every page once.
fn touch(subject: &mut dyn Subject, setting: Setting, pages: u64) -> Result<()> {
    let each = if setting.sharing == Sharing::Shared { pages / setting.threads as u64 } else { pages };
    batch(subject, Operation::Write, Order::Sequential, setting, each, 0).map(drop)
}

/// Lets each thread do `count` operations, all at once, and returns the time that took.
fn batch(
    subject: &mut dyn Subject,
    operation: Operation,
    order: Order,
    setting: Setting,
    count: u64,
    seed: u64,
) -> Result<Duration> {
    let lanes = subject.lanes(setting.threads, setting.sharing).into_iter().enumerate();
    let lanes = lanes.map(|(number, lane)| {
        let is_split = setting.sharing == Sharing::Shared && !lane.is_slice;
        let start = if is_split { lane.pages * number as u64 / setting.threads as u64 } else { 0 };
        let pattern = Pattern::new(order, start, lane.pages, seed + number as u64);
        (lane, pattern)
    });
    threads::run_lanes(lanes.collect(), |(lane, pattern)| lane.batch(operation, pattern, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_pattern_wraps_around_from_its_start() {
        let mut pattern = Pattern::new(Order::Sequential, 2, 4, 1);
        assert_eq!([(); 6].map(|()| pattern.next()), [2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn random_patterns_differ_between_lanes_and_repeat_with_the_seed() {
        let draw = |start| {
            let mut pattern = Pattern::new(Order::Random, start, 1 << 16, 1);
            [(); 8].map(|()| pattern.next())
        };
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1 << 15));
    }
}

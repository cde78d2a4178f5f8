//! Overwriting and reading cached pages, and the first write of a file.
//!
//! A setting's turn in a round: every page of all subjects is written once, then come the two orders of writing,
//! then everything is settled, then come the two orders of reading. So writes meet dirty pages with write-back
//! going on as it does by default, and reads meet clean ones. For each of the four the subjects follow directly on
//! one another: what else the machine's memory is used for changes within a second, and ratios are what is asked.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use slackwater::Tunables;

use super::memory::Memory;
use super::pattern::{Order, PAGE, Pattern};
use super::subject::{Cached, Kernel, Operation, Sharing, Subject, Writer};
use crate::options::Options;
use crate::series::Series;
use crate::{lanes, rounds};

/// Size of each file in a full and in a quick run: far more than any processor's cache.
const FILE_BYTES: (u64, u64) = (256 << 20, 128 << 20);
const ARENA_BYTES: u64 = 1 << 30;
/// Files that two threads need to have one each.
const FILES: usize = 2;

/// Threads, and what they share.
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

/// Name of the rows of first writes.
pub(crate) const FIRST_WRITE: &str = "first write sequential, 1 thread";

/// Write-back by amount starts where it does for the kernel's subjects, which is beyond what they write: at a
/// tenth of the machine's memory, not of a cache that is just large enough for the files. Old data is written
/// back on all sides.
fn tunables() -> Tunables {
    Tunables { volume_share_percent: 75, dirty_background_percent: 75, dirty_percent: 100, ..Tunables::default() }
}

/// Size of each file.
pub(crate) fn file_bytes(options: &Options) -> u64 {
    options.pick(FILE_BYTES.0, FILE_BYTES.1)
}

/// All that is compared, ready. The kernel's disk is the file system of `dir`.
fn subjects(options: &Options, dir: &Path, files: usize) -> Result<Vec<Box<dyn Subject>>> {
    let bytes = file_bytes(options);
    let mut subjects: Vec<Box<dyn Subject>> = vec![
        Box::new(Memory::new(files, bytes)),
        Box::new(Cached::new(dir, ARENA_BYTES, tunables(), files, bytes, Writer::Anybody)?),
        Box::new(Cached::new(dir, ARENA_BYTES, tunables(), files, bytes, Writer::Tenant)?),
        Box::new(Kernel::new(super::DISK, dir, files, bytes, true)?),
    ];
    let shared_memory = Path::new("/dev/shm");
    if shared_memory.is_dir() {
        subjects.push(Box::new(Kernel::new(super::TMPFS, shared_memory, files, bytes, false)?));
    }
    Ok(subjects)
}

/// Measures overwriting and reading: ns per page and thread.
pub(crate) fn overwrite_and_read(options: &Options, dir: &Path, series: &mut Series) -> Result<()> {
    let (count, pages) = (options.pick(65_536, 16_384), file_bytes(options) / PAGE as u64);
    let mut subjects = subjects(options, dir, FILES)?;
    for subject in &mut subjects {
        for setting in [Setting::TWO_OWN, Setting::TWO_SHARED] {
            touch(&mut **subject, setting, pages)?;
        }
        subject.settle()?;
    }
    // Every setting of a round follows directly on the one before: they are compared too.
    rounds::run("access", options.rounds(), Setting::ALL.len(), |round, turn| {
        let (setting, seed) = (Setting::ALL[turn], options.seed.wrapping_add(u64::from(round)));
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
    rounds::run("first write", options.rounds(), subjects.len(), |_, turn| {
        let subject = &mut *subjects[turn];
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

/// Has each thread do `count` operations at once with the others; the time it took.
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
        let (start, pages) = match setting.sharing {
            Sharing::Own => lane.pages(0.0),
            Sharing::Shared => lane.pages(number as f64 / setting.threads as f64),
        };
        (lane, Pattern::new(order, start, pages, seed + number as u64))
    });
    lanes::run(lanes.collect(), |(lane, pattern)| lane.batch(operation, pattern, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names_of_their_own() {
        let all = Operation::ALL
            .map(|operation| Order::ALL.map(|order| Setting::ALL.map(|setting| row(operation, order, setting))));
        let names: std::collections::BTreeSet<_> = all.into_iter().flatten().flatten().collect();
        assert_eq!(names.len(), 12);
        assert!(names.contains("write random, 2 on own files"));
    }
}

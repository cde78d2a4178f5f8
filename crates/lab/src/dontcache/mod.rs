//! `dontcache`: writes that leave nothing in the cache, in both forms, beside buffered writes and the kernel's own.
//!
//! Five jobs, whose amounts are parts of a memory: 16 threads that write one file in order, or at random; four
//! files; 32 files of small blocks; and a buffered writer beside a second one. The engine has an arena of that size, a new
//! one for each run. The kernel has all memory of the machine, so the jobs do not show what it does when memory is short.
//!
//! On the *disk* all subjects take turns. On a *slow* backend, with an injected 200 MB/s and 1 ms, only the engine's forms
//! do. They write a quarter of the memory at most, which may be dirty before the throttle makes writers wait. So a write
//! waits only where its form makes it wait.
//!
//! The 32 files are also written at a *pace* that the disk keeps up with, as it did where the figures were published.
//! Kicking and buffered writers that are faster than the disk leave dirty what the throttle allows.

mod results;
mod running;
mod sites;

use std::time::Duration;

use anyhow::Result;
use slackwater_testkit::Random;

use crate::harness::{Options, Report, axis, rounds};
use crate::scratch::Scratch;

axis! {
    /// A part of the experiment.
    enum Job {
        /// One file in order, 16 threads, 1 MiB each.
        Sequential = "sequential",
        /// One file at random, 16 threads, 4 KiB each.
        Random = "random",
        /// Four files, 1 MiB.
        FourWriters = "four writers",
        /// 32 files, 64 KiB.
        ManyFiles = "32 files",
        /// A buffered writer and a second writer, 1 MiB.
        Competing = "competing",
    }
}

/// The amounts of a job.
#[derive(Copy, Clone, Debug)]
struct Shape {
    block_bytes: usize,
    files: usize,
    threads_per_file: usize,
    file_bytes: u64,
}

impl Job {
    /// The shape with a memory of `scale_bytes`. Two amounts differ from the published recipe. Random writes are a quarter of
    /// the memory, not twice. Each of two competing writers has four times the memory, not twice: a part of it may be dirty
    /// before any writer waits.
    fn shape(self, scale_bytes: u64) -> Shape {
        const MIB: usize = 1 << 20;
        let (block_bytes, files, threads_per_file, file_bytes) = match self {
            Self::Sequential => (MIB, 1, 16, 2 * scale_bytes),
            Self::Random => (4096, 1, 16, scale_bytes / 4),
            Self::FourWriters => (MIB, 4, 1, scale_bytes / 4),
            Self::ManyFiles => (64 << 10, 32, 1, 2 * scale_bytes / 32),
            Self::Competing => (MIB, 2, 1, 4 * scale_bytes),
        };
        Shape { block_bytes, files, threads_per_file, file_bytes }
    }

    /// The order in which the blocks of a file are written.
    fn order(self, blocks: u64, seed: u64) -> Vec<u64> {
        let mut order: Vec<_> = (0..blocks).collect();
        if self == Self::Random {
            Random::new(seed).shuffle(&mut order);
        }
        order
    }
}

axis! {
    enum Subject {
        /// The engine with DONTCACHE writes, as in Linux 7.2.
        Kick = "engine, kick",
        /// The engine with DONTCACHE writes, as in Linux up to 7.1.
        Inline = "engine, inline",
        Buffered = "engine, buffered",
        KernelBuffered = "kernel, buffered",
        KernelDontcache = "kernel, RWF_DONTCACHE",
        KernelDirect = "kernel, O_DIRECT",
    }
}

impl Subject {
    fn is_engine(self) -> bool {
        matches!(self, Self::Kick | Self::Inline | Self::Buffered)
    }

    fn is_dontcache(self) -> bool {
        matches!(self, Self::Kick | Self::Inline | Self::KernelDontcache)
    }
}

axis! {
    enum Place {
        /// A directory.
        Disk = "disk",
        /// The same with pauses between writes, so that the disk keeps up with the writers.
        Paced = "disk, paced to 1 GB/s",
        /// The same with an injected bandwidth and latency.
        Slow = "200 MB/s and 1 ms",
    }
}

impl Place {
    /// The pause of a writer between two writes. On the slow place it leaves the CPUs to the others: where no writer waits
    /// for the backend, all would otherwise wait for a CPU. Paced: 32 writers of 64 KiB every 2 ms write 1 GB/s.
    fn think_time(self) -> Option<Duration> {
        match self {
            Self::Disk => None,
            Self::Paced => Some(Duration::from_millis(2)),
            Self::Slow => Some(Duration::from_millis(1)),
        }
    }
}

/// A job of a subject at a place, which has a turn in each round.
#[derive(Copy, Clone, Eq, Ord, PartialEq, PartialOrd, Debug)]
struct Cell {
    job: Job,
    place: Place,
    subject: Subject,
}

impl Cell {
    /// All cells of a job.
    fn of(job: Job) -> Vec<Self> {
        let subjects = move |place| Subject::ALL.into_iter().map(move |subject| Self { job, place, subject });
        Place::ALL.into_iter().flat_map(subjects).filter(|cell| cell.exists()).collect()
    }

    fn exists(self) -> bool {
        match self.place {
            // A direct writer does not compete for the cache.
            Place::Disk => self.job != Job::Competing || self.subject != Subject::KernelDirect,
            Place::Paced => self.job == Job::ManyFiles && self.subject != Subject::KernelDirect,
            Place::Slow => self.subject.is_engine() && self.job != Job::Competing,
        }
    }

    fn shape(self, scale_bytes: u64) -> Shape {
        let shape = self.job.shape(scale_bytes);
        match self.place {
            Place::Disk | Place::Paced => shape,
            Place::Slow => Shape { file_bytes: shape.file_bytes.min(scale_bytes / 4 / shape.files as u64), ..shape },
        }
    }

    /// The row of a figure; its subjects are those of the job.
    fn row(self, figure: &str) -> String {
        format!("{}, {}: {figure}", self.job.name(), self.place.name())
    }
}

/// Runs the experiment.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    // The memory that amounts are parts of.
    let scale_bytes = options.pick(256 << 20, 64 << 20);
    let home = Scratch::in_folder(&options.dir)?;
    for job in Job::ALL {
        rounds::run(job.name(), options.rounds(), &Cell::of(job), |round, cell| {
            let seed = options.seed ^ u64::from(round) << 32;
            running::run(*cell, scale_bytes, home.path(), seed, &mut report.series)
        })?;
    }
    report.figure("scale_bytes", scale_bytes);
    results::publish(scale_bytes, report);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_written_once() {
        for job in Job::ALL {
            let shape = job.shape(64 << 20);
            let blocks = shape.file_bytes / shape.block_bytes as u64;
            assert_eq!(blocks * shape.block_bytes as u64, shape.file_bytes, "{job:?}");
            let mut order = job.order(blocks, 7);
            assert_eq!(order.is_sorted(), job != Job::Random);
            order.sort_unstable();
            assert!(order.into_iter().eq(0..blocks));
        }
    }
}

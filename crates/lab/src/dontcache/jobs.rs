//! The jobs: block sizes, files, threads and amounts.

use clap::ValueEnum;
use slackwater_backends::Random;

/// A part of the experiment; sem. 12.4.
#[derive(Copy, Clone, Eq, Ord, PartialEq, PartialOrd, Debug, ValueEnum)]
pub(crate) enum Job {
    /// One file in order, 16 threads, 1 MiB each
    Sequential,
    /// One file at random, 16 threads, 4 KiB each
    Random,
    /// Four files, 1 MiB
    FourWriters,
    /// 32 files, 64 KiB
    ManyFiles,
    /// A buffered writer and a second writer, 1 MiB
    Competing,
}

/// The amounts of a job.
#[derive(Copy, Clone, Debug)]
pub(super) struct Shape {
    pub(super) block_bytes: usize,
    pub(super) files: usize,
    pub(super) threads_per_file: usize,
    pub(super) file_bytes: u64,
}

impl Job {
    pub(super) const ALL: [Self; 5] =
        [Self::Sequential, Self::Random, Self::FourWriters, Self::ManyFiles, Self::Competing];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
            Self::FourWriters => "four writers",
            Self::ManyFiles => "32 files",
            Self::Competing => "competing",
        }
    }

    /// The shape with a memory of `scale_bytes`. Two amounts differ from the published recipe. Random writes are a quarter of
    /// the memory, not twice. Each of two competing writers has four times the memory, not twice: a part of it may be dirty
    /// before any writer waits.
    pub(super) fn shape(self, scale_bytes: u64) -> Shape {
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
    pub(super) fn order(self, blocks: u64, seed: u64) -> Vec<u64> {
        let mut order: Vec<_> = (0..blocks).collect();
        if self == Self::Random {
            Random::new(seed).shuffle(&mut order);
        }
        order
    }
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

//! The subjects that write, and the places where they write.

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use slackwater::DontcacheForm;

use super::engine::EngineSite;
use super::jobs::{Job, Shape};
use super::kernel::{KernelSite, Mode};
use crate::harness::axis;

axis! {
    pub(super) enum Subject {
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

    pub(super) fn is_dontcache(self) -> bool {
        matches!(self, Self::Kick | Self::Inline | Self::KernelDontcache)
    }
}

axis! {
    pub(super) enum Place {
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
    pub(super) fn think_time(self) -> Option<Duration> {
        match self {
            Self::Disk => None,
            Self::Paced => Some(Duration::from_millis(2)),
            Self::Slow => Some(Duration::from_millis(1)),
        }
    }
}

/// A job of a subject at a place, which has a turn in each round.
#[derive(Copy, Clone, Eq, Ord, PartialEq, PartialOrd, Debug)]
pub(super) struct Cell {
    pub(super) job: Job,
    pub(super) place: Place,
    pub(super) subject: Subject,
}

impl Cell {
    /// All cells of a job.
    pub(super) fn of(job: Job) -> Vec<Self> {
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

    pub(super) fn shape(self, scale_bytes: u64) -> Shape {
        let shape = self.job.shape(scale_bytes);
        match self.place {
            Place::Disk | Place::Paced => shape,
            Place::Slow => Shape { file_bytes: shape.file_bytes.min(scale_bytes / 4 / shape.files as u64), ..shape },
        }
    }

    /// New, empty files. `None`: the file system does not support this.
    pub(super) fn open(self, scale_bytes: u64, folder: &Path) -> Result<Option<Box<dyn Site>>> {
        let files = self.job.shape(scale_bytes).files;
        let engine = |form| -> Result<Option<Box<dyn Site>>> {
            Ok(Some(Box::new(EngineSite::new(scale_bytes, form, self.place, files, folder)?)))
        };
        match self.subject {
            Subject::Kick | Subject::Buffered => engine(DontcacheForm::Kick),
            Subject::Inline => engine(DontcacheForm::Inline),
            Subject::KernelBuffered => KernelSite::open(Mode::Buffered, files, folder),
            Subject::KernelDontcache => KernelSite::open(Mode::Dontcache, files, folder),
            Subject::KernelDirect => KernelSite::open(Mode::Direct, files, folder),
        }
    }
}

/// Files that a job writes.
pub(super) trait Site: Sync {
    /// Writes `block`, and blocks as any write does. `dontcache`: as the subject does it, else as an ordinary buffered write.
    fn write(&self, file: usize, dontcache: bool, offset_bytes: u64, block: &[u8]) -> Result<()>;

    /// Dirty bytes that are not under writeback.
    fn dirty_bytes(&self) -> Result<u64>;

    /// Makes everything durable. Returns by how much the cache has grown since the site was opened.
    fn clean(&self) -> Result<u64>;

    /// Passes of the flusher for DONTCACHE writes.
    fn passes(&self) -> u64;
}

/// Bytes to write, aligned to a page as direct writes need them.
pub(super) struct Block {
    memory: Vec<u8>,
    skip: usize,
    len: usize,
}

impl Block {
    pub(super) fn new(len: usize) -> Self {
        const PAGE: usize = 4096;
        let memory = vec![0x5a; len + PAGE];
        let skip = memory.as_ptr().align_offset(PAGE);
        Self { memory, skip, len }
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.skip..self.skip + self.len]
    }
}

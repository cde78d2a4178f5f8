//! Who writes, and where: what is compared.

use std::path::Path;

use anyhow::Result;
use slackwater::DontcacheForm;

use super::engine::EngineSite;
use super::jobs::{Job, Shape};
use super::kernel::{KernelSite, Road};

/// Whose writes.
#[derive(Copy, Clone, Eq, Ord, PartialEq, PartialOrd, Debug)]
pub(super) enum Subject {
    /// The engine, DONTCACHE, as in Linux 7.2.
    Kick,
    /// The engine, DONTCACHE, as in Linux up to 7.1.
    Inline,
    /// The engine, ordinary writes.
    Buffered,
    KernelBuffered,
    KernelDontcache,
    KernelDirect,
}

impl Subject {
    pub(super) const ALL: [Self; 6] =
        [Self::Kick, Self::Inline, Self::Buffered, Self::KernelBuffered, Self::KernelDontcache, Self::KernelDirect];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kick => "engine, kick",
            Self::Inline => "engine, inline",
            Self::Buffered => "engine, buffered",
            Self::KernelBuffered => "kernel, buffered",
            Self::KernelDontcache => "kernel, RWF_DONTCACHE",
            Self::KernelDirect => "kernel, O_DIRECT",
        }
    }

    fn is_of_engine(self) -> bool {
        matches!(self, Self::Kick | Self::Inline | Self::Buffered)
    }

    /// Whether its writes are not to stay in the cache.
    pub(super) fn is_dontcache(self) -> bool {
        matches!(self, Self::Kick | Self::Inline | Self::KernelDontcache)
    }
}

/// On what.
#[derive(Copy, Clone, Eq, Ord, PartialEq, PartialOrd, Debug)]
pub(super) enum Place {
    /// A directory.
    Disk,
    /// The same behind a line of 200 MB/s and 1 ms.
    Slow,
}

impl Place {
    pub(super) const ALL: [Self; 2] = [Self::Disk, Self::Slow];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Slow => "200 MB/s and 1 ms",
        }
    }

    /// One of so many parts of a job's amounts is written here.
    fn part(self) -> u64 {
        match self {
            Self::Disk => 1,
            Self::Slow => 8,
        }
    }
}

/// What has a turn in each round.
#[derive(Copy, Clone, Eq, Ord, PartialEq, PartialOrd, Debug)]
pub(super) struct Cell {
    pub(super) job: Job,
    pub(super) place: Place,
    pub(super) subject: Subject,
}

impl Cell {
    /// All of a job.
    pub(super) fn of(job: Job) -> Vec<Self> {
        let subjects = move |place| Subject::ALL.into_iter().map(move |subject| Self { job, place, subject });
        Place::ALL.into_iter().flat_map(subjects).filter(|cell| cell.is_there()).collect()
    }

    fn is_there(self) -> bool {
        match self.place {
            // One that does not wait for the device has no competitor.
            Place::Disk => self.job != Job::Competing || self.subject != Subject::KernelDirect,
            Place::Slow => self.subject.is_of_engine() && self.job != Job::Competing,
        }
    }

    pub(super) fn shape(self, scale_bytes: u64) -> Shape {
        let shape = self.job.shape(scale_bytes);
        Shape { file_bytes: shape.file_bytes / self.place.part(), ..shape }
    }

    /// New, empty files. `None`: the file system cannot do this.
    pub(super) fn open(self, scale_bytes: u64, folder: &Path) -> Result<Option<Box<dyn Site>>> {
        let files = self.job.shape(scale_bytes).files;
        let engine = |form| -> Result<Option<Box<dyn Site>>> {
            Ok(Some(Box::new(EngineSite::new(scale_bytes, form, self.place, files, folder)?)))
        };
        match self.subject {
            Subject::Kick | Subject::Buffered => engine(DontcacheForm::Kick),
            Subject::Inline => engine(DontcacheForm::Inline),
            Subject::KernelBuffered => KernelSite::open(Road::Buffered, files, folder),
            Subject::KernelDontcache => KernelSite::open(Road::Dontcache, files, folder),
            Subject::KernelDirect => KernelSite::open(Road::Direct, files, folder),
        }
    }
}

/// Files that a job writes.
pub(super) trait Site: Sync {
    /// Writes `block`, waiting as any writer does. `dontcache`: in the subject's way, else as an ordinary one.
    fn write(&self, file: usize, dontcache: bool, offset_bytes: u64, block: &[u8]) -> Result<()>;

    /// What is dirty and not under write-back.
    fn dirty_bytes(&self) -> Result<u64>;

    /// Makes everything durable. Returns what the cache has more than before.
    fn clean(&self) -> Result<u64>;

    /// Passes of the flusher for DONTCACHE writes.
    fn passes(&self) -> u64;
}

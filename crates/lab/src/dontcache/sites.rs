//! Where a job writes: files of an engine of their own, and files of the kernel.

use std::fs::{self, OpenOptions};
use std::io::IoSlice;
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::{OFlags, fdatasync, syncfs};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use slackwater::backend::Backend;
use slackwater::{
    DontcacheForm, Engine, File, Forms, PAGE_BYTES, SuperBlock, Tunables, WriteFlags, WriteRequest, Written,
};
use slackwater_backends::DirBackend;
use slackwater_testkit::Rate;

use super::{Cell, Place, Subject};
use crate::proc::meminfo;
use crate::rig;
use crate::scratch::{self, Scratch};

/// New, empty files of a cell. `None`: the file system does not support this.
pub(super) fn open(cell: Cell, scale_bytes: u64, folder: &Path) -> Result<Option<Box<dyn Site>>> {
    let files = cell.job.shape(scale_bytes).files;
    let engine = |form| -> Result<Option<Box<dyn Site>>> {
        Ok(Some(Box::new(EngineSite::new(scale_bytes, form, cell.place, files, folder)?)))
    };
    match cell.subject {
        Subject::Kick | Subject::Buffered => engine(DontcacheForm::Kick),
        Subject::Inline => engine(DontcacheForm::Inline),
        Subject::KernelBuffered | Subject::KernelDontcache | Subject::KernelDirect => {
            KernelSite::open(cell.subject, files, folder)
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

const BYTES_PER_S: u64 = 200_000_000;
const LATENCY: Duration = Duration::from_millis(1);

/// Files of an engine of their own, in a directory.
struct EngineSite {
    files: Vec<File>,
    volume: Arc<SuperBlock>,
    engine: Engine,
    _scratch: Scratch,
}

impl EngineSite {
    fn new(arena_bytes: u64, dontcache: DontcacheForm, place: Place, files: usize, folder: &Path) -> Result<Self> {
        let scratch = Scratch::in_folder(folder)?;
        let forms = Forms { dontcache, ..Forms::default() };
        let engine = rig::engine_with_forms(arena_bytes, Tunables::default(), forms)?;
        let directory: Arc<dyn Backend> = Arc::new(DirBackend::open(scratch.path())?);
        let backend = match place {
            Place::Disk | Place::Paced => directory,
            Place::Slow => Arc::new(Rate::new(directory, BYTES_PER_S).latency(LATENCY)),
        };
        let volume = rig::mount(&engine, "dontcache", backend)?;
        // Not synced: for a second after a sync the flusher's units are small.
        let files = (0..files).map(|number| rig::new_file(&volume, &number.to_string())).collect::<Result<_>>()?;
        Ok(Self { files, volume, engine, _scratch: scratch })
    }
}

impl Site for EngineSite {
    fn write(&self, file: usize, dontcache: bool, offset_bytes: u64, block: &[u8]) -> Result<()> {
        let flags = if dontcache { WriteFlags::DONTCACHE } else { WriteFlags::NONE };
        let written = self.files[file].write(WriteRequest::at(offset_bytes).flags(flags), block)?;
        ensure!(written == Written::Bytes(block.len()), "a block was not written whole: {written:?}");
        Ok(())
    }

    fn dirty_bytes(&self) -> Result<u64> {
        Ok(self.volume.status().dirty_bytes)
    }

    fn clean(&self) -> Result<u64> {
        self.volume.sync()?;
        let arena = self.engine.arena();
        Ok((u64::from(arena.frames()) - arena.free_frames()) * PAGE_BYTES)
    }

    fn passes(&self) -> u64 {
        self.volume.status().dontcache_passes
    }
}

impl Drop for EngineSite {
    fn drop(&mut self) {
        self.files.clear();
        rig::discard_or_say(&self.volume);
    }
}

/// `RWF_DONTCACHE` (Linux 6.14).
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Files of the kernel, without names.
struct KernelSite {
    files: Vec<fs::File>,
    cached_before: u64,
    dirty_before: u64,
}

impl KernelSite {
    /// `None`: the file system does not support `subject`.
    fn open(subject: Subject, files: usize, folder: &Path) -> Result<Option<Box<dyn Site>>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        if subject == Subject::KernelDirect {
            options.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        if subject == Subject::KernelDontcache && !has_dontcache(folder)? {
            return Ok(None);
        }
        let files = (0..files).map(|_| scratch::nameless(folder, &options)).collect::<Result<Vec<_>>>()?;
        syncfs(&files[0]).context("syncfs")?;
        let (cached_before, dirty_before) = (meminfo("Cached")?, meminfo("Dirty")?);
        Ok(Some(Box::new(Self { files, cached_before, dirty_before })))
    }
}

fn has_dontcache(folder: &Path) -> Result<bool> {
    let file = scratch::nameless_file(folder)?;
    match pwritev2(&file, &[IoSlice::new(&Block::new(4096))], 0, DONTCACHE) {
        Ok(_) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(false),
        Err(error) => Err(error).context("pwritev2"),
    }
}

impl Site for KernelSite {
    fn write(&self, file: usize, dontcache: bool, offset_bytes: u64, block: &[u8]) -> Result<()> {
        let flags = if dontcache { DONTCACHE } else { ReadWriteFlags::empty() };
        let written = pwritev2(&self.files[file], &[IoSlice::new(block)], offset_bytes, flags).context("pwritev2")?;
        ensure!(written == block.len(), "a short write of {written} bytes");
        Ok(())
    }

    fn dirty_bytes(&self) -> Result<u64> {
        Ok(meminfo("Dirty")?.saturating_sub(self.dirty_before))
    }

    fn clean(&self) -> Result<u64> {
        self.files.iter().try_for_each(|file| fdatasync(file).context("fdatasync"))?;
        Ok(meminfo("Cached")?.saturating_sub(self.cached_before))
    }

    fn passes(&self) -> u64 {
        0
    }
}

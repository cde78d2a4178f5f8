//! Files of the kernel, without names.

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{OFlags, fdatasync, syncfs};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use super::site::{Block, Site};
use crate::proc::meminfo;
use crate::scratch;

/// `RWF_DONTCACHE` (Linux 6.14).
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// How files are written.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Mode {
    Buffered,
    Dontcache,
    Direct,
}

pub(super) struct KernelSite {
    mode: Mode,
    files: Vec<File>,
    cached_before: u64,
    dirty_before: u64,
}

impl KernelSite {
    /// `None`: the file system does not support `mode`.
    pub(super) fn open(mode: Mode, files: usize, folder: &Path) -> Result<Option<Box<dyn Site>>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        if mode == Mode::Direct {
            options.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        if mode == Mode::Dontcache && !has_dontcache(folder)? {
            return Ok(None);
        }
        let files = (0..files).map(|_| scratch::nameless(folder, &options)).collect::<Result<Vec<_>>>()?;
        syncfs(&files[0]).context("syncfs")?;
        let (cached_before, dirty_before) = (meminfo("Cached")?, meminfo("Dirty")?);
        Ok(Some(Box::new(Self { mode, files, cached_before, dirty_before })))
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
        let flags = if dontcache && self.mode == Mode::Dontcache { DONTCACHE } else { ReadWriteFlags::empty() };
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

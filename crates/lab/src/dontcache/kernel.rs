//! Files of the kernel, without names.

use std::fs::{self, File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{OFlags, fdatasync, syncfs};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use super::block::Block;
use super::site::Site;
use crate::scratch;

/// `RWF_DONTCACHE` (Linux 6.14).
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// How it is written.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Road {
    Buffered,
    Dontcache,
    Direct,
}

pub(super) struct KernelSite {
    road: Road,
    files: Vec<File>,
    cached_before: u64,
    dirty_before: u64,
}

impl KernelSite {
    /// `None`: the file system cannot do this.
    pub(super) fn open(road: Road, files: usize, folder: &Path) -> Result<Option<Box<dyn Site>>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        if road == Road::Direct {
            options.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        if !can(road, folder)? {
            return Ok(None);
        }
        let files = (0..files).map(|_| scratch::nameless(folder, &options)).collect::<Result<Vec<_>>>()?;
        syncfs(&files[0]).context("syncfs")?;
        let (cached_before, dirty_before) = (meminfo("Cached")?, meminfo("Dirty")?);
        Ok(Some(Box::new(Self { road, files, cached_before, dirty_before })))
    }
}

/// Whether the file system takes such writes: a file system that cannot do direct ones refuses to open.
fn can(road: Road, folder: &Path) -> Result<bool> {
    if road != Road::Dontcache {
        return Ok(true);
    }
    let file = scratch::nameless_file(folder)?;
    match pwritev2(&file, &[IoSlice::new(&Block::new(4096))], 0, DONTCACHE) {
        Ok(_) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(false),
        Err(error) => Err(error).context("pwritev2"),
    }
}

/// A line of `/proc/meminfo`, in bytes.
fn meminfo(name: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("/proc/meminfo has no {name}"))? << 10)
}

impl Site for KernelSite {
    fn write(&self, file: usize, dontcache: bool, offset_bytes: u64, block: &[u8]) -> Result<()> {
        let flags = if dontcache && self.road == Road::Dontcache { DONTCACHE } else { ReadWriteFlags::empty() };
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

#[cfg(test)]
mod tests {
    use super::meminfo;

    #[test]
    fn figures_of_the_kernel_are_found_by_their_whole_name() {
        assert!(meminfo("Cached").unwrap() > 0 && meminfo("Cach").is_err());
    }
}

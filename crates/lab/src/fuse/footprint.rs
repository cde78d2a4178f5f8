//! Memory and descriptors of a mount process while far more is copied through it than its cache holds.

use std::path::Path;

use anyhow::{Context, Result};

use super::servers::{Mounted, Server};
use crate::files::{make_tree, write_file};
use crate::harness::Options;
use crate::proc;

const CACHE_BYTES: u64 = 256 << 20;
/// Allowed for each inode that the kernel knows.
const INODE_BYTES: u64 = 400;
const LARGE_BYTES: u64 = 150_000_000;
const SMALL_BYTES: usize = 4096;
const FILES_PER_DIRECTORY: usize = 1000;

/// Peaks of a mount process.
#[derive(Copy, Clone, Debug)]
pub(super) struct Footprint {
    pub(super) peak_bytes: u64,
    pub(super) arena_bytes: u64,
    pub(super) inodes: u64,
    pub(super) descriptors: u64,
}

impl Footprint {
    /// Memory in MiB apart from the arena and what is allowed for inodes; 0 if there is none.
    pub(super) fn beside_mib(&self) -> f64 {
        let allowed = self.arena_bytes + self.inodes * INODE_BYTES;
        self.peak_bytes.saturating_sub(allowed) as f64 / f64::from(1 << 20)
    }
}

/// Copies large files, then small ones, and watches the process of `server`.
pub(super) fn measure(options: &Options, server: &Server, home: &Path) -> Result<Footprint> {
    let (large, small) = (options.pick(64, 6), options.pick(100_000, 10_000));
    let mounted = Mounted::new(server, home, CACHE_BYTES)?;
    let arena_bytes = mounted.arena_bytes().context("the mount has no arena where it should have one")?;
    let copy = || {
        let path = |number| mounted.path().join(format!("large-{number}"));
        (0..large).try_for_each(|number| write_file(&path(number), LARGE_BYTES).map(drop))?;
        make_tree(&mounted.path().join("small"), small, FILES_PER_DIRECTORY, SMALL_BYTES)
    };
    let (directories, descriptors) = proc::most(|| proc::open_descriptors(mounted.pid()), copy)?;
    let peak_bytes = proc::memory(mounted.pid(), "VmHWM")?;
    mounted.umount()?;
    Ok(Footprint { peak_bytes, arena_bytes, inodes: (large + small + directories) as u64, descriptors })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arena_and_the_inodes_are_subtracted() {
        let footprint = Footprint { peak_bytes: 400 << 20, arena_bytes: 256 << 20, inodes: 0, descriptors: 1 };
        assert_eq!(footprint.beside_mib(), 144.0);
        assert_eq!(Footprint { inodes: 1 << 20, ..footprint }.beside_mib(), 0.0);
    }
}

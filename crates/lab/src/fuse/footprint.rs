//! Memory and descriptors of a mount process while far more is copied through it than its cache holds.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use super::mounted::Mounted;
use super::programs::Server;
use crate::harness::threads::beside;
use crate::harness::{Options, rounds};
use crate::{interrupt, proc};

const CACHE_BYTES: u64 = 256 << 20;
/// Allowed for each inode that the kernel knows.
const INODE_BYTES: u64 = 400;
const LARGE_BYTES: u64 = 150_000_000;
const SMALL_BYTES: usize = 4096;
const FILES_PER_DIRECTORY: usize = 1000;
/// The peak of a process's memory.
const PEAK: &str = "VmHWM";
/// Between two looks at the descriptors.
const PERIOD: Duration = Duration::from_millis(20);

/// Peaks of a mount process.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Footprint {
    pub(crate) peak_bytes: u64,
    pub(crate) arena_bytes: u64,
    pub(crate) inodes: u64,
    pub(crate) descriptors: u64,
}

impl Footprint {
    /// Memory in MiB apart from the arena and what is allowed for inodes; 0 if there is none.
    pub(crate) fn beside_mib(&self) -> f64 {
        let allowed = self.arena_bytes + self.inodes * INODE_BYTES;
        self.peak_bytes.saturating_sub(allowed) as f64 / f64::from(1 << 20)
    }
}

/// Copies large files, then small ones, and watches the process of `server`.
pub(crate) fn measure(options: &Options, server: &Server, home: &Path) -> Result<Footprint> {
    let (large, small) = (options.pick(64, 6), options.pick(100_000, 10_000));
    let mounted = Mounted::new(server, home, CACHE_BYTES)?;
    let arena_bytes = mounted.arena_bytes().context("the mount has no arena where it should have one")?;
    let watch = |stop: &AtomicBool| -> Result<u64> {
        let mut most = 0;
        while !stop.load(Ordering::Relaxed) {
            most = most.max(proc::open_descriptors(mounted.pid())?);
            std::thread::sleep(PERIOD);
        }
        Ok(most)
    };
    let (directories, descriptors) = beside([watch], |_| copy(mounted.path(), large, small))?;
    let peak_bytes = proc::memory(mounted.pid(), PEAK)?;
    mounted.umount()?;
    let inodes = (large + small + directories) as u64;
    Ok(Footprint { peak_bytes, arena_bytes, inodes, descriptors: descriptors.into_iter().max().unwrap_or(0) })
}

/// Makes the files, and returns the number of directories made for them.
fn copy(folder: &Path, large: usize, small: usize) -> Result<usize> {
    let bar = rounds::bar("footprint", (large + small / FILES_PER_DIRECTORY) as u64);
    let block = vec![3; 1 << 20];
    for number in 0..large {
        interrupt::check()?;
        let mut file = File::create_new(folder.join(format!("large-{number}")))?;
        let mut left = LARGE_BYTES;
        while left > 0 {
            let now = left.min(block.len() as u64);
            file.write_all(&block[..now as usize])?;
            left -= now;
        }
        bar.inc(1);
    }
    let directories = small.div_ceil(FILES_PER_DIRECTORY);
    for directory in 0..directories {
        interrupt::check()?;
        let path = folder.join(format!("small-{directory}"));
        fs::create_dir(&path)?;
        for number in 0..FILES_PER_DIRECTORY.min(small - directory * FILES_PER_DIRECTORY) {
            File::create_new(path.join(format!("file-{number}")))?.write_all(&block[..SMALL_BYTES])?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(directories)
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

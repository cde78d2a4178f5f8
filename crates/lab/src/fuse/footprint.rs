//! What the process of a mount takes while far more is copied through it than its cache holds.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::mounted::Mounted;
use super::programs::Server;
use crate::options::Options;
use crate::{interrupt, rounds};

const CACHE_BYTES: u64 = 256 << 20;
/// What an inode may take that the kernel knows.
const INODE_BYTES: u64 = 400;
const LARGE_BYTES: u64 = 150_000_000;
const SMALL_BYTES: usize = 4096;
const FILES_PER_DIRECTORY: usize = 1000;
/// The most memory that a process ever had at once.
const PEAK: &str = "VmHWM";
/// Between two looks at the descriptors.
const PERIOD: Duration = Duration::from_millis(20);

/// What was seen.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Footprint {
    pub(crate) peak_bytes: u64,
    pub(crate) arena_bytes: u64,
    pub(crate) inodes: u64,
    pub(crate) descriptors: u64,
}

impl Footprint {
    /// Memory beside the arena and what the inodes may take, in MiB; none left is 0.
    pub(crate) fn beside_mib(&self) -> f64 {
        let allowed = self.arena_bytes + self.inodes * INODE_BYTES;
        self.peak_bytes.saturating_sub(allowed) as f64 / f64::from(1 << 20)
    }
}

/// Copies large files, then small ones, and watches `server` do it.
pub(crate) fn measure(options: &Options, server: &Server, home: &Path) -> Result<Footprint> {
    let (large, small) = (options.pick(64, 6), options.pick(100_000, 10_000));
    let mounted = Mounted::new(server, home, CACHE_BYTES)?;
    let arena_bytes = mounted.arena_bytes().context("the mount has no arena where it was told to have one")?;
    let (is_done, descriptors) = (AtomicBool::new(false), AtomicU64::new(0));
    let copied = std::thread::scope(|scope| {
        let watch = scope.spawn(|| -> Result<()> {
            while !is_done.load(Ordering::Relaxed) {
                descriptors.fetch_max(open_descriptors(mounted.pid())?, Ordering::Relaxed);
                std::thread::sleep(PERIOD);
            }
            Ok(())
        });
        let copied = copy(mounted.path(), large, small);
        is_done.store(true, Ordering::Relaxed);
        watch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(copied)
    });
    let directories = copied?;
    let peak_bytes = memory(mounted.pid(), PEAK)?;
    mounted.umount()?;
    let inodes = (large + small + directories) as u64;
    Ok(Footprint { peak_bytes, arena_bytes, inodes, descriptors: descriptors.into_inner() })
}

/// Makes the files; the number of directories made for them.
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

/// How many the process has open.
pub(crate) fn open_descriptors(pid: u32) -> Result<u64> {
    let list = fs::read_dir(format!("/proc/{pid}/fd")).context("cannot list the descriptors of a process")?;
    Ok(list.count() as u64)
}

/// A kind of memory of the process, by its name in `/proc/PID/status`.
pub(crate) fn memory(pid: u32, kind: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("cannot read the status of a process")?;
    let named = |line: &str| Some(line.strip_prefix(kind)?.strip_prefix(':')?.trim().to_owned());
    let value = status.lines().find_map(named).with_context(|| format!("no {kind} in it"))?;
    let kib: u64 = value.trim_end_matches("kB").trim().parse().with_context(|| format!("{kind} is no number"))?;
    ensure!(kib > 0, "the process has no memory");
    Ok(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_process_has_memory_and_descriptors() {
        let pid = std::process::id();
        assert!(memory(pid, PEAK).unwrap() > 1 << 20);
        assert!(open_descriptors(pid).unwrap() >= 3);
    }

    #[test]
    fn the_arena_and_the_inodes_are_allowed_for() {
        let footprint = Footprint { peak_bytes: 400 << 20, arena_bytes: 256 << 20, inodes: 0, descriptors: 1 };
        assert_eq!(footprint.beside_mib(), 144.0);
        assert_eq!(Footprint { inodes: 1 << 20, ..footprint }.beside_mib(), 0.0);
    }
}

//! The running kernel: the same cycle with a ramfs, by system calls, in a mount namespace of its own.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::cycle::{Times, run_lanes};
use crate::harness::time_us;
use crate::interrupt;
use crate::scratch::Scratch;
use crate::sys::in_own_mounts;

/// A directory for each worker.
pub(super) struct Kernel(Vec<PathBuf>);

impl Kernel {
    /// Tries a cycle.
    ///
    /// # Errors
    /// The process is not root.
    pub(super) fn new(home: &Scratch, workers: usize) -> Result<Self> {
        anyhow::ensure!(rustix::process::geteuid().is_root(), "only root may mount");
        let names = (0..workers).map(|worker| home.subdirectory(&format!("ramfs-{worker}")));
        let kernel = Self(names.collect::<Result<_>>()?);
        kernel.run(1, Duration::ZERO)?;
        Ok(kernel)
    }

    /// Cycles of `workers` at once: how many per second, with their times.
    pub(super) fn run(&self, workers: usize, time: Duration) -> Result<(f64, Times)> {
        in_own_mounts(|| run_lanes(workers, time, |times, worker| cycle(&self.0[worker], times)))
    }
}

fn cycle(directory: &Path, times: &mut Times) -> Result<()> {
    let mount = || mount("none", directory, "ramfs", MountFlags::empty(), None).context("cannot mount a ramfs");
    time_us(&mut times.first_us, mount)?;
    let used = use_ramfs(directory);
    let unmount = || {
        loop {
            match unmount(directory, UnmountFlags::empty()) {
                // A child that another thread has just forked may have a copy of the file.
                Err(Errno::BUSY) => interrupt::check()?,
                outcome => return outcome.context("cannot unmount a ramfs"),
            }
        }
    };
    used.and(time_us(&mut times.second_us, unmount))
}

/// Does what the stressor does.
fn use_ramfs(directory: &Path) -> Result<()> {
    let (name, link) = (directory.join("mnt"), directory.join("lnk"));
    let file = File::create_new(&name)?;
    file.metadata()?;
    symlink(directory, &link)?;
    fs::symlink_metadata(&link)?;
    fs::remove_file(&link)?;
    fs::remove_file(&name)?;
    drop(file);
    fs::create_dir(&name)?;
    fs::symlink_metadata(&name)?;
    fs::remove_dir(&name)?;
    Ok(())
}

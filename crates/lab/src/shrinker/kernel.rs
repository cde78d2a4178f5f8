//! The running kernel: the same cycle with a ramfs, by system calls, in mounts of nobody else.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::cycle::{Cycles, Times, run_lanes};
use crate::scratch::Scratch;
use crate::sys::enter_own_mounts;

/// A directory for each worker.
pub(crate) struct Kernel {
    directories: Vec<PathBuf>,
}

impl Kernel {
    /// Sees whether it can be done.
    ///
    /// # Errors
    /// Only root may mount.
    pub(crate) fn new(home: &Scratch, workers: usize) -> Result<Self> {
        anyhow::ensure!(rustix::process::geteuid().is_root(), "only root may mount");
        let names = (0..workers).map(|worker| home.subdirectory(&format!("ramfs-{worker}")));
        let kernel = Self { directories: names.collect::<Result<_>>()? };
        let first = kernel.directories.first().context("there is a worker at least")?;
        thread::scope(|scope| {
            let once = scope.spawn(|| {
                enter_own_mounts()?;
                cycle(first, &mut Times::default())
            });
            once.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        Ok(kernel)
    }

    /// Cycles of `workers` at once.
    pub(crate) fn run(&self, workers: usize, time: Duration) -> Result<Cycles> {
        let work = |times: &mut Times, worker: usize| cycle(&self.directories[worker], times);
        thread::scope(|scope| {
            // The others are started by this one.
            let first = scope.spawn(|| {
                enter_own_mounts()?;
                run_lanes(workers, time, work)
            });
            first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

fn cycle(directory: &Path, times: &mut Times) -> Result<()> {
    times.mount.time(|| mount("none", directory, "ramfs", MountFlags::empty(), None).context("mount a ramfs"))?;
    let used = use_ramfs(directory);
    let unmounted = times.umount.time(|| unmount(directory, UnmountFlags::empty()).context("unmount a ramfs"));
    used.and(unmounted)
}

/// As the stressor does.
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

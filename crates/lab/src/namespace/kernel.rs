//! The running kernel: the same with tmpfs, by system calls, in a mount namespace of its own.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::lookups::pass;
use super::testbed::{Cycle, STANDING};
use crate::scratch::Scratch;
use crate::sys::in_own_mounts;

/// A directory for each volume.
pub(super) struct Kernel(PathBuf);

impl Kernel {
    /// Makes the directories and tries a cycle.
    ///
    /// # Errors
    /// The process is not root.
    pub(super) fn new(home: &Scratch, volumes: usize) -> Result<Self> {
        anyhow::ensure!(rustix::process::geteuid().is_root(), "only root may mount");
        let kernel = Self(home.subdirectory("tmpfs")?);
        for name in (0..volumes).map(name).chain((0..STANDING).map(standing_name)) {
            fs::create_dir(kernel.0.join(&name)).with_context(|| format!("cannot create {}", name.display()))?;
        }
        kernel.run(1, 0)?;
        Ok(kernel)
    }

    /// Mounts `volumes` and unmounts them, both while `lookers` look up other mounts.
    pub(super) fn run(&self, volumes: usize, lookers: usize) -> Result<Cycle> {
        in_own_mounts(|| {
            // The thread has its own working directory, so paths are as short as those in the engine.
            env::set_current_dir(&self.0).context("cannot change to the directory of the mounts")?;
            mount_and_umount(volumes, lookers)
        })
    }
}

fn mount_and_umount(volumes: usize, lookers: usize) -> Result<Cycle> {
    let places: Vec<PathBuf> = (0..volumes).map(name).collect();
    let standing: Vec<PathBuf> = (0..STANDING).map(standing_name).collect();
    let mut looked_up = Vec::new();
    for path in &standing {
        mount_tmpfs(path)?;
        let file = path.join("file");
        fs::File::create_new(&file)?;
        looked_up.extend([path.clone(), file]);
    }
    // As in the engine: a volume, or a file in one.
    let look = |nth: usize| {
        let path = &looked_up[nth % looked_up.len()];
        if nth.is_multiple_of(2) {
            fs::metadata(path)?;
        } else {
            fs::File::open(path)?;
        }
        Ok(())
    };
    let mount = pass(lookers, look, volumes, |nth| mount_tmpfs(&places[nth]))?;
    let umount = pass(lookers, look, volumes, |nth| unmount_tmpfs(&places[nth]))?;
    // Not measured. A child that another thread has just forked may have copies of files that were looked up.
    let detach = |path: &PathBuf| unmount(path, UnmountFlags::DETACH).context("cannot detach a tmpfs");
    standing.iter().try_for_each(detach)?;
    Ok(Cycle { mount, umount, grace_periods: None })
}

fn name(number: usize) -> PathBuf {
    number.to_string().into()
}

fn standing_name(number: usize) -> PathBuf {
    format!("standing-{number}").into()
}

fn mount_tmpfs(path: &Path) -> Result<()> {
    mount("none", path, "tmpfs", MountFlags::empty(), None).context("cannot mount a tmpfs")
}

fn unmount_tmpfs(path: &Path) -> Result<()> {
    unmount(path, UnmountFlags::empty()).context("cannot unmount a tmpfs")
}

//! A daemon with four volumes in its background, and volumes that are mounted to be unmounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::hung::Hung;
use super::process::{Daemon, Volume};
use crate::cgroups::Hierarchy;
use crate::harness::threads::{beside, wait_until};
use crate::programs::{self, Tenants, Writer};

/// Volumes in the background.
const BACKGROUND: usize = 4;
/// Programs that each writer has run before anything is measured: the second is a foreign writer of the first one's file.
const WARM_UP: u64 = 2;
const CONFIG: &str = "cache = \"256MiB\"\ntenant-by = \"cgroup\"\ndirty-expire = \"1s\"\n";

pub(super) struct Testbed<'a> {
    /// Before the daemon, because it must be dropped first.
    hung: Option<Hung>,
    daemon: Daemon,
    /// The files that writers overwrite.
    files: Vec<PathBuf>,
    folder: PathBuf,
    cgroups: &'a Hierarchy,
    /// Number of the next turn or target, so that each has a name of its own.
    next: AtomicU64,
}

/// One volume that was mounted and unmounted.
pub(super) struct Umount {
    pub(super) mount_ms: f64,
    pub(super) umount_ms: f64,
    /// Why the unmount failed.
    pub(super) failure: Option<String>,
}

impl<'a> Testbed<'a> {
    /// A daemon with its background in the new directory `folder`. With `bindfs` it has one more volume, whose source hangs.
    pub(super) fn new(program: &Path, folder: PathBuf, cgroups: &'a Hierarchy, bindfs: Option<&Path>) -> Result<Self> {
        let make = |number| Volume::make(&folder, format!("background-{number}"));
        let background = (0..BACKGROUND).map(make).collect::<Result<Vec<_>>>()?;
        let tables = background.iter().map(Volume::table);
        let config = [CONFIG.to_owned()].into_iter().chain(tables).collect::<String>();
        // With a source that hangs, a daemon does not end on SIGTERM.
        let daemon = Daemon::start(program, &config, &[], if bindfs.is_some() { "KILL" } else { "TERM" })?;
        let files = background.iter().map(|volume| volume.mountpoint.join("churned")).collect();
        let mut testbed = Self { hung: None, daemon, files, folder, cgroups, next: AtomicU64::new(0) };
        ensure!(testbed.daemon.list()? == BACKGROUND, "the daemon has not mounted its volumes");
        testbed.hung = bindfs.map(|bindfs| Hung::new(bindfs, &testbed.daemon, &testbed.folder, (1, 0))).transpose()?;
        Ok(testbed)
    }

    pub(super) fn has_hung(&self) -> bool {
        self.hung.is_some()
    }

    /// Does `work` while each volume in the background has a writer, and returns the number of programs that the writers have
    /// run. All of them have ended when this returns.
    pub(super) fn under<T>(&self, tenants: Tenants, blocks: u64, work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let ended: Vec<AtomicU64> = self.files.iter().map(|_| AtomicU64::new(0)).collect();
        let prefix = if self.has_hung() { "hung-" } else { "" };
        let writer = |(number, (file, ended)): (usize, (&PathBuf, _))| {
            let (name, file) = (format!("{prefix}{turn}-{number}"), file.clone());
            move |stop: &AtomicBool| {
                // Top-level cgroups: one below another would not be a tenant of its own.
                let writer = Writer { cgroup: &|name| self.cgroups.top(name), name, file, blocks };
                writer.run(tenants, stop, ended)
            }
        };
        let (outcome, _) = beside(self.files.iter().zip(&ended).enumerate().map(writer), |stop| {
            wait_until("the writers do not start", || {
                ensure!(!stop.load(Ordering::Relaxed), "a writer has failed");
                Ok(ended.iter().all(|ended| ended.load(Ordering::Relaxed) >= WARM_UP))
            })?;
            work()
        })?;
        Ok((outcome, ended.into_iter().map(AtomicU64::into_inner).sum()))
    }

    /// Mounts a new volume, lets a program write and sync a file in it, and unmounts it.
    pub(super) fn mount_and_umount(&self) -> Result<Umount> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let volume = Volume::make(&self.folder, format!("target-{number}"))?;
        let start = Instant::now();
        self.daemon.mount(&volume)?;
        let mount_ms = start.elapsed().as_secs_f64() * 1e3;
        programs::write(&volume.mountpoint.join("file"))?;
        let start = Instant::now();
        let outcome = self.daemon.umount(&volume);
        let umount_ms = start.elapsed().as_secs_f64() * 1e3;
        if outcome.is_ok() {
            let home = self.folder.join(&volume.name);
            fs::remove_dir_all(&home).with_context(|| format!("cannot remove {}", home.display()))?;
        }
        Ok(Umount { mount_ms, umount_ms, failure: outcome.err().map(|error| format!("{error:#}")) })
    }

    /// Lets the source that hangs continue, and unmounts all volumes.
    pub(super) fn end(self) -> Result<()> {
        let Self { hung, daemon, .. } = self;
        hung.map_or(Ok(()), |hung| hung.end(&daemon))?;
        daemon.end().map(drop)
    }
}

//! A daemon with four volumes in its background, and volumes that are mounted to be unmounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::hung::Hung;
use super::process::{Daemon, Volume, wait_until};
use crate::cgroups::Hierarchy;
use crate::programs::{self, Tenants, Writer};

/// Volumes in the background.
const BACKGROUND: usize = 4;
/// Programs that each writer has run before anything is measured: the second is a foreign one to the first one's file.
const WARM_UP: u64 = 2;
const CONFIG: &str = "cache = \"256MiB\"\ntenant-by = \"cgroup\"\ndirty-expire = \"1s\"\n";

pub(super) struct Testbed<'a> {
    /// Before the daemon: it goes first.
    hung: Option<Hung>,
    daemon: Daemon,
    /// Files that writers overwrite.
    files: Vec<PathBuf>,
    folder: PathBuf,
    cgroups: &'a Hierarchy,
    /// Of turns and of targets: what has come and gone has a name of its own.
    next: AtomicU64,
}

/// One volume that was mounted and unmounted.
pub(super) struct Umount {
    pub(super) mount_ms: f64,
    pub(super) umount_ms: f64,
    /// Why it did not end.
    pub(super) failure: Option<String>,
}

impl<'a> Testbed<'a> {
    /// A daemon with its background in the new directory `folder`; with `bindfs`, the source of a further volume hangs.
    pub(super) fn new(program: &Path, folder: PathBuf, cgroups: &'a Hierarchy, bindfs: Option<&Path>) -> Result<Self> {
        let make = |number| Volume::make(&folder, format!("background-{number}"));
        let background = (0..BACKGROUND).map(make).collect::<Result<Vec<_>>>()?;
        let tables = background.iter().map(Volume::table);
        let config = [CONFIG.to_owned()].into_iter().chain(tables).collect::<String>();
        // What hangs would keep one that is only asked to end.
        let daemon = Daemon::start(program, &config, if bindfs.is_some() { "KILL" } else { "TERM" })?;
        let files = background.iter().map(|volume| volume.mountpoint.join("churned")).collect();
        let mut testbed = Self { hung: None, daemon, files, folder, cgroups, next: AtomicU64::new(0) };
        ensure!(testbed.daemon.list()? == BACKGROUND, "the daemon has not mounted its volumes");
        testbed.hung = bindfs.map(|bindfs| Hung::new(bindfs, &testbed.daemon, &testbed.folder, (1, 0))).transpose()?;
        Ok(testbed)
    }

    pub(super) fn has_hung(&self) -> bool {
        self.hung.is_some()
    }

    /// Does `work` while each volume in the background has a writer, and counts the programs that these have run. When this
    /// returns, all of them have ended.
    pub(super) fn under<T>(&self, tenants: Tenants, blocks: u64, work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let stop = AtomicBool::new(false);
        let ended: Vec<AtomicU64> = self.files.iter().map(|_| AtomicU64::new(0)).collect();
        let beside = if self.has_hung() { "hung-" } else { "" };
        let outcome = thread::scope(|scope| {
            let start = |(number, (file, ended)): (usize, (&PathBuf, _))| {
                let (name, file) = (format!("{beside}{turn}-{number}"), file.clone());
                let stop = &stop;
                scope.spawn(move || {
                    // What is below a top-level cgroup is no tenant of its own.
                    let make = |name: &str| self.cgroups.top(name);
                    let writer = Writer { cgroup: &make, name, file, blocks };
                    writer.run(tenants, stop, ended).inspect_err(|_| stop.store(true, Ordering::Relaxed))
                })
            };
            let threads: Vec<_> = self.files.iter().zip(&ended).enumerate().map(start).collect();
            let has_begun = wait_until("the writers do not begin", || {
                ensure!(!stop.load(Ordering::Relaxed), "a writer has failed");
                Ok(ended.iter().all(|ended| ended.load(Ordering::Relaxed) >= WARM_UP))
            });
            let outcome = has_begun.and_then(|()| work());
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            outcome
        })?;
        Ok((outcome, ended.into_iter().map(AtomicU64::into_inner).sum()))
    }

    /// Mounts a new volume, has a file in it written and synced, and unmounts it.
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

    /// Has what hangs go on, and unmounts all.
    pub(super) fn end(self) -> Result<()> {
        let Self { hung, daemon, .. } = self;
        hung.map_or(Ok(()), |hung| hung.end(&daemon))?;
        daemon.end().map(drop)
    }
}

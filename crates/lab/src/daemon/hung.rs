//! A volume whose source does not answer any more: a bindfs mount that was stopped while the volume wrote to it.
//!
//! Who waits for a FUSE file system cannot be killed before that is: the server goes first, always.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::process::{Daemon, Volume, wait_until};
use crate::fuse::{BINDFS, on_path, tied};

const BYTES: usize = 4 << 20;

/// Killed and freed when dropped.
pub(super) struct Hung {
    server: Child,
    volume: Volume,
}

impl Hung {
    /// Whether it can be had here.
    pub(super) fn program() -> Option<PathBuf> {
        on_path(BINDFS)
    }

    /// Mounts a volume of `daemon` in `folder`, writes to it, and has its source hang.
    pub(super) fn new(program: &Path, daemon: &Daemon, folder: &Path) -> Result<Self> {
        let volume = Volume::make(folder, "hung")?;
        let base = folder.join("base");
        fs::create_dir(&base).with_context(|| format!("cannot make {}", base.display()))?;
        let device = |path: &Path| -> Result<u64> { Ok(fs::metadata(path)?.dev()) };
        let before = device(&volume.source)?;
        // One that is stopped hears nothing else.
        let mut command = tied(program, "KILL");
        command.arg("-f").arg(&base).arg(&volume.source).process_group(0);
        let server = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut hung = Self { server: server.context("cannot start bindfs")?, volume };
        wait_until("bindfs does not mount", || {
            anyhow::ensure!(hung.server.try_wait()?.is_none(), "bindfs has ended");
            Ok(device(&hung.volume.source)? != before)
        })?;
        daemon.mount(&hung.volume)?;
        hung.hang(daemon)?;
        Ok(hung)
    }

    /// Stops the server, with data on its way to it and more to come.
    fn hang(&self, daemon: &Daemon) -> Result<()> {
        let file = File::create_new(self.volume.mountpoint.join("file")).context("cannot make the file that hangs")?;
        file.write_all_at(&[1; BYTES], 0)?;
        file.sync_all()?;
        self.signal(Signal::STOP)?;
        file.write_all_at(&[2; BYTES], 0)?;
        wait_until("nothing is written to the source that hangs", || {
            let status = daemon.ask(Some(&self.volume.name), json!({ "request": "status" }))?;
            Ok(status["writeback_bytes"].as_u64().is_some_and(|bytes| bytes > 0))
        })
    }

    /// Has the source answer again, unmounts the volume and ends the server.
    pub(super) fn end(mut self, daemon: &Daemon) -> Result<()> {
        self.signal(Signal::CONT)?;
        daemon.umount(&self.volume)?;
        unmount(&self.volume.source, UnmountFlags::DETACH).context("cannot unmount bindfs")?;
        wait_until("bindfs does not end", || Ok(self.server.try_wait()?.is_some()))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.server), signal).context("cannot signal bindfs")
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        if !matches!(self.server.try_wait(), Ok(Some(_))) {
            let _ = self.server.kill();
            let _ = self.server.wait();
            let _ = unmount(&self.volume.source, UnmountFlags::DETACH);
        }
    }
}

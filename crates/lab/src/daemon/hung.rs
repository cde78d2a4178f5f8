//! Volumes whose source no longer answers: directories of a bindfs mount that was stopped while they wrote to it.
//!
//! A process that waits for a FUSE file system cannot be killed before its server is, so the server always ends first.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use serde_json::json;

use super::process::{Daemon, Volume};
use crate::fuse::{BINDFS, on_path, tied};
use crate::harness::process::Process;
use crate::harness::threads::wait_until;
use crate::interrupt;

/// Written to each volume.
const BYTES: usize = 4 << 20;
/// How long a program waits before it is killed.
const PROBE: Duration = Duration::from_millis(100);

/// Killed and freed when dropped.
pub(super) struct Hung {
    server: Process,
    /// Where bindfs is mounted.
    sources: PathBuf,
    volumes: Vec<Volume>,
    /// Open files of the volumes.
    open: Vec<File>,
}

impl Hung {
    /// The bindfs program, if it is installed.
    pub(super) fn program() -> Option<PathBuf> {
        on_path(BINDFS)
    }

    /// Mounts `count` volumes of `daemon` in `folder`, opens `files` in each, writes to one of them, and stops their source.
    pub(super) fn new(program: &Path, daemon: &Daemon, folder: &Path, (count, files): (usize, usize)) -> Result<Self> {
        let (base, sources) = (folder.join("base"), folder.join("hung-sources"));
        for path in [&base, &sources] {
            fs::create_dir(path).with_context(|| format!("cannot create {}", path.display()))?;
        }
        let make = |number| -> Result<Volume> {
            let name = format!("hung-{number}");
            let (source, mountpoint) = (sources.join(&name), folder.join(&name));
            for path in [&base.join(&name), &mountpoint] {
                fs::create_dir(path).with_context(|| format!("cannot create {}", path.display()))?;
            }
            Ok(Volume { name, source, mountpoint })
        };
        let volumes = (0..count).map(make).collect::<Result<Vec<_>>>()?;
        let device = |path: &Path| -> Result<u64> { Ok(fs::metadata(path)?.dev()) };
        let before = device(&sources)?;
        // A stopped process reacts to no other signal.
        let mut command = tied(program, "KILL");
        command.arg("-f").arg(&base).arg(&sources).stdout(Stdio::null()).stderr(Stdio::null());
        let mut hung = Self { server: Process::start(&mut command)?, sources, volumes, open: Vec::new() };
        wait_until("bindfs does not mount", || {
            anyhow::ensure!(!hung.server.has_ended()?, "bindfs has ended");
            Ok(device(&hung.sources)? != before)
        })?;
        hung.volumes.iter().try_for_each(|volume| daemon.mount(volume))?;
        hung.open(files)?;
        hung.hang(daemon)?;
        Ok(hung)
    }

    fn open(&mut self, files: usize) -> Result<()> {
        for volume in &self.volumes {
            for number in 0..files {
                let path = volume.mountpoint.join(number.to_string());
                let file = File::create_new(&path).with_context(|| format!("cannot create {}", path.display()))?;
                self.open.push(file);
            }
        }
        Ok(())
    }

    /// Stops the server while data is in flight to it and more is dirty.
    fn hang(&self, daemon: &Daemon) -> Result<()> {
        let make = |volume: &Volume| -> Result<File> {
            let file = File::create_new(volume.mountpoint.join("file")).context("cannot create the file to write")?;
            file.write_all_at(&[1; BYTES], 0)?;
            file.sync_all()?;
            Ok(file)
        };
        let files = self.volumes.iter().map(make).collect::<Result<Vec<_>>>()?;
        self.server.signal(Signal::STOP)?;
        files.iter().try_for_each(|file| file.write_all_at(&[2; BYTES], 0))?;
        wait_until("no writeback to the stopped source starts", || {
            let is_written = |volume: &Volume| -> Result<bool> {
                let status = daemon.ask(Some(&volume.name), json!({ "request": "status" }))?;
                Ok(status["writeback_bytes"].as_u64().is_some_and(|bytes| bytes > 0))
            };
            self.volumes.iter().try_fold(true, |all, volume| Ok(all && is_written(volume)?))
        })
    }

    /// Starts programs that wait for the source, and kills them.
    pub(super) fn probe(&self) -> Result<()> {
        let begin = |volume: &Volume| {
            let mut command = Command::new("cat");
            let path = volume.mountpoint.join("unknown");
            Process::start(command.arg(path).stdout(Stdio::null()).stderr(Stdio::null()))
        };
        let probers = self.volumes.iter().map(begin).collect::<Result<Vec<_>>>()?;
        interrupt::sleep(PROBE)?;
        drop(probers);
        Ok(())
    }

    /// Lets the source continue, unmounts the volumes and ends the server.
    pub(super) fn end(mut self, daemon: &Daemon) -> Result<()> {
        self.server.signal(Signal::CONT)?;
        self.open.clear();
        self.volumes.iter().try_for_each(|volume| daemon.umount_closed(volume))?;
        unmount(&self.sources, UnmountFlags::DETACH).context("cannot unmount bindfs")?;
        self.server.wait("bindfs does not end").map(drop)
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        if !self.server.has_ended().unwrap_or(false) {
            self.server.kill();
            let _ = unmount(&self.sources, UnmountFlags::DETACH);
        }
    }
}

//! Volumes whose source does not answer any more: directories of a bindfs mount that was stopped while they wrote to it.
//!
//! A process that waits for a FUSE file system cannot be killed before that is: the server goes first, always.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::process::{Daemon, Volume, wait_until};
use crate::fuse::{BINDFS, on_path, tied};
use crate::interrupt;

/// Written to each volume.
const BYTES: usize = 4 << 20;
/// For how long a program waits before it is killed.
const PROBE: Duration = Duration::from_millis(100);

/// Killed and freed when dropped.
pub(super) struct Hung {
    server: Child,
    /// Where bindfs is mounted.
    sources: PathBuf,
    volumes: Vec<Volume>,
    /// Files of the volumes.
    open: Vec<File>,
}

impl Hung {
    /// Whether it can be had here.
    pub(super) fn program() -> Option<PathBuf> {
        on_path(BINDFS)
    }

    /// Mounts `count` volumes of `daemon` in `folder`, opens `files` in each, writes to one of them, and has their source hang.
    pub(super) fn new(program: &Path, daemon: &Daemon, folder: &Path, (count, files): (usize, usize)) -> Result<Self> {
        let (base, sources) = (folder.join("base"), folder.join("hung-sources"));
        for path in [&base, &sources] {
            fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        let make = |number| -> Result<Volume> {
            let name = format!("hung-{number}");
            let (source, mountpoint) = (sources.join(&name), folder.join(&name));
            for path in [&base.join(&name), &mountpoint] {
                fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))?;
            }
            Ok(Volume { name, source, mountpoint })
        };
        let volumes = (0..count).map(make).collect::<Result<Vec<_>>>()?;
        let device = |path: &Path| -> Result<u64> { Ok(fs::metadata(path)?.dev()) };
        let before = device(&sources)?;
        // One that is stopped hears nothing else.
        let mut command = tied(program, "KILL");
        command.arg("-f").arg(&base).arg(&sources).process_group(0);
        let server = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut hung = Self { server: server.context("cannot start bindfs")?, sources, volumes, open: Vec::new() };
        wait_until("bindfs does not mount", || {
            anyhow::ensure!(hung.server.try_wait()?.is_none(), "bindfs has ended");
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
                let file = File::create_new(&path).with_context(|| format!("cannot make {}", path.display()))?;
                self.open.push(file);
            }
        }
        Ok(())
    }

    /// Stops the server, with data on its way to it and more to come.
    fn hang(&self, daemon: &Daemon) -> Result<()> {
        let make = |volume: &Volume| -> Result<File> {
            let file = File::create_new(volume.mountpoint.join("file")).context("cannot make the file that hangs")?;
            file.write_all_at(&[1; BYTES], 0)?;
            file.sync_all()?;
            Ok(file)
        };
        let files = self.volumes.iter().map(make).collect::<Result<Vec<_>>>()?;
        self.signal(Signal::STOP)?;
        files.iter().try_for_each(|file| file.write_all_at(&[2; BYTES], 0))?;
        wait_until("nothing is written to the source that hangs", || {
            let is_written = |volume: &Volume| -> Result<bool> {
                let status = daemon.ask(Some(&volume.name), json!({ "request": "status" }))?;
                Ok(status["writeback_bytes"].as_u64().is_some_and(|bytes| bytes > 0))
            };
            self.volumes.iter().try_fold(true, |all, volume| Ok(all && is_written(volume)?))
        })
    }

    /// Has programs wait for the source, and kills them.
    pub(super) fn probe(&self) -> Result<()> {
        let begin = |volume: &Volume| {
            let mut command = Command::new("cat");
            command.arg(volume.mountpoint.join("unknown")).stdin(Stdio::null()).stdout(Stdio::null());
            command.stderr(Stdio::null()).process_group(0).spawn().context("cannot start cat")
        };
        let probers = self.volumes.iter().map(begin).collect::<Result<Vec<_>>>()?;
        interrupt::sleep(PROBE)?;
        for mut prober in probers {
            prober.kill()?;
            prober.wait()?;
        }
        Ok(())
    }

    /// Has the source answer again, unmounts the volumes and ends the server.
    pub(super) fn end(mut self, daemon: &Daemon) -> Result<()> {
        self.signal(Signal::CONT)?;
        self.open.clear();
        self.volumes.iter().try_for_each(|volume| daemon.umount(volume))?;
        unmount(&self.sources, UnmountFlags::DETACH).context("cannot unmount bindfs")?;
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
            let _ = unmount(&self.sources, UnmountFlags::DETACH);
        }
    }
}

//! One mount by one server, from the start of its process to its end.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::programs::Server;
use crate::harness::process::Process;

/// Between two looks at a mount that is being made: ours takes milliseconds.
const PAUSE: Duration = Duration::from_micros(200);
/// Longest wait for a mount, and for a process to end after its unmount.
const PATIENCE: Duration = Duration::from_secs(60);

/// A mounted directory; unmounted when dropped, even if that loses data.
pub(crate) struct Mounted {
    server: Server,
    mountpoint: PathBuf,
    arena: PathBuf,
    process: Process,
    log: PathBuf,
    started: Instant,
    /// From the start of the program until the first answer.
    pub(crate) mount_time: Duration,
}

/// How long an unmount took.
pub(crate) struct Unmounted {
    /// Until the command has ended.
    pub(crate) command: Duration,
    /// Until the server has ended too, and its memory is free.
    pub(crate) server: Duration,
}

impl Mounted {
    /// Mounts `home/source` at `home/mnt`, both made if they do not exist.
    pub(crate) fn new(server: &Server, home: &Path, cache_bytes: u64) -> Result<Mounted> {
        let source = home.join("source");
        fs::create_dir_all(&source).with_context(|| format!("cannot create {}", source.display()))?;
        let command = server.command(&source, &mountpoint_in(home), cache_bytes, &arena_in(home));
        Self::start(server, command, home)
    }

    /// Runs `command`, which mounts something at [`mountpoint_in`] this `home`. It may use the arena [`arena_in`] it.
    pub(crate) fn start(server: &Server, mut command: Command, home: &Path) -> Result<Mounted> {
        let (mountpoint, arena, log) = (mountpoint_in(home), arena_in(home), home.join("log"));
        fs::create_dir_all(&mountpoint).with_context(|| format!("cannot create {}", mountpoint.display()))?;
        let output = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        command.stdout(output.try_clone()?).stderr(output);
        let (before, started) = (device(home)?, Instant::now());
        let process = Process::start(&mut command).with_context(|| format!("cannot start {}", server.name))?;
        let (server, mount_time) = (server.clone(), Duration::ZERO);
        let mut mounted = Mounted { server, mountpoint, arena, process, log, started, mount_time };
        // A look at a mount waits for the server's first answer.
        while device(&mounted.mountpoint)? == before {
            if mounted.process.has_ended()? || started.elapsed() > PATIENCE {
                bail!("{} does not mount:\n{}", mounted.server.name, mounted.output());
            }
            std::thread::sleep(PAUSE);
        }
        mounted.mount_time = started.elapsed();
        Ok(mounted)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// The time since the start of the program.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The size of the file with its page frames, if it has one.
    pub(crate) fn arena_bytes(&self) -> Option<u64> {
        fs::metadata(&self.arena).ok().map(|arena| arena.len())
    }

    /// Writes everything back.
    pub(crate) fn settle(&self) -> Result<()> {
        self.server.sync(&self.mountpoint).map_or(Ok(()), |mut command| self.succeed(&mut command))
    }

    /// Unmounts, and waits until the command and the server have ended.
    pub(crate) fn umount(mut self) -> Result<Unmounted> {
        let start = Instant::now();
        self.succeed(&mut self.server.umount(&self.mountpoint))?;
        let command = start.elapsed();
        while !self.process.has_ended()? {
            ensure!(start.elapsed() < PATIENCE, "{} does not end:\n{}", self.server.name, self.output());
            std::thread::sleep(PAUSE);
        }
        Ok(Unmounted { command, server: start.elapsed() })
    }

    fn succeed(&self, command: &mut Command) -> Result<()> {
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{command:?}: {}\n{errors}{}", output.status, self.output());
        Ok(())
    }

    /// The output of the server so far.
    fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.process.has_ended().unwrap_or(false) {
            let is_root = rustix::process::geteuid().is_root();
            let (program, option) = if is_root { ("umount", "-l") } else { ("fusermount3", "-uz") };
            // Nothing is mounted if the mount has failed.
            let _ = Command::new(program).arg(option).arg(&self.mountpoint).stderr(Stdio::null()).status();
        }
        let _ = fs::remove_file(&self.arena);
    }
}

/// The mount point of a mount in `home`.
pub(crate) fn mountpoint_in(home: &Path) -> PathBuf {
    home.join("mnt")
}

/// The arena of a mount in `home`, in memory. The name contains that of the home, so no other process has the file.
pub(crate) fn arena_in(home: &Path) -> PathBuf {
    let name: Vec<_> = home.components().rev().take(2).map(|part| part.as_os_str().to_string_lossy()).collect();
    Path::new("/dev/shm").join(format!("{}.arena", name.join("-")))
}

fn device(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.dev())
}

//! One mount of one server, from the start of its process to its end.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::programs::Server;

/// How often a mount is looked for. Ours takes milliseconds.
const PAUSE: Duration = Duration::from_micros(200);
/// Longest wait for a mount, and for a process to end after its unmount.
const PATIENCE: Duration = Duration::from_secs(60);

/// A mounted directory; unmounted when dropped, whatever becomes of what is in it.
pub(crate) struct Mounted {
    server: Server,
    mountpoint: PathBuf,
    arena: PathBuf,
    child: Child,
    log: PathBuf,
    /// From the start of the program until the first answer.
    pub(crate) mount_time: Duration,
}

impl Mounted {
    /// Mounts `home/source` at `home/mnt`, both made if they are not there.
    pub(crate) fn new(server: &Server, home: &Path, cache_bytes: u64) -> Result<Mounted> {
        let (source, mountpoint, log) = (home.join("source"), home.join("mnt"), home.join("log"));
        for path in [&source, &mountpoint] {
            fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        let arena = arena_in(home);
        let output = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let mut command = server.command(&source, &mountpoint, cache_bytes, &arena);
        // A group of its own: Ctrl-C is for this process, which unmounts.
        command.process_group(0).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let (before, start) = (device(home)?, Instant::now());
        let child = command.spawn().with_context(|| format!("cannot start {}", server.name))?;
        let (server, mount_time) = (server.clone(), Duration::ZERO);
        let mut mounted = Mounted { server, mountpoint, arena, child, log, mount_time };
        // Looking at a mount waits for its first answer.
        while device(&mounted.mountpoint)? == before {
            let ended = mounted.child.try_wait()?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                bail!("{} does not mount:\n{}", mounted.server.name, mounted.said());
            }
            std::thread::sleep(PAUSE);
        }
        mounted.mount_time = start.elapsed();
        Ok(mounted)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mountpoint
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The bytes of the file that holds its pages, if it has one.
    pub(crate) fn arena_bytes(&self) -> Option<u64> {
        fs::metadata(&self.arena).ok().map(|arena| arena.len())
    }

    /// Leaves it nothing to do.
    pub(crate) fn settle(&self) -> Result<()> {
        self.server.sync(&self.mountpoint).map_or(Ok(()), |mut command| self.succeed(&mut command))
    }

    /// Unmounts; the time until the command and the server have ended.
    pub(crate) fn umount(mut self) -> Result<Duration> {
        let start = Instant::now();
        self.succeed(&mut self.server.umount(&self.mountpoint))?;
        while self.child.try_wait()?.is_none() {
            ensure!(start.elapsed() < PATIENCE, "{} does not end:\n{}", self.server.name, self.said());
            std::thread::sleep(PAUSE);
        }
        Ok(start.elapsed())
    }

    fn succeed(&self, command: &mut Command) -> Result<()> {
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{command:?}: {}\n{said}{}", output.status, self.said());
        Ok(())
    }

    /// What the server wrote.
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let (program, option) =
                if rustix::process::geteuid().is_root() { ("umount", "-l") } else { ("fusermount3", "-uz") };
            // Nothing is mounted where it failed to.
            let _ = Command::new(program).arg(option).arg(&self.mountpoint).stderr(Stdio::null()).status();
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = fs::remove_file(&self.arena);
    }
}

/// In memory, and no other process has it: the home's own name is in it.
fn arena_in(home: &Path) -> PathBuf {
    let name: Vec<_> = home.components().rev().take(2).map(|part| part.as_os_str().to_string_lossy()).collect();
    Path::new("/dev/shm").join(format!("{}.arena", name.join("-")))
}

fn device(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?.dev())
}

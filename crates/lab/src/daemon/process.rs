//! A daemon of ours: started, asked over its socket, ended.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::fuse::tied;
use crate::interrupt;
use crate::scratch::Scratch;

/// Longest wait for a daemon to begin, to answer and to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// An unmount that has not ended by then has failed.
const DEADLINE: Duration = Duration::from_secs(60);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);
/// What it says when all that its configuration names is mounted.
const READY: &str = "End with Ctrl-C";

/// Killed when dropped. The mounts that it leaves then go with the directory that they are in.
pub(super) struct Daemon {
    child: Child,
    program: PathBuf,
    /// From the start of the program until all is mounted.
    pub(super) start_time: Duration,
    /// In memory: arena, socket, registry, configuration, and what it says.
    home: Scratch,
}

/// A directory, and where it is mounted.
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) source: PathBuf,
    pub(super) mountpoint: PathBuf,
}

impl Volume {
    /// With both directories made in the new directory `folder/name`.
    pub(super) fn make(folder: &Path, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let home = folder.join(&name);
        let (source, mountpoint) = (home.join("source"), home.join("mnt"));
        for path in [&home, &source, &mountpoint] {
            fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        Ok(Self { name, source, mountpoint })
    }

    /// As a configuration names it. What JSON quotes, TOML understands.
    pub(super) fn table(&self) -> String {
        let (source, mountpoint) = (json!(self.source), json!(self.mountpoint));
        format!("[volumes.{}]\nsource = {source}\nmountpoint = {mountpoint}\n", self.name)
    }
}

impl Daemon {
    /// Starts `program` with `config`; it gets `at_our_death` should this process be killed.
    pub(super) fn start(program: &Path, config: &str, at_our_death: &str) -> Result<Self> {
        let home = Scratch::in_folder(Path::new("/dev/shm"))?;
        let (file, log) = (home.path().join("config"), File::create(home.path().join("log"))?);
        fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = tied(program, at_our_death);
        command.arg("daemon").arg("--config").arg(file).arg("--socket").arg(socket_in(&home));
        command.arg("--arena").arg(home.path().join("arena")).env("SLACKWATER_RUNTIME_DIR", home.path().join("run"));
        // A group of its own: Ctrl-C is for this process, which ends it.
        command.process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let start = Instant::now();
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let mut daemon = Self { child, program: program.to_path_buf(), start_time: Duration::ZERO, home };
        wait_until("the daemon does not begin", || {
            let said = daemon.said();
            ensure!(daemon.child.try_wait()?.is_none(), "the daemon has ended:\n{said}");
            Ok(said.contains(READY))
        })?;
        daemon.start_time = start.elapsed();
        Ok(daemon)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The answer to a request, which may be about a volume.
    ///
    /// # Errors
    /// There is none within some minutes, or it is a refusal.
    pub(super) fn ask(&self, volume: Option<&str>, mut request: Value) -> Result<Value> {
        request["version"] = 1.into();
        if let Some(volume) = volume {
            request["volume"] = volume.into();
        }
        let mut stream = UnixStream::connect(socket_in(&self.home)).context("the daemon does not listen")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        for line in BufReader::new(stream).lines() {
            let line = line.context("the daemon does not answer")?;
            let reply: Value = serde_json::from_str(&line).context("the daemon answers nonsense")?;
            match reply["reply"].as_str() {
                Some("progress") => {}
                Some("failed") => bail!("the daemon refuses: {}", reply["what"]),
                _ => return Ok(reply),
            }
        }
        bail!("the daemon hangs up")
    }

    pub(super) fn mount(&self, volume: &Volume) -> Result<()> {
        let Volume { name, source, mountpoint } = volume;
        let request = json!({ "request": "mount", "name": name, "source": source, "mountpoint": mountpoint });
        self.ask(None, request).map(drop).with_context(|| format!("cannot mount {name}"))
    }

    pub(super) fn umount(&self, volume: &Volume) -> Result<()> {
        let deadline_ms = DEADLINE.as_millis() as u64;
        let request = json!({ "request": "umount", "deadline_ms": deadline_ms, "force": false, "discard": false });
        self.ask(Some(&volume.name), request).map(drop).with_context(|| format!("cannot unmount {}", volume.name))
    }

    /// How many volumes it has.
    pub(super) fn list(&self) -> Result<usize> {
        let list = self.ask(None, json!({ "request": "list" }))?;
        Ok(list["volumes"].as_array().map_or(0, Vec::len))
    }

    /// The command that prints them.
    pub(super) fn ls(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("ls").arg("--socket").arg(socket_in(&self.home));
        command.env("SLACKWATER_RUNTIME_DIR", self.home.path().join("run"));
        command
    }

    /// Has it unmount all and end; the time of that.
    pub(super) fn end(mut self) -> Result<Duration> {
        let start = Instant::now();
        kill_process(Pid::from_child(&self.child), Signal::TERM).context("cannot end the daemon")?;
        let mut status = None;
        wait_until("the daemon does not end", || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })?;
        let time = start.elapsed();
        ensure!(status.is_some_and(|status| status.success()), "the daemon has failed:\n{}", self.said());
        Ok(time)
    }

    fn said(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn socket_in(home: &Scratch) -> PathBuf {
    home.path().join("socket")
}

/// Looks every now and then; fails with `what` when it takes too long.
pub(super) fn wait_until(what: &str, mut is_reached: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_reached()? {
        interrupt::check()?;
        ensure!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

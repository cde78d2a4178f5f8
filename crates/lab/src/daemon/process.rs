//! A daemon of ours: started, controlled over its socket, ended.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fuse::tied;
use crate::harness::process::Process;
use crate::harness::threads::wait_until;
use crate::programs;
use crate::scratch::Scratch;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// The deadline of an unmount.
const DEADLINE: Duration = Duration::from_secs(60);
/// A part of the line that the daemon prints when all volumes of its configuration are mounted.
const READY: &str = "End with Ctrl-C";

/// Killed when dropped. The mounts that it leaves are removed with the directory that they are in.
pub(crate) struct Daemon {
    process: Process,
    program: PathBuf,
    /// From the start of the program until all is mounted.
    pub(super) start_time: Duration,
    /// In memory: arena, socket, registry, configuration and log.
    home: Scratch,
}

/// A source directory, and where it is mounted.
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) source: PathBuf,
    pub(crate) mountpoint: PathBuf,
}

impl Volume {
    /// Makes both directories in the new directory `folder/name`.
    pub(crate) fn make(folder: &Path, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let home = folder.join(&name);
        let (source, mountpoint) = (home.join("source"), home.join("mnt"));
        for path in [&home, &source, &mountpoint] {
            fs::create_dir(path).with_context(|| format!("cannot create {}", path.display()))?;
        }
        Ok(Self { name, source, mountpoint })
    }

    /// The table of a configuration. TOML understands the quoting of JSON.
    pub(crate) fn table(&self) -> String {
        let (source, mountpoint) = (json!(self.source), json!(self.mountpoint));
        format!("[volumes.{}]\nsource = {source}\nmountpoint = {mountpoint}\n", self.name)
    }
}

impl Daemon {
    /// Starts `program` with `config` and these options. The daemon gets the signal `at_our_death` if this process is killed.
    pub(crate) fn start(program: &Path, config: &str, options: &[&str], at_our_death: &str) -> Result<Self> {
        let home = Scratch::in_folder(Path::new("/dev/shm"))?;
        let (file, log) = (home.path().join("config"), File::create(home.path().join("log"))?);
        fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = tied(program, at_our_death);
        command.arg("daemon").arg("--config").arg(file).arg("--socket").arg(socket_in(&home));
        command
            .args(options)
            .arg("--arena")
            .arg(home.path().join("arena"))
            .env("SLACKWATER_RUNTIME_DIR", home.path().join("run"));
        command.stdout(log.try_clone()?).stderr(log);
        let start = Instant::now();
        let process = Process::start(&mut command)?;
        let mut daemon = Self { process, program: program.to_path_buf(), start_time: Duration::ZERO, home };
        wait_until("the daemon does not start", || {
            let log = daemon.log();
            ensure!(!daemon.process.has_ended()?, "the daemon has ended:\n{log}");
            Ok(log.contains(READY))
        })?;
        daemon.start_time = start.elapsed();
        Ok(daemon)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends a request, which may be about a volume, and returns the answer.
    ///
    /// # Errors
    /// The request failed, or there is no answer in time.
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
            let reply: Value = serde_json::from_str(&line).context("the daemon's answer is not JSON")?;
            match reply["reply"].as_str() {
                Some("progress") => {}
                Some("failed") => bail!("the request failed: {}", reply["what"]),
                _ => return Ok(reply),
            }
        }
        bail!("the daemon closed the connection")
    }

    pub(crate) fn mount(&self, volume: &Volume) -> Result<()> {
        let Volume { name, source, mountpoint } = volume;
        let request = json!({ "request": "mount", "name": name, "source": source, "mountpoint": mountpoint });
        self.ask(None, request).map(drop).with_context(|| format!("cannot mount {name}"))
    }

    pub(crate) fn umount(&self, volume: &Volume) -> Result<()> {
        let deadline_ms = DEADLINE.as_millis() as u64;
        let request = json!({ "request": "umount", "deadline_ms": deadline_ms, "force": false, "discard": false });
        self.ask(Some(&volume.name), request).map(drop).with_context(|| format!("cannot unmount {}", volume.name))
    }

    /// Unmounts a volume of which this process had files open. A child that another thread has just forked may have copies
    /// of them, so this repeats the request while the volume is in use.
    pub(super) fn umount_closed(&self, volume: &Volume) -> Result<()> {
        let mut outcome = Ok(());
        wait_until("the volume stays in use", || {
            outcome = self.umount(volume);
            Ok(!outcome.as_ref().is_err_and(|error| format!("{error:#}").contains("is in use by")))
        })?;
        outcome
    }

    pub(crate) fn sync(&self, volume: &Volume) -> Result<()> {
        let sync = self.ask(Some(&volume.name), json!({ "request": "sync" }));
        sync.map(drop).with_context(|| format!("cannot sync {}", volume.name))
    }

    /// The number of its volumes.
    pub(super) fn list(&self) -> Result<usize> {
        let list = self.ask(None, json!({ "request": "list" }))?;
        Ok(list["volumes"].as_array().map_or(0, Vec::len))
    }

    /// The command that lists its volumes.
    pub(super) fn ls(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("ls").arg("--socket").arg(socket_in(&self.home));
        command.env("SLACKWATER_RUNTIME_DIR", self.home.path().join("run"));
        command
    }

    /// Lets a process of the same program take over from the one that serves a daemon with `--keep`.
    ///
    /// # Errors
    /// The upgrade failed; the message is that of the command.
    pub(crate) fn upgrade(&self, volume: &Volume) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["upgrade", "--program"]).arg(&self.program).arg(&volume.mountpoint);
        programs::run(command.env("SLACKWATER_RUNTIME_DIR", self.home.path().join("run")))
    }

    /// Lets it unmount all volumes and end, and returns the time of that.
    pub(crate) fn end(mut self) -> Result<Duration> {
        let start = Instant::now();
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait("the daemon does not end")?;
        let time = start.elapsed();
        ensure!(status.success(), "the daemon has failed:\n{}", self.log());
        Ok(time)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }
}

fn socket_in(home: &Scratch) -> PathBuf {
    home.path().join("socket")
}

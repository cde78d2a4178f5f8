//! A daemon of ours, and volumes of it whose source no longer answers: directories of a bindfs mount that was stopped while
//! they wrote to it. A process that waits for a FUSE file system cannot be killed before its server is, so the server always ends first.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fuse::{BINDFS, on_path, tied};
use crate::harness::process::Process;
use crate::harness::threads::wait_until;
use crate::scratch::{Scratch, make_directory};
use crate::{interrupt, programs};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// The deadline of an unmount.
const DEADLINE: Duration = Duration::from_secs(60);
/// A part of the line that the daemon prints when all volumes of its configuration are mounted.
const READY: &str = "End with Ctrl-C";

/// A daemon, which is killed when dropped. The mounts that it leaves are removed with the directory that they are in.
pub(crate) struct Daemon {
    process: Process,
    program: PathBuf,
    /// Time from the start of the program until all is mounted.
    pub(super) start_time: Duration,
    /// A directory in memory, with arena, socket, registry, configuration and log.
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
        [&home, &source, &mountpoint].into_iter().try_for_each(|path| make_directory(path))?;
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

/// Bytes written to each volume.
const BYTES: usize = 4 << 20;
/// How long a program waits before it is killed.
const PROBE: Duration = Duration::from_millis(100);

/// Volumes whose source hangs. When this is dropped, the server of the source is killed, and the source is unmounted.
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
        [&base, &sources].into_iter().try_for_each(|path| make_directory(path))?;
        let make = |number| -> Result<Volume> {
            let name = format!("hung-{number}");
            let (source, mountpoint) = (sources.join(&name), folder.join(&name));
            [&base.join(&name), &mountpoint].into_iter().try_for_each(|path| make_directory(path))?;
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

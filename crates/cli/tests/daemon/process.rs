//! A running daemon, and the commands that talk to it.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::Signal;

use crate::rig::{Output, PATIENCE, Process, Scratch, repeat_while, umount_when_free, wait_said, wait_until};

/// A daemon in the foreground that is listening.
pub(crate) struct Daemon<'s> {
    scratch: &'s Scratch,
    pub(crate) socket: PathBuf,
    pub(crate) process: Process,
    /// The lines that it printed when it began to listen.
    pub(crate) announcement: String,
    /// Everything printed on standard error so far.
    said: Arc<Mutex<String>>,
}

impl<'s> Daemon<'s> {
    /// Starts a daemon in `scratch`, with `config` and a small cache, and waits until it listens.
    #[track_caller]
    pub(crate) fn start(scratch: &'s Scratch, config: &str) -> Self {
        Self::start_at(scratch, config, &scratch.path.join("run/daemon.sock"))
    }

    /// Starts a daemon as [`start`](Self::start) does, with changes to the command by `more`.
    #[track_caller]
    pub(crate) fn start_with(scratch: &'s Scratch, config: &str, more: impl FnOnce(&mut Command)) -> Self {
        let mut command = command(scratch, config);
        more(&mut command);
        Self::listening(scratch, command, &scratch.path.join("run/daemon.sock"))
    }

    /// Starts a daemon as [`start`](Self::start) does, with the socket at `socket`.
    #[track_caller]
    pub(crate) fn start_at(scratch: &'s Scratch, config: &str, socket: &Path) -> Self {
        let mut command = command(scratch, config);
        command.arg("--socket").arg(socket);
        Self::listening(scratch, command, socket)
    }

    #[track_caller]
    fn listening(scratch: &'s Scratch, mut command: Command, socket: &Path) -> Self {
        let mut process = Process::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let said = Arc::new(Mutex::new(String::new()));
        let heard = follow(process.0.stderr.take().unwrap(), Arc::clone(&said));
        let mut stdout = BufReader::new(process.0.stdout.take().unwrap());
        let mut announcement = String::new();
        while !announcement.contains("End with Ctrl-C") {
            if stdout.read_line(&mut announcement).unwrap() == 0 {
                let status = process.wait();
                heard.join().unwrap();
                panic!("the daemon ended with {status}: {}", said.lock().unwrap());
            }
        }
        // Keep reading: output at the end would otherwise break the pipe.
        thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        Self { scratch, socket: socket.to_path_buf(), process, announcement, said }
    }

    /// Runs a command that talks to this daemon.
    pub(crate) fn run<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Output {
        let mut command = self.scratch.command(arguments);
        crate::rig::run({
            command.env("SLACKWATER_SOCKET", &self.socket);
            command
        })
    }

    /// Mounts a volume in the daemon.
    #[track_caller]
    pub(crate) fn mount(&self, source: &Path, mountpoint: &Path, name: &str) {
        let (source, mountpoint) = (source.to_str().unwrap(), mountpoint.to_str().unwrap());
        self.run(["mount", "--daemon", source, mountpoint, "--name", name]).expect(0, &[name, "Unmount with"]);
    }

    /// Runs the command as [`run`](Self::run) does, again and again while something is in use, see [`repeat_while`].
    pub(crate) fn run_when_free<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I> + Clone) -> Output {
        repeat_while(Output::is_busy, || self.run(arguments.clone()))
    }

    /// Unmounts a volume, by its name or path, and expects success. Repeats that while it is in use.
    #[track_caller]
    pub(crate) fn umount(&self, volume: &str) {
        umount_when_free(|| self.run(["umount", volume])).expect(0, &[]);
    }

    #[track_caller]
    pub(crate) fn json(&self, verb: &str) -> serde_json::Value {
        self.json_of(&[verb])
    }

    /// The JSON that a command prints.
    #[track_caller]
    pub(crate) fn json_of(&self, words: &[&str]) -> serde_json::Value {
        let output = self.run([words, &["--json"]].concat());
        output.expect(0, &[]);
        serde_json::from_str(&output.text).unwrap()
    }

    /// The most bytes of a volume that may be unwritten.
    #[track_caller]
    pub(crate) fn share_of(&self, volume: &str) -> u64 {
        self.json_of(&["status", volume])["mounts"][0]["share_bytes"].as_u64().unwrap()
    }

    /// The address of its page for operators.
    #[track_caller]
    pub(crate) fn web_address(&self) -> String {
        let (_, rest) = self.announcement.split_once("Page for operators: http://").unwrap();
        rest.split_once('/').unwrap().0.to_owned()
    }

    /// Names and states of its volumes.
    #[track_caller]
    pub(crate) fn states(&self) -> Vec<(String, String)> {
        let list = self.json("ls");
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let volumes = list["volumes"].as_array().unwrap().iter();
        volumes.map(|volume| (text(&volume["name"]), text(&volume["phase"]))).collect()
    }

    /// How often `words` have appeared on standard error so far.
    pub(crate) fn said(&self, words: &str) -> usize {
        self.said.lock().unwrap().matches(words).count()
    }

    /// Waits until `words` have appeared so often on standard error.
    #[track_caller]
    pub(crate) fn wait_said(&self, words: &str, times: usize) {
        wait_said(&self.said, words, times);
    }

    /// Everything printed on standard error so far.
    pub(crate) fn all_said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Kills the daemon, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.process.0.kill().unwrap();
        self.process.wait();
    }

    /// Ends the daemon in order, even if volumes are in use.
    #[track_caller]
    pub(crate) fn end(self) {
        self.process.signal(Signal::TERM);
        self.ended();
    }

    /// Waits for an end that was already requested.
    #[track_caller]
    pub(crate) fn ended(mut self) {
        let status = self.process.wait();
        assert_eq!(status.code(), Some(0), "{}", self.all_said());
        assert!(!self.socket.exists());
        assert_eq!(self.said("ERROR"), 0, "{}", self.all_said());
    }
}

/// The answer of the page at `address` to a request with these further lines in its head.
#[track_caller]
pub(crate) fn ask(address: &str, first: &str, lines: &[&str]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    stream.write_all(format!("{first} HTTP/1.1\r\nHost: {address}\r\n{lines}\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn follow(stderr: ChildStderr, said: Arc<Mutex<String>>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            *said.lock().unwrap() += &(line + "\n");
        }
    })
}

/// The command that starts a daemon with `config`, and with a small cache unless `config` sets its size.
pub(crate) fn command(scratch: &Scratch, config: &str) -> Command {
    let file = scratch.path.join("daemon.toml");
    fs::write(&file, config).unwrap();
    let arena = scratch.arena("daemon");
    let mut command = scratch.command(["daemon", "--config", file.to_str().unwrap(), "--arena"]);
    command.arg(arena);
    if !config.contains("cache = ") {
        command.args(["--cache", "64MiB"]);
    }
    command
}

/// The table of a volume in the configuration.
pub(crate) fn table(name: &str, source: &Path, mountpoint: &Path) -> String {
    format!("[volumes.{name}]\nsource = {source:?}\nmountpoint = {mountpoint:?}\n")
}

/// Whether something is mounted at `path`.
pub(crate) fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1).map(Path::new) == Some(path))
}

/// Waits until nothing is mounted at `path`.
#[track_caller]
pub(crate) fn wait_unmounted(path: &Path) {
    wait_until("it is unmounted", || !is_mounted(path));
}

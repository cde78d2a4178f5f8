//! A kept mount of a test.

use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::rig::{Mount, Output, PATIENCE, Scratch, need_fuse, repeat_while, run, wait_until};

/// The ordinary user.
pub(super) const NOBODY: u32 = 65534;

/// A mount with a keeper. Dropping it ends both of its processes, whatever state they are in, and the mount.
pub(super) struct Kept {
    /// The keeper.
    pub(super) mount: Mount,
    pub(super) source: PathBuf,
    pub(super) mountpoint: PathBuf,
    pub(super) scratch: Arc<Scratch>,
    /// Whether the mount belongs to [`NOBODY`] instead of root.
    pub(super) is_of_user: bool,
}

impl Kept {
    #[track_caller]
    pub(super) fn new(more: &[&str]) -> Self {
        need_fuse();
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("a");
        Self::of(scratch, source, mountpoint, more)
    }

    /// A kept mount of a given source.
    #[track_caller]
    pub(super) fn of(scratch: Scratch, source: PathBuf, mountpoint: PathBuf, more: &[&str]) -> Self {
        let mount = scratch.mount(&source, &mountpoint, &[&["--keep"], more].concat());
        Self { mount, source, mountpoint, scratch: Arc::new(scratch), is_of_user: false }
    }

    /// A kept mount of an ordinary user, in a mount namespace of this thread. `limits` is a command line of setpriv or
    /// prlimit before the command.
    #[track_caller]
    pub(super) fn of_user(limits: &[&str], more: &[&str]) -> Self {
        need_fuse();
        let scratch = Scratch::new();
        let (source, mountpoint) = scratch.pair("a");
        let _ = scratch.command_for_all();
        for dir in [&source, &mountpoint, &scratch.path.join("run")] {
            chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let arena = scratch.arena("a");
        let words = ["mount", source.to_str().unwrap(), mountpoint.to_str().unwrap(), "--keep", "--cache", "32MiB"];
        let words = [&words[..], &["--arena", arena.to_str().unwrap()], more].concat();
        let mount = Mount::start(command_of_user(&scratch, limits, &words), &mountpoint);
        Self { mount, source, mountpoint, scratch: Arc::new(scratch), is_of_user: true }
    }

    pub(super) fn keeper(&self) -> Pid {
        Pid::from_child(&self.mount.process.0)
    }

    /// The server, once there is one that is neither `but` nor dying.
    #[track_caller]
    pub(super) fn server(&self, but: Option<Pid>) -> Pid {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = children(self.keeper()).into_iter().find(|child| Some(*child) != but && is_running(*child));
            if let Some(server) = found {
                return server;
            }
            let has_ended = !is_running(self.keeper());
            assert!(!has_ended && Instant::now() < deadline, "the keeper starts no server: {}", self.mount.errors());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Kills the server. Returns its pid.
    #[track_caller]
    pub(super) fn kill_server(&self) -> Pid {
        let server = self.server(None);
        kill_process(server, Signal::KILL).unwrap();
        server
    }

    /// Kills the server and waits until another one serves.
    #[track_caller]
    pub(super) fn replace_server(&self) {
        let before = self.takeovers();
        self.kill_server();
        wait_until("another process serves", || self.takeovers() > before);
    }

    /// The same; `between` runs when one server is dead and the other has not begun.
    #[track_caller]
    pub(super) fn replace_server_after(&self, between: impl FnOnce()) {
        let (before, keeper, server) = (self.takeovers(), self.keeper(), self.server(None));
        kill_process(keeper, Signal::STOP).unwrap();
        kill_process(server, Signal::KILL).unwrap();
        let status = format!("/proc/{}/status", server.as_raw_nonzero());
        wait_until("the server is dead", || fs::read_to_string(&status).is_ok_and(|it| it.contains("State:\tZ")));
        between();
        kill_process(keeper, Signal::CONT).unwrap();
        wait_until("another process serves", || self.takeovers() > before);
    }

    #[track_caller]
    pub(super) fn run(&self, words: &[&str]) -> Output {
        let words = [words, &[self.mountpoint.to_str().unwrap()]].concat();
        match self.is_of_user {
            true => run(command_of_user(&self.scratch, &[], &words)),
            false => self.scratch.run(words),
        }
    }

    /// The status of the mount.
    #[track_caller]
    pub(super) fn status(&self) -> Value {
        let mut found = Value::Null;
        // A takeover may take longer than the command waits for an answer.
        wait_until("a process answers", || {
            let output = self.run(&["status", "--json"]);
            output.expect(0, &[]);
            if output.text.contains("does not answer") {
                return false;
            }
            let all: Value = serde_json::from_str(&output.text).unwrap_or_else(|_| panic!("{}", output.text));
            found = all["mounts"][0].clone();
            !found.is_null()
        });
        found
    }

    #[track_caller]
    pub(super) fn takeovers(&self) -> u64 {
        let status = self.status();
        status["kept"]["takeovers"].as_u64().unwrap_or_else(|| panic!("{status}"))
    }

    /// Unmounts, and waits for the end of the keeper.
    #[track_caller]
    pub(super) fn umount(&mut self) -> Output {
        match self.is_of_user {
            true => self.umount_by(|kept| command_of_user(&kept.scratch, &[], &["umount"])),
            false => self.scratch.umount(&self.mountpoint),
        }
        self.mount.wait()
    }
}

impl Kept {
    /// Unmounts by a command, whose last word will be the mount point. Repeats that while the mount is in use, see
    /// [`repeat_while`].
    #[track_caller]
    pub(super) fn umount_by(&self, command: impl Fn(&Self) -> Command) {
        let is_busy = |output: &Output| {
            output.code != Some(0) && ["busy", "in use"].iter().any(|words| output.text.contains(words))
        };
        let umount = || {
            let mut command = command(self);
            command.arg(&self.mountpoint);
            run(command)
        };
        repeat_while(is_busy, umount).expect(0, &[]);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let keeper = self.keeper();
        let mut servers = children(keeper);
        // Without the keeper nothing starts another one.
        let _ = self.mount.process.0.kill();
        servers.extend(registered(&self.scratch, "pid"));
        for server in servers {
            let _ = kill_process(server, Signal::KILL);
        }
        let _ = unmount(&self.mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH);
    }
}

/// The command, as an ordinary user.
pub(super) fn command_of_user(scratch: &Scratch, limits: &[&str], words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    // A thread of a test may have become this user.
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    command.args(limits);
    command.arg(scratch.path.join("slackwater")).args(words);
    command.env("SLACKWATER_RUNTIME_DIR", scratch.path.join("run")).stdin(Stdio::null());
    command
}

/// Ends the processes that the registry of a test names, and their keepers before them.
pub(super) fn end_registered(scratch: &Scratch) {
    for field in ["keeper", "pid"] {
        for process in registered(scratch, field) {
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

/// The processes that the registry of a test names: mount processes of this test alone.
fn registered(scratch: &Scratch, field: &str) -> Vec<Pid> {
    let entries = fs::read_dir(scratch.path.join("run")).into_iter().flatten().flatten();
    let texts = entries.filter_map(|entry| serde_json::from_slice::<Value>(&fs::read(entry.path()).ok()?).ok());
    texts.filter_map(|entry| pid(entry[field].as_i64()?)).filter(|pid| is_running(*pid)).collect()
}

fn pid(number: i64) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

/// The children of a process.
pub(super) fn children(of: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{}/task", of.as_raw_nonzero())).into_iter().flatten().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let numbers: Vec<_> =
        lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
    numbers.iter().filter_map(|number| pid(number.parse().ok()?)).collect()
}

/// Whether it is a mount process that has not been killed.
fn is_running(process: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    field("Name:") == Some("slackwater")
        && field("State:").is_some_and(|state| !state.starts_with(['Z', 'X']))
        && [field("SigPnd:"), field("ShdPnd:")].iter().flatten().all(|pending| !pending.ends_with("100"))
}

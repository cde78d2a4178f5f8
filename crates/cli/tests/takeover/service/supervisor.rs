//! The process that is the service supervisor: what systemd does for a unit with `Restart=on-failure` and
//! `FileDescriptorStoreMax=`.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::sys;
use crate::rig::{Scratch, slackwater, wait_until};

/// The directory of the test.
const SCRATCH: &str = "SLACKWATER_SERVICE";
const DESCRIPTORS_MAX: usize = 4;

/// The command that starts the supervisor of a service of the test in `scratch`.
pub(super) fn command(scratch: &Scratch) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "service::supervisor::supervisor_process", "--nocapture"]).env(SCRATCH, &scratch.path);
    // The service has the environment of the test's other commands.
    let service = scratch.command([""; 0]);
    command.envs(service.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command
}

/// The supervisor's main function, not a test.
#[test]
fn supervisor_process() {
    let Some(scratch) = std::env::var_os(SCRATCH).map(PathBuf::from) else { return };
    let supervisor = Supervisor::listen(&scratch.join("notify"));
    let mut lives = 0;
    while !supervisor.start(&scratch).wait().unwrap().success() {
        lives += 1;
        assert!(lives < 10, "the service fails again and again");
    }
    wait_until("the store is empty", || supervisor.store.lock().unwrap().is_empty());
    let told = supervisor.told.lock().unwrap().clone();
    for ready in told.iter().filter(|text| text.contains("READY=1")) {
        assert!(ready.contains("STATUS=2 volumes"), "it serves two volumes in each of its lives: {ready}");
    }
    for words in ["READY=1", "WATCHDOG=1", "STOPPING=1"] {
        assert!(told.iter().any(|text| text.contains(words)), "it never said {words}");
    }
}

/// The descriptors that it stores, by name, and every other message.
#[derive(Clone, Default)]
struct Supervisor {
    store: Arc<Mutex<BTreeMap<String, OwnedFd>>>,
    told: Arc<Mutex<Vec<String>>>,
}

impl Supervisor {
    fn listen(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        let supervisor = Self::default();
        let listening = supervisor.clone();
        thread::spawn(move || {
            loop {
                listening.receive(&socket);
            }
        });
        supervisor
    }

    fn receive(&self, socket: &UnixDatagram) {
        let mut text = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC);
        let bytes = received.unwrap().bytes;
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let text = String::from_utf8_lossy(&text[..bytes]).into_owned();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        match (field("FDSTORE="), field("FDSTOREREMOVE="), field("FDNAME=")) {
            (Some(_), _, Some(name)) => drop(self.store.lock().unwrap().insert(name, descriptors.pop().unwrap())),
            (_, Some(_), Some(name)) => drop(self.store.lock().unwrap().remove(&name)),
            _ => self.told.lock().unwrap().push(text),
        }
    }

    /// Starts the service with what is in the store.
    fn start(&self, scratch: &Path) -> std::process::Child {
        let store = self.store.lock().unwrap();
        let names = store.keys().cloned().collect::<Vec<_>>().join(":");
        let descriptors: Vec<_> = store.values().map(|fd| fd.try_clone().unwrap()).collect();
        drop(store);
        // The pid is that of the program, which replaces the shell.
        let mut command = Command::new("sh");
        command.args(["-c", "LISTEN_PID=$$ WATCHDOG_PID=$$ exec \"$0\" \"$@\"", slackwater()]);
        command.args(["daemon", "--keep", "--cache", "64MiB", "--config"]).arg(scratch.join("daemon.toml"));
        let arena = format!("{}-daemon.arena", scratch.file_name().unwrap().to_string_lossy());
        command.arg("--arena").arg(Path::new("/dev/shm").join(arena));
        command.env("NOTIFY_SOCKET", scratch.join("notify")).env("FDSTORE", "512").env("WATCHDOG_USEC", "300000");
        if !descriptors.is_empty() {
            command.env("LISTEN_FDS", descriptors.len().to_string()).env("LISTEN_FDNAMES", names);
        }
        sys::pass(&mut command, descriptors);
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    }
}

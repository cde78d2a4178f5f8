//! A plugin, and calls by curl.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::rig::{Process, Scratch, repeat_while, slackwater};

/// The program that makes the calls.
pub(crate) const CLIENT: &str = "curl";

/// Held for reading by everything that mounts: a namespace that is made meanwhile has copies of the mounts, and volumes
/// would be in use there.
pub(crate) static MOUNTS: RwLock<()> = RwLock::new(());

/// A plugin that listens, with the pool `pool` in its scratch directory.
pub(crate) struct Plugin {
    process: Process,
    arguments: Vec<String>,
    pub(crate) socket: PathBuf,
    pub(crate) pool: PathBuf,
    registry: PathBuf,
    _mounts: RwLockReadGuard<'static, ()>,
}

/// The status and the body of an answer.
pub(crate) type Answer = (u16, Value);

impl Plugin {
    #[track_caller]
    pub(crate) fn start(scratch: &Scratch) -> Self {
        let pool = scratch.dir("pool", 0o755);
        let path = |name: &str| scratch.path.join(name).display().to_string();
        let (socket, daemon, state, mounts) =
            (path("plugins/slackwater.sock"), path("run/daemon.sock"), path("state"), path("mounts"));
        let words = ["docker-plugin", "--socket", &socket, "--daemon", &daemon, "--state", &state];
        let more = ["--mounts", &mounts, "--pool", pool.to_str().unwrap()];
        let arguments: Vec<_> = words.into_iter().chain(more).map(str::to_owned).collect();
        let registry = scratch.path.join("run");
        let process = Process::listening(&arguments, &registry, Path::new(&socket));
        let _mounts = MOUNTS.read().unwrap_or_else(PoisonError::into_inner);
        Self { process, arguments, socket: socket.into(), pool, registry, _mounts }
    }

    /// Kills it, as a crash would, and starts another one.
    #[track_caller]
    pub(crate) fn kill_and_restart(&mut self) {
        self.process.0.kill().unwrap();
        self.process.wait();
        self.process = Process::listening(&self.arguments, &self.registry, &self.socket);
    }

    /// Ends it in order.
    #[track_caller]
    pub(crate) fn end(mut self) {
        self.process.signal(Signal::TERM);
        assert_eq!(self.process.wait().code(), Some(0));
        assert!(!self.socket.exists());
    }

    /// A second plugin with the same state.
    pub(crate) fn second(&self) -> Command {
        let mut command = Command::new(slackwater());
        command.args(self.arguments.iter().map(|word| word.replace("slackwater.sock", "second.sock")));
        command
    }

    /// Posts `body` to `call`, such as `VolumeDriver.Mount`.
    #[track_caller]
    pub(crate) fn post(&self, call: &str, body: &[u8]) -> Answer {
        let socket = self.socket.to_str().unwrap();
        let url = format!("http://plugin/{call}");
        let mut client = Command::new(CLIENT);
        client.args(["-s", "--path-as-is", "-w", "\n%{http_code}", "--unix-socket", socket]).args([
            "--data-binary",
            "@-",
            &url,
        ]);
        let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // It closes its input early if the plugin refuses the body.
        let _ = client.stdin.take().unwrap().write_all(body);
        let output = client.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
    }

    #[track_caller]
    pub(crate) fn call(&self, call: &str, body: &Value) -> Answer {
        self.post(&format!("VolumeDriver.{call}"), body.to_string().as_bytes())
    }

    /// A call that succeeds. Repeats it while the volume is in use, see [`repeat_while`].
    #[track_caller]
    pub(crate) fn done(&self, call: &str, body: &Value) -> Value {
        let is_busy = |(status, answer): &Answer| {
            *status == 409 && answer["Err"].as_str().is_some_and(|text| text.contains("in use"))
        };
        let (status, answer) = repeat_while(is_busy, || self.call(call, body));
        assert_eq!((status, &answer["Err"]), (200, &json!("")), "{call} {body}: {answer}");
        answer
    }

    /// The message of a call that is refused with `status`.
    #[track_caller]
    pub(crate) fn refused(&self, call: &str, body: &Value, status: u16) -> String {
        let (found, answer) = self.call(call, body);
        assert_eq!(found, status, "{call} {body}: {answer}");
        answer["Err"].as_str().filter(|text| !text.is_empty()).unwrap().to_owned()
    }

    /// Mounts a volume for a user; where it is.
    #[track_caller]
    pub(crate) fn mount(&self, name: &str, user: &str) -> PathBuf {
        self.done("Mount", &json!({ "Name": name, "ID": user }))["Mountpoint"].as_str().unwrap().into()
    }

    #[track_caller]
    pub(crate) fn unmount(&self, name: &str, user: &str) {
        self.done("Unmount", &json!({ "Name": name, "ID": user }));
    }

    /// The directory of a volume in the pool.
    #[track_caller]
    pub(crate) fn source(&self, name: &str) -> PathBuf {
        let volume = self.done("Get", &json!({ "Name": name }));
        volume["Volume"]["Status"]["source"].as_str().unwrap().into()
    }

    /// The names of all volumes.
    #[track_caller]
    pub(crate) fn names(&self) -> Vec<String> {
        let list = self.done("List", &json!({}));
        list["Volumes"].as_array().unwrap().iter().map(|volume| volume["Name"].as_str().unwrap().to_owned()).collect()
    }
}

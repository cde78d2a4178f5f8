//! A machine of a cluster: a daemon, a plugin, and the calls that a kubelet and a provisioner make.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use slackwater_csi_proto as csi;
use slackwater_csi_proto::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::client::{Refused, is_busy, try_call};
use crate::plugin::{Plugin, capability, names_in, records_in};
use crate::rig::{Process, Scratch, repeat_while, wait_until};

/// An answer; `None` if the connection broke.
type Answer = Option<Result<(), Refused>>;

/// Pods may write to and read from a volume at the same time.
const MODE: Mode = Mode::SingleNodeMultiWriter;

/// Directories at which a volume can be published.
pub(crate) const TARGETS: usize = 2;

/// A call for one volume.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Call {
    Create,
    Delete,
    Stage,
    Unstage,
    Publish { target: usize, read_only: bool },
    Unpublish { target: usize },
    Stats { target: usize },
}

/// A volume as the cluster knows it, and its directories.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) context: HashMap<String, String>,
    folder: PathBuf,
}

impl Volume {
    pub(crate) fn staging(&self) -> PathBuf {
        self.folder.join("globalmount")
    }

    pub(crate) fn target(&self, number: usize) -> PathBuf {
        self.folder.join(format!("pods/{number}/mount"))
    }

    /// The directory in the pool.
    pub(crate) fn source(&self) -> &Path {
        Path::new(&self.context["source"])
    }

    fn create_request(&self) -> csi::CreateVolumeRequest {
        csi::CreateVolumeRequest {
            name: self.name.clone(),
            volume_capabilities: vec![capability(MODE)],
            ..csi::CreateVolumeRequest::default()
        }
    }

    /// Makes a call, on a connection of its own.
    fn perform(&self, endpoint: &Path, call: Call) -> Answer {
        let path = |path: PathBuf| path.to_str().unwrap().to_owned();
        let (volume_id, staging_target_path) = (self.id.clone(), path(self.staging()));
        match call {
            Call::Create => {
                let request = self.create_request();
                done(try_call::<csi::CreateVolumeResponse>(endpoint, "Controller/CreateVolume", &request))
            }
            Call::Delete => {
                let request = csi::DeleteVolumeRequest { volume_id, ..csi::DeleteVolumeRequest::default() };
                done(try_call::<csi::DeleteVolumeResponse>(endpoint, "Controller/DeleteVolume", &request))
            }
            Call::Stage => {
                let request = csi::NodeStageVolumeRequest {
                    volume_id,
                    staging_target_path,
                    volume_capability: Some(capability(MODE)),
                    volume_context: self.context.clone(),
                    ..csi::NodeStageVolumeRequest::default()
                };
                done(try_call::<csi::NodeStageVolumeResponse>(endpoint, "Node/NodeStageVolume", &request))
            }
            Call::Unstage => {
                let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
                done(try_call::<csi::NodeUnstageVolumeResponse>(endpoint, "Node/NodeUnstageVolume", &request))
            }
            Call::Publish { target, read_only } => {
                let request = csi::NodePublishVolumeRequest {
                    volume_id,
                    staging_target_path,
                    target_path: path(self.target(target)),
                    volume_capability: Some(capability(MODE)),
                    readonly: read_only,
                    volume_context: self.context.clone(),
                    ..csi::NodePublishVolumeRequest::default()
                };
                done(try_call::<csi::NodePublishVolumeResponse>(endpoint, "Node/NodePublishVolume", &request))
            }
            Call::Unpublish { target } => {
                let target_path = path(self.target(target));
                let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path };
                done(try_call::<csi::NodeUnpublishVolumeResponse>(endpoint, "Node/NodeUnpublishVolume", &request))
            }
            Call::Stats { target } => {
                let request = csi::NodeGetVolumeStatsRequest {
                    volume_id,
                    volume_path: path(self.target(target)),
                    staging_target_path,
                };
                done(try_call::<csi::NodeGetVolumeStatsResponse>(endpoint, "Node/NodeGetVolumeStats", &request))
            }
        }
    }
}

fn done<A>(answer: Option<Result<A, Refused>>) -> Answer {
    answer.map(|answer| answer.map(drop))
}

pub(crate) struct Machine {
    pub(crate) scratch: Scratch,
    daemon: Option<Process>,
    plugin: Option<Plugin>,
    /// Options of the plugin.
    options: &'static [&'static str],
}

impl Machine {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a machine with more options of the plugin.
    pub(crate) fn start_with(options: &'static [&'static str]) -> Self {
        let scratch = Scratch::new();
        scratch.dir("pool", 0o755);
        let mut machine = Self { scratch, daemon: None, plugin: None, options };
        machine.start_daemon();
        machine.start_plugin();
        machine
    }

    pub(crate) fn start_daemon(&mut self) {
        let mut command = self.scratch.command(["daemon", "--cache", "64MiB", "--arena"]);
        command.arg(self.scratch.arena("daemon"));
        self.daemon = Some(spawn(command, "End with Ctrl-C"));
    }

    pub(crate) fn start_plugin(&mut self) {
        let pool = self.scratch.path.join("pool");
        self.plugin = Some(Plugin::start(&self.scratch, pool.to_str().unwrap(), self.options));
    }

    fn endpoint(&self) -> PathBuf {
        self.plugin.as_ref().unwrap().endpoint.clone()
    }

    pub(crate) fn kill_plugin(&mut self) {
        self.plugin = None;
    }

    pub(crate) fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.0.kill().unwrap();
        daemon.wait();
    }

    /// Makes a call that is not about one volume's life.
    #[track_caller]
    pub(crate) fn ask<A: prost::Message + Default>(
        &self,
        method: &str,
        request: &impl prost::Message,
    ) -> Result<A, Refused> {
        self.plugin.as_ref().unwrap().call(method, request)
    }

    /// A volume that the pool has.
    pub(crate) fn create(&self, name: &str) -> Volume {
        let folder = self.scratch.path.join("kubelet").join(name);
        let volume = Volume { name: name.to_owned(), id: String::new(), context: HashMap::new(), folder };
        fs::create_dir_all(volume.staging()).unwrap();
        for target in 0..TARGETS {
            fs::create_dir_all(volume.target(target).parent().unwrap()).unwrap();
        }
        let request = volume.create_request();
        let made: csi::CreateVolumeResponse = self.ask("Controller/CreateVolume", &request).unwrap();
        let made = made.volume.unwrap();
        Volume { id: made.volume_id, context: made.volume_context, ..volume }
    }

    /// Makes a call, `times` at once. A call that is answered with `Aborted` is repeated, as a kubelet does. An unstage
    /// that has to succeed is also repeated while the volume is in use, see [`repeat_while`].
    pub(crate) fn at_once(
        &self,
        volume: &Volume,
        call: Call,
        times: usize,
        has_to_succeed: bool,
    ) -> Vec<Result<(), Refused>> {
        let endpoint = self.endpoint();
        let settle = || {
            loop {
                match volume.perform(&endpoint, call).expect("the plugin lives") {
                    Err(refused) if refused.code == Code::Aborted => thread::yield_now(),
                    answer => return answer,
                }
            }
        };
        let answer = || if has_to_succeed && call == Call::Unstage { repeat_while(is_busy, settle) } else { settle() };
        thread::scope(|scope| {
            let calls: Vec<_> = (0..times).map(|_| scope.spawn(answer)).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        })
    }

    pub(crate) fn call(&self, volume: &Volume, call: Call) -> Result<(), Refused> {
        self.at_once(volume, call, 1, false).pop().unwrap()
    }

    /// A call that has to succeed.
    #[track_caller]
    pub(crate) fn done(&self, volume: &Volume, call: Call) {
        if let Err(refused) = self.at_once(volume, call, 1, true).pop().unwrap() {
            panic!("{call:?}: {refused:?}");
        }
    }

    /// Makes a call, `times` at once, and kills the plugin after `delay`. The answers are lost, as for a kubelet. The next
    /// plugin runs when this returns.
    pub(crate) fn cut_off(&mut self, volume: &Volume, call: Call, times: usize, delay: Duration) {
        let endpoint = self.endpoint();
        thread::scope(|scope| {
            for _ in 0..times {
                scope.spawn(|| volume.perform(&endpoint, call));
            }
            thread::sleep(delay);
            self.kill_plugin();
        });
        self.start_plugin();
    }

    /// The daemon's volumes, and sources with data of an earlier daemon.
    fn of_daemon(&self) -> serde_json::Value {
        let listed = self.scratch.run(["ls", "--json"]);
        listed.expect(0, &[]);
        serde_json::from_str(&listed.text).unwrap()
    }

    /// The mounts below the scratch directory.
    pub(crate) fn mounts(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        points.filter(|point| Path::new(point).starts_with(&self.scratch.path)).map(str::to_owned).collect()
    }

    /// Unpublishes, unstages and deletes a volume, and checks that nothing of it is left.
    #[track_caller]
    pub(crate) fn remove(&self, volume: &Volume) {
        for target in 0..TARGETS {
            self.done(volume, Call::Unpublish { target });
            assert!(!volume.target(target).exists());
        }
        self.done(volume, Call::Unstage);
        self.done(volume, Call::Delete);
        assert!(!volume.source().exists());
    }

    /// Checks that no volume has left anything.
    #[track_caller]
    pub(crate) fn expect_nothing(&self) {
        assert_eq!(self.mounts(), [""; 0]);
        let listed = self.of_daemon();
        for of in ["volumes", "left"] {
            assert_eq!(listed[of], serde_json::json!([]), "{of}");
        }
        let [pool, state] = ["pool", "state"].map(|folder| self.scratch.path.join(folder));
        for names in [names_in(&pool), records_in(&state)] {
            assert!(names.iter().all(|name| name.starts_with('.')), "{names:?}");
        }
    }

    /// Processes with a path below the scratch directory in their command line.
    fn processes(&self) -> Vec<String> {
        let path = self.scratch.path.to_str().unwrap();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
        lines.filter(|line| line.contains(path)).collect()
    }

    /// Ends both processes in order, and checks that no process and no cache is left.
    #[track_caller]
    pub(crate) fn end(mut self) {
        self.plugin.take().unwrap().end();
        let mut daemon = self.daemon.take().unwrap();
        daemon.signal(rustix::process::Signal::TERM);
        assert!(daemon.wait().success());
        assert_eq!(self.processes(), [""; 0]);
        assert!(!self.scratch.arena("daemon").exists());
    }
}

/// Starts a process, and waits until it has printed `words`.
#[track_caller]
fn spawn(mut command: Command, words: &str) -> Process {
    let mut process = Process::spawn(command.stdout(Stdio::piped()));
    let mut stdout = BufReader::new(process.0.stdout.take().unwrap());
    let mut said = String::new();
    while !said.contains(words) {
        assert_ne!(stdout.read_line(&mut said).unwrap(), 0, "it ended: {said}");
    }
    // Output at the end would otherwise break the pipe.
    thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    process
}

/// Waits until the daemon has no volume with this id.
pub(crate) fn wait_ended(machine: &Machine, volume: &Volume) {
    wait_until("the volume has ended", || {
        machine.of_daemon()["volumes"].as_array().unwrap().iter().all(|listed| listed["name"] != volume.id.as_str())
    });
}

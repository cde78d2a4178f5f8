//! A daemon and a plugin, and the steps in the life of a volume.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;
use rustix::process::Signal;
use slackwater_csi_proto as csi;
use slackwater_csi_proto::volume_capability::access_mode::Mode;
use slackwater_csi_proto::volume_capability::{AccessMode, AccessType, MountVolume};

use crate::client::{Refused, call, is_busy, try_call};
use crate::process::Daemon;
use crate::rig::{Process, Scratch, need_fuse, repeat_while};

/// A plugin that listens.
pub(crate) struct Plugin {
    process: Process,
    arguments: Vec<String>,
    pub(crate) endpoint: PathBuf,
    registry: PathBuf,
}

impl Plugin {
    /// Starts a plugin for the daemon of `scratch`, with the pool `pool`.
    pub(crate) fn start(scratch: &Scratch, pool: &str, more: &[&str]) -> Self {
        let endpoint = scratch.path.join("csi.sock");
        let [socket, state] = ["run/daemon.sock", "state"].map(|name| scratch.path.join(name).display().to_string());
        let pool = format!("only={pool}");
        let mut words = vec!["csi", "--node-id", "here", "--endpoint", endpoint.to_str().unwrap()];
        words.extend(["--daemon", &socket, "--state", &state, "--pool", &pool]);
        words.extend(more);
        let arguments: Vec<_> = words.iter().map(ToString::to_string).collect();
        let registry = scratch.path.join("run");
        let process = Process::listening(&arguments, &registry, &endpoint);
        Self { process, arguments, endpoint, registry }
    }

    /// Kills it, as a crash would, and starts another one.
    pub(crate) fn kill_and_restart(&mut self) {
        self.process.0.kill().unwrap();
        self.process.wait();
        self.process = Process::listening(&self.arguments, &self.registry, &self.endpoint);
    }

    /// Ends it in order.
    #[track_caller]
    pub(crate) fn end(mut self) {
        self.process.signal(Signal::TERM);
        assert_eq!(self.process.wait().code(), Some(0));
        assert!(!self.endpoint.exists());
    }

    #[track_caller]
    pub(crate) fn call<A: Message + Default>(&self, method: &str, request: &impl Message) -> Result<A, Refused> {
        call(&self.endpoint, method, request)
    }
}

/// A daemon without configuration, and a plugin for it with the pool `pool` in the scratch directory.
#[track_caller]
pub(crate) fn daemon_and_plugin(scratch: &Scratch) -> (Daemon<'_>, Plugin) {
    need_fuse();
    let pool = scratch.dir("pool", 0o755);
    let daemon = Daemon::start(scratch, "");
    (daemon, Plugin::start(scratch, pool.to_str().unwrap(), &[]))
}

/// A volume that was made, and where its mounts are.
#[derive(Clone)]
pub(crate) struct Volume {
    pub(crate) endpoint: PathBuf,
    pub(crate) id: String,
    pub(crate) context: HashMap<String, String>,
    pub(crate) staging: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) mode: Mode,
    /// Secrets, sent with each call that can have them.
    pub(crate) secrets: HashMap<String, String>,
}

pub(crate) fn capability(mode: Mode) -> csi::VolumeCapability {
    let mount = AccessType::Mount(MountVolume::default());
    csi::VolumeCapability { access_type: Some(mount), access_mode: Some(AccessMode { mode: mode.into() }) }
}

/// A request for a volume of 1 MiB.
pub(crate) fn wanted(name: &str, mode: Mode) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 1 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![capability(mode)],
        ..csi::CreateVolumeRequest::default()
    }
}

impl Volume {
    /// Makes a volume, with directories of its own in `scratch`.
    #[track_caller]
    pub(crate) fn create(scratch: &Scratch, plugin: &Plugin, name: &str) -> Self {
        Self::create_with(scratch, plugin, name, HashMap::new())
    }

    /// Makes a volume as [`create`](Self::create) does, with secrets.
    #[track_caller]
    pub(crate) fn create_with(
        scratch: &Scratch,
        plugin: &Plugin,
        name: &str,
        secrets: HashMap<String, String>,
    ) -> Self {
        let mode = Mode::SingleNodeWriter;
        let wanted = csi::CreateVolumeRequest { secrets: secrets.clone(), ..wanted(name, mode) };
        let made: csi::CreateVolumeResponse = plugin.call("Controller/CreateVolume", &wanted).unwrap();
        let csi::Volume { volume_id, volume_context, .. } = made.volume.unwrap();
        let staging = scratch.dir(&format!("{name}-staging"), 0o755);
        let target = scratch.dir(&format!("{name}-pods"), 0o755).join("target");
        Self {
            endpoint: plugin.endpoint.clone(),
            id: volume_id,
            context: volume_context,
            staging,
            target,
            mode,
            secrets,
        }
    }

    /// The directory or URL in which its data is.
    pub(crate) fn source(&self) -> PathBuf {
        self.context["source"].clone().into()
    }

    pub(crate) fn at(&self, target: PathBuf) -> Self {
        Self { target, ..self.clone() }
    }

    pub(crate) fn with(&self, mode: Mode) -> Self {
        Self { mode, ..self.clone() }
    }

    fn path(path: &Path) -> String {
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn try_stage(&self) -> Option<Result<(), Refused>> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: Self::path(&self.staging),
            volume_capability: Some(capability(self.mode)),
            volume_context: self.context.clone(),
            secrets: self.secrets.clone(),
            ..csi::NodeStageVolumeRequest::default()
        };
        let answer = try_call::<csi::NodeStageVolumeResponse>(&self.endpoint, "Node/NodeStageVolume", &request);
        answer.map(|answer| answer.map(drop))
    }

    pub(crate) fn try_publish(&self, readonly: bool) -> Option<Result<(), Refused>> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: Self::path(&self.staging),
            target_path: Self::path(&self.target),
            volume_capability: Some(capability(self.mode)),
            volume_context: self.context.clone(),
            readonly,
            ..csi::NodePublishVolumeRequest::default()
        };
        let answer = try_call::<csi::NodePublishVolumeResponse>(&self.endpoint, "Node/NodePublishVolume", &request);
        answer.map(|answer| answer.map(drop))
    }

    pub(crate) fn try_unpublish(&self) -> Option<Result<(), Refused>> {
        let target_path = Self::path(&self.target);
        let request = csi::NodeUnpublishVolumeRequest { volume_id: self.id.clone(), target_path };
        let answer = try_call::<csi::NodeUnpublishVolumeResponse>(&self.endpoint, "Node/NodeUnpublishVolume", &request);
        answer.map(|answer| answer.map(drop))
    }

    pub(crate) fn try_unstage(&self) -> Option<Result<(), Refused>> {
        let staging_target_path = Self::path(&self.staging);
        let request = csi::NodeUnstageVolumeRequest { volume_id: self.id.clone(), staging_target_path };
        let answer = try_call::<csi::NodeUnstageVolumeResponse>(&self.endpoint, "Node/NodeUnstageVolume", &request);
        answer.map(|answer| answer.map(drop))
    }

    pub(crate) fn try_delete(&self) -> Option<Result<(), Refused>> {
        let request = csi::DeleteVolumeRequest { volume_id: self.id.clone(), secrets: self.secrets.clone() };
        let answer = try_call::<csi::DeleteVolumeResponse>(&self.endpoint, "Controller/DeleteVolume", &request);
        answer.map(|answer| answer.map(drop))
    }

    pub(crate) fn stage(&self) -> Result<(), Refused> {
        self.try_stage().unwrap()
    }

    pub(crate) fn publish(&self, readonly: bool) -> Result<(), Refused> {
        self.try_publish(readonly).unwrap()
    }

    pub(crate) fn unpublish(&self) -> Result<(), Refused> {
        self.try_unpublish().unwrap()
    }

    /// Unstages it. Repeats that while it is in use, see [`repeat_while`].
    pub(crate) fn unstage(&self) -> Result<(), Refused> {
        repeat_while(is_busy, || self.try_unstage().unwrap())
    }

    pub(crate) fn delete(&self) -> Result<(), Refused> {
        self.try_delete().unwrap()
    }

    /// The volume's conditions, by one word each.
    pub(crate) fn health(&self) -> Result<Vec<String>, Refused> {
        let request = csi::NodeGetVolumeHealthRequest {
            volume_id: self.id.clone(),
            volume_publish_path: Self::path(&self.target),
            staging_target_path: Self::path(&self.staging),
        };
        let answer: csi::NodeGetVolumeHealthResponse = call(&self.endpoint, "Node/NodeGetVolumeHealth", &request)?;
        Ok(answer.volume_health.unwrap().health_statuses.into_iter().map(|entry| entry.reason).collect())
    }
}

/// The mount points below `scratch`.
pub(crate) fn mounts_in(scratch: &Scratch) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    points.filter(|point| point.starts_with(&scratch.path)).collect()
}

/// The names in the directory of the records. A plugin that was just started takes the lock of each volume for a
/// moment. So this looks again while there is a lock.
pub(crate) fn records_in(state: &Path) -> Vec<String> {
    let has_lock = |names: &Vec<String>| names.iter().any(|name| name.ends_with(".lock"));
    repeat_while(has_lock, || names_in(state))
}

/// The names in a directory.
pub(crate) fn names_in(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

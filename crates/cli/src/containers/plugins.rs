//! The plugins, as the command lines ask for them.

use std::path::PathBuf;

use slackwater_containers::csi::{self, Controller, Csi};
use slackwater_containers::docker::{self, DockerPlugin};
use slackwater_control::exit::Failure;

use crate::arguments::DaemonSocket;
use crate::containers::arguments::{CsiArguments, CsiMode, DockerPluginArguments};
use crate::source::lock_for_removal;

pub(crate) fn csi(arguments: &CsiArguments) -> Result<(), Failure> {
    let CsiArguments { endpoint, node_id, mode, daemon, state, pool, unmount_deadline, topology } = arguments.clone();
    let controller = Controller { state, pools: pool, lock_for_removal };
    csi::run(Csi {
        endpoint,
        node_id,
        controller: (mode != CsiMode::Node).then_some(controller),
        daemon: if mode == CsiMode::Controller { None } else { Some(socket_of(daemon)?) },
        unmount_deadline,
        topology,
    })
}

pub(crate) fn docker_plugin(arguments: &DockerPluginArguments) -> Result<(), Failure> {
    let DockerPluginArguments { socket, daemon, state, mounts, pool, unmount_deadline } = arguments.clone();
    let daemon = socket_of(daemon)?;
    docker::run(DockerPlugin { socket, daemon, state, mounts, pool, unmount_deadline, lock_for_removal })
}

/// The daemon's socket, as other commands select it.
fn socket_of(daemon: Option<PathBuf>) -> Result<PathBuf, Failure> {
    DaemonSocket { socket: daemon }.path()
}

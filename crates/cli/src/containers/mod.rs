//! Plugins of container platforms: a volume for each container, mounted by a daemon.
//!
//! A plugin serves a protocol of a platform on a Unix socket, and asks a running daemon to mount and unmount. So mounts
//! stay when a plugin is restarted or killed, and a plugin has no state but the records of volumes. Without the cargo
//! feature `containers`, [`absent`] says so to the user.
//!
//! ```text
//! arguments  the command lines
//! endpoint   the Unix socket of a plugin
//! service    the process of a plugin, once it listens
//! durable    small files that survive a crash of the machine
//! limits     limits as people write them: attributes of a volume, a storage class or a pod
//! volumes/   the records of volumes; how they are made and removed
//! quota/     most bytes and inodes of a directory, by project quotas
//! pods/      limits of a pod, by its cgroup and its annotations
//! node/      mounting through the daemon, and bind mounts of a staged volume
//! csi/       the Container Storage Interface: `slackwater csi`
//! docker/    volume plugin of Docker and Podman: `slackwater docker-plugin`
//! ```

#[cfg(not(feature = "containers"))]
mod absent;
pub(crate) mod arguments;
#[cfg(feature = "containers")]
mod crash;
#[cfg(feature = "containers")]
mod csi;
#[cfg(feature = "containers")]
mod docker;
#[cfg(feature = "containers")]
mod durable;
#[cfg(feature = "containers")]
mod endpoint;
#[cfg(feature = "containers")]
pub(crate) mod limits;
#[cfg(feature = "containers")]
mod node;
#[cfg(feature = "containers")]
pub(crate) mod pods;
#[cfg(feature = "containers")]
pub(crate) mod quota;
#[cfg(feature = "containers")]
mod service;
#[cfg(feature = "containers")]
pub(crate) mod volumes;

#[cfg(not(feature = "containers"))]
pub(crate) use self::absent::{csi, docker_plugin};
#[cfg(feature = "containers")]
pub(crate) use self::{csi::run as csi, docker::run as docker_plugin};

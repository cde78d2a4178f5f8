//! Plugins of container platforms: a volume for each container, mounted by a daemon.
//!
//! A plugin serves a protocol of a platform on a Unix socket, and asks a running daemon to mount and unmount. So mounts
//! stay when a plugin is restarted or killed, and a plugin has no state but the records of volumes.
//!
//! ```text
//! endpoint   the Unix socket of a plugin
//! service    the process of a plugin, once it listens
//! durable    small files that survive a crash of the machine
//! limits     limits as people write them: attributes of a volume, a storage class or a pod
//! volumes/   the records of volumes; how they are made and removed
//! object/    volumes in object stores (cargo feature `object`)
//! quota/     most bytes and inodes of a directory, by project quotas
//! pods/      limits of a pod, by its cgroup and its annotations
//! node/      mounting through the daemon, and bind mounts of a staged volume
//! csi/       the Container Storage Interface: `slackwater csi`
//! docker/    volume plugin of Docker and Podman: `slackwater docker-plugin`
//! ```

mod crash;
pub mod csi;
pub mod docker;
mod durable;
mod endpoint;
mod limits;
mod node;
mod object;
mod pods;
mod quota;
mod service;
mod volumes;

pub use volumes::LockForRemoval;

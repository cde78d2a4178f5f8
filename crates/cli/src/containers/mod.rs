//! Plugins of container platforms: a volume for each container, mounted by a daemon.
//!
//! A plugin serves a protocol of a platform on a Unix socket, and asks a running daemon to mount and unmount. So mounts
//! stay when a plugin is restarted or killed, and a plugin has no state but the records of volumes.
//!
//! ```text
//! limits     limits as people write them: attributes of a volume, a storage class or a pod
//! volumes/   the records of volumes; how they are made and removed
//! quota/     most bytes and inodes of a directory, by project quotas
//! node/      mounting through the daemon, and bind mounts of a staged volume
//! csi/       the Container Storage Interface: `slackwater csi`
//! docker/    volume plugin of Docker and Podman: `slackwater docker-plugin`
//! ```

pub(crate) mod limits;
pub(crate) mod volumes;

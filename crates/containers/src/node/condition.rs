//! The conditions of a volume, and its usage.

use std::path::Path;

use rustix::fs::statvfs;
use slackwater_control::exit::Failure;
use slackwater_control::mountpoint::{is_dead, name_of};
use slackwater_control::os::mount_table;
use slackwater_control::protocol::{Listed, ObjectRole};
use slackwater_host::Printable as _;

use crate::node::{Node, NodeError, cannot};

/// How much a condition affects programs.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Severity {
    /// Programs can use the volume.
    Degraded,
    /// Programs get errors, or wait.
    Inaccessible,
}

/// Something that is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Condition {
    pub(crate) severity: Severity,
    /// The kind of condition: one word in CamelCase.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Bytes or inodes of a volume.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct Usage {
    pub(crate) total: u64,
    pub(crate) used: u64,
    pub(crate) available: u64,
}

impl Node {
    /// Everything that is wrong with a volume, also at `path` if that is given.
    ///
    /// # Errors
    /// `NotFound`, if the daemon does not have the volume and no dead mount is at `path`.
    ///
    /// # Blocking
    /// For the daemon, at most ten seconds.
    pub(crate) fn conditions(&self, id: &str, path: Option<&Path>) -> Result<Vec<Condition>, NodeError> {
        let inaccessible = |reason, message: String| Condition { severity: Severity::Inaccessible, reason, message };
        let listed = match self.daemon.find(id) {
            Err(NodeError::Unavailable(failure)) => {
                return Ok(vec![inaccessible("DaemonUnavailable", failure.to_string().replace("\n  ", "; "))]);
            }
            listed => listed?,
        };
        match (&listed, path) {
            (Some(listed), _) => Ok(of_listed(listed)),
            (None, Some(path)) if is_dead_mount(path) => {
                let message =
                    format!("the mount at {} is of a daemon that died; stage the volume again", path.printable());
                Ok(vec![inaccessible("MountDead", message)])
            }
            (None, _) => Err(not_found(id)),
        }
    }

    /// Sources with data that a dead daemon left and that could not be written back yet.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub(crate) fn left(&self) -> Result<Vec<String>, NodeError> {
        Ok(self.daemon.list()?.left)
    }

    /// Bytes and inodes of the volume that is mounted at `path`.
    ///
    /// # Errors
    /// `NotFound`, if the daemon does not have the volume, or something else is at `path`.
    ///
    /// # Blocking
    /// For the source of the volume, without limit.
    pub(crate) fn usage(&self, id: &str, path: &Path) -> Result<[Usage; 2], NodeError> {
        let path = self.check_at(id, path)?;
        let stat = statvfs(&path).map_err(|error| cannot("ask for the space of", &path, &error.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        let bytes = Usage {
            total: bytes(stat.f_blocks),
            used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
            available: bytes(stat.f_bavail),
        };
        let inodes =
            Usage { total: stat.f_files, used: stat.f_files.saturating_sub(stat.f_ffree), available: stat.f_favail };
        Ok([bytes, inodes])
    }

    /// Checks that the volume is mounted at `path`, and returns that path without symbolic links.
    ///
    /// # Errors
    /// `NotFound`, if the daemon does not have the volume, or something else is at `path`.
    pub(crate) fn check_at(&self, id: &str, path: &Path) -> Result<std::path::PathBuf, NodeError> {
        let listed = self.daemon.find(id)?.ok_or_else(|| not_found(id))?;
        let staged = Self::mount_of(&listed)?;
        let mounted = name_of(path).ok().and_then(|name| mount_table::mount_at(&name));
        match mounted {
            Some(mount) if mount.device == staged.device => Ok(mount.point),
            _ => {
                let what = format!("the volume {id} is not mounted at {}", path.printable());
                Err(NodeError::NotFound(Failure::failed(what)))
            }
        }
    }
}

fn of_listed(listed: &Listed) -> Vec<Condition> {
    let mut found = Vec::new();
    if let Some(error) = &listed.failing {
        let message =
            format!("data cannot be written back to {} ({error}), and is kept in the cache", listed.source.printable());
        found.push(Condition { severity: Severity::Degraded, reason: "WriteBackFails", message });
    }
    if let Some(object) = listed.object.as_ref().filter(|object| object.role == ObjectRole::Fenced) {
        let by = object.fenced_by.as_deref().unwrap_or("another process");
        let message =
            format!("{by} has taken {} over, which accepts nothing from here any more", listed.source.printable());
        found.push(Condition { severity: Severity::Inaccessible, reason: "TakenOver", message });
    }
    found
}

fn is_dead_mount(path: &Path) -> bool {
    name_of(path).is_ok_and(|name| {
        mount_table::mount_at(&name).is_some_and(|mount| mount_table::is_slackwater(&mount)) && is_dead(&name)
    })
}

fn not_found(id: &str) -> NodeError {
    NodeError::NotFound(Failure::failed(format!("no volume {} is mounted on this machine", Path::new(id).printable())))
}

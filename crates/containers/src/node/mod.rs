//! Volumes on this machine: mounted by the daemon at a staging directory, and from there bound to the directories of
//! containers.
//!
//! ```text
//! daemon     requests to the daemon
//! credentials  files with the credentials of volumes
//! stage      the mount at the staging directory, and its end
//! publish    bind mounts of a staged volume
//! condition  the conditions of a volume, and its usage
//! tenants    limits of pods
//! ```
//!
//! # Invariants
//! N1. There is no state but the daemon's and the kernel's. A call looks at both first, so that it can be repeated after
//!     it was answered, after it was cut off in the middle, and by another process.
//! N2. Each step is done by one system call or one request. A bind mount appears with all its attributes or not at all.
//! N3. An unstage succeeds only if everything that was written to the volume is durable in its source.
//! N4. A directory is only removed if it is empty, and only mounts of slackwater are unmounted.
//!
//! Calls for one volume must not overlap; the callers see to that.

mod condition;
mod credentials;
mod daemon;
mod publish;
mod stage;
mod sys;
mod tenants;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use slackwater_control::exit::{Failure, Reason};
use slackwater_control::os::mount_table;
use slackwater_control::protocol::Listed;
use slackwater_host::MountInfo;
use slackwater_host::Printable as _;

pub(crate) use self::condition::{Condition, Severity, Usage};
pub(crate) use self::publish::Publishing;
pub(crate) use self::stage::Staging;

use self::daemon::Daemon;

/// The volumes of one daemon.
pub(crate) struct Node {
    daemon: Daemon,
    unmount_deadline: Duration,
}

/// Why a call failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum NodeError {
    /// The caller's mistake.
    Invalid(Failure),
    /// The volume does not exist, or is not at that place.
    NotFound(Failure),
    /// The volume or the mount exists with other properties.
    Different(Failure),
    /// The call is not possible in this state; repeating alone does not help.
    State(Failure),
    /// An earlier call for the volume has not ended.
    Pending(Failure),
    /// The deadline passed; nothing is lost.
    Deadline(Failure),
    /// The daemon does not answer.
    Unavailable(Failure),
    Failed(Failure),
}

impl From<Failure> for NodeError {
    fn from(failure: Failure) -> Self {
        match failure.reason {
            Reason::Usage => Self::Invalid(failure),
            Reason::Busy => Self::State(failure),
            Reason::Deadline => Self::Deadline(failure),
            Reason::NotMounted => Self::NotFound(failure),
            Reason::NoDaemon => Self::Unavailable(failure),
            Reason::Failed | Reason::Rescued | Reason::Left => Self::Failed(failure),
        }
    }
}

impl Node {
    /// A node with the daemon at `socket`, which need not run yet.
    pub(crate) fn new(socket: PathBuf, unmount_deadline: Duration) -> Self {
        Self { daemon: Daemon::new(socket), unmount_deadline }
    }

    /// Whether the daemon answers.
    ///
    /// # Blocking
    /// For the daemon, at most ten seconds.
    pub(crate) fn is_ready(&self) -> bool {
        self.daemon.list().is_ok()
    }

    /// Whether the daemon has a volume with this id.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub(crate) fn has(&self, id: &str) -> Result<bool, NodeError> {
        Ok(self.daemon.find(id)?.is_some())
    }

    /// The mount of a volume that the daemon has, as this process sees it.
    fn mount_of(listed: &Listed) -> Result<MountInfo, NodeError> {
        let mount = mount_table::mount_at(&listed.mountpoint).filter(mount_table::is_slackwater);
        mount.ok_or_else(|| {
            let what = format!("the daemon's mount at {} is not visible here", listed.mountpoint.printable());
            NodeError::State(Failure::failed(what).advise(
                "in a container, the directory of kubelet needs the propagation Bidirectional for daemon and plugin",
            ))
        })
    }
}

/// The path of a directory whose last component is not followed, found without asking what is mounted there. `None` if
/// the directory above does not exist.
///
/// # Errors
/// `path` is not absolute, or the directory above cannot be entered.
fn place_of(path: &Path) -> Result<Option<PathBuf>, NodeError> {
    let (Some(folder), Some(name), true) = (path.parent(), path.file_name(), path.is_absolute()) else {
        let what = format!("{} is not the absolute path of a directory below another one", path.printable());
        return Err(NodeError::Invalid(Failure::usage(what)));
    };
    match folder.canonicalize() {
        Ok(folder) => Ok(Some(folder.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot("enter", folder, &error)),
    }
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> NodeError {
    NodeError::Failed(Failure::failed(format!("cannot {what} {}: {error}", path.printable())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_without_following_its_last_component() {
        assert_eq!(place_of(Path::new("/proc/../proc/self")).unwrap(), Some("/proc/self".into()));
        assert_eq!(place_of(Path::new("/nonexistent/a/b")).unwrap(), None);
        for path in ["", "/", "a/b", "/a/.."] {
            assert!(matches!(place_of(Path::new(path)), Err(NodeError::Invalid(_))), "{path}");
        }
    }
}

//! The messages. A request is answered by any number of [`Reply::Progress`] or [`Reply::Event`], and then by one other reply.
//!
//! A mount process has one volume, and every request to it is about that one. A daemon has many: a message to it names the
//! volume that it is about, or none where the request is to the daemon itself.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::exit::Failure;

pub(crate) use super::status::{
    Dontcache, MemoryPressure, Phase, Reads, Shrinker, Status, Switches, Tenant, TenantState, Writers,
};

/// Raised when a message changes its meaning; both sides refuse any other.
pub(crate) const VERSION: u32 = 1;
/// No request is longer, newline included.
pub(crate) const REQUEST_BYTES_MAX: usize = 64 << 10;
/// No reply is longer.
pub(crate) const REPLY_BYTES_MAX: usize = 16 << 20;
/// Most files that a reply names.
pub(crate) const FILES_MAX: usize = 10_000;

/// A message with the version of its meaning.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Message<T> {
    pub(crate) version: u32,
    #[serde(flatten)]
    pub(crate) volume: VolumeRef,
    #[serde(flatten)]
    pub(crate) body: T,
}

/// The volume that a message is about, for the daemon to find. Empty in a message to a mount process, or about the daemon itself.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct VolumeRef {
    /// Its name.
    #[serde(rename = "volume", default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Its mount point, absolute and without links. A volume that is mounted there takes precedence over one of that name.
    #[serde(rename = "at", default, skip_serializing_if = "Option::is_none")]
    pub(crate) mountpoint: Option<PathBuf>,
}

impl VolumeRef {
    /// The volume of this name, if there is a name.
    pub(crate) fn named(name: Option<&str>) -> Self {
        Self { name: name.map(str::to_owned), mountpoint: None }
    }

    /// Whether it refers to no volume.
    pub(crate) fn is_empty(&self) -> bool {
        self.name.is_none() && self.mountpoint.is_none()
    }
}

impl<T> Message<T> {
    pub(crate) fn new(body: T) -> Self {
        Self { version: VERSION, volume: VolumeRef::default(), body }
    }

    /// The same, about one of a daemon's volumes.
    pub(crate) fn about(self, volume: VolumeRef) -> Self {
        Self { volume, ..self }
    }
}

impl<T: Serialize> Message<T> {
    /// As sent, newline included.
    pub(crate) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_else(|error| {
            let failure = Failure::failed(format!("cannot encode the answer: {error}"));
            serde_json::to_vec(&Message::new(Reply::Failed(failure))).unwrap_or_default()
        });
        line.push(b'\n');
        line
    }
}

/// What the command asks.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub(crate) enum Request {
    /// How the volume is.
    Status,
    /// Everything written so far is to be durable.
    Sync,
    /// What `discard` would throw away.
    WouldLose,
    /// It is to end.
    Umount { deadline_ms: u64, force: bool, discard: bool },
    /// It is taken away from its mount point at once, and ends when nobody uses it any more.
    Detach,
    /// It is to be otherwise from now on.
    Set { key: String, value: String },
    /// Of a daemon: another volume.
    Mount(MountRequest),
    /// Of a daemon: its volumes.
    List,
    /// Of a daemon: its tenants, over all volumes.
    Tenants,
    /// Of a daemon: a tenant is to be otherwise from now on.
    SetTenant { tenant: PathBuf, key: String, value: String },
    /// Of a daemon: what happens from now on, until the peer goes.
    Events,
}

impl Request {
    /// Whether it changes nothing, and tells nothing of what is in files.
    pub(crate) fn only_looks(&self) -> bool {
        match self {
            Self::Status | Self::List | Self::Tenants | Self::Events => true,
            Self::Sync
            | Self::WouldLose
            | Self::Umount { .. }
            | Self::Detach
            | Self::Set { .. }
            | Self::Mount(_)
            | Self::SetTenant { .. } => false,
        }
    }
}

/// A volume that a daemon is to mount.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct MountRequest {
    /// `None`: the last name of the mount point.
    pub(crate) name: Option<String>,
    /// Absolute, both.
    pub(crate) source: PathBuf,
    pub(crate) mountpoint: PathBuf,
    #[serde(default)]
    pub(crate) options: VolumeOptions,
}

/// What may be different from volume to volume.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct VolumeOptions {
    /// Refuse every change.
    pub(crate) read_only: bool,
    /// Let other users in. Always so for root.
    pub(crate) allow_other: bool,
    /// Set-user-id bits have no effect.
    pub(crate) nosuid: bool,
    /// Device nodes cannot be opened.
    pub(crate) nodev: bool,
    /// No program can be run from it.
    pub(crate) noexec: bool,
    /// Keep what is read and written out of the cache.
    pub(crate) dontcache: bool,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub(crate) enum Reply {
    Status(Box<Status>),
    /// Bytes that are not in the source yet, and that reached it since the mount.
    Progress {
        bytes_left: u64,
        written_bytes: u64,
    },
    WouldLose {
        /// The source directory of the volume; processes of earlier versions leave it out.
        #[serde(default)]
        source: PathBuf,
        files: Vec<LostFile>,
        more_files: u64,
        more_bytes: u64,
    },
    /// It is mounted, under this name; what the kernel lacks, and what is lost with it.
    Mounted {
        name: String,
        missing_features: Vec<String>,
    },
    List(List),
    Tenants {
        tenants: Vec<Tenant>,
        more_tenants: u64,
    },
    Event(Event),
    Done,
    Failed(Failure),
}

impl Reply {
    /// Whether what was asked for is done.
    pub(crate) fn done(self) -> Result<(), Failure> {
        if self == Self::Done { Ok(()) } else { Err(self.refusal()) }
    }

    /// What it means to who has expected another.
    pub(crate) fn refusal(self) -> Failure {
        match self {
            Self::Failed(failure) => failure,
            Self::Status(_)
            | Self::Progress { .. }
            | Self::WouldLose { .. }
            | Self::Mounted { .. }
            | Self::List(_)
            | Self::Tenants { .. }
            | Self::Event(_)
            | Self::Done => Failure::failed("the answer does not match the request"),
        }
    }
}

/// What a daemon has.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct List {
    pub(crate) pid: u32,
    pub(crate) arena: PathBuf,
    pub(crate) cache_bytes: u64,
    /// By name.
    pub(crate) volumes: Vec<Listed>,
    /// What an earlier daemon left of volumes that have not been mounted since.
    pub(crate) left: Vec<String>,
}

/// One of its volumes.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) source: PathBuf,
    pub(crate) mountpoint: PathBuf,
    pub(crate) phase: Phase,
    /// Not in the source yet.
    pub(crate) bytes_left: u64,
    /// The last write-back error, while write-back fails.
    pub(crate) failing: Option<String>,
}

/// Something that happened.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// Since 1970.
    pub(crate) time_ms: u64,
    pub(crate) what: Happening,
    /// The volume that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) text: String,
}

/// What happens in a daemon.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Happening {
    Mounted,
    Unmounting,
    /// The unmount has failed, and the volume works on.
    StillMounted,
    Unmounted,
    /// A warning or an error, as in the log.
    Warning,
    /// The reader was too slow for some events before this one.
    Missed,
    /// Nothing: the daemon lives.
    Idle,
}

/// A file and how much of it is not in the source.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct LostFile {
    pub(crate) path: String,
    pub(crate) bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_an_older_mount_process_is_understood() {
        let text = r#"{"version":1,"reply":"status","pid":7,"phase":"mounted","source":"/a","mountpoint":"/b",
            "arena":"/c","cache_bytes":1,"dirty_bytes":2,"writeback_bytes":0,"unstable_bytes":0,"bytes_left":2,
            "written_bytes":3,"open_files":4,"inodes":5,"failing":null,"missing_features":[]}"#;
        let reply = serde_json::from_str::<Message<Reply>>(text).unwrap().body;
        let expected = Status {
            pid: 7,
            cache_bytes: 1,
            dirty_bytes: 2,
            bytes_left: 2,
            written_bytes: 3,
            open_files: 4,
            inodes: 5,
            ..Status::sample()
        };
        assert_eq!(reply, Reply::Status(Box::new(expected)));
    }

    #[test]
    fn messages_keep_their_form() {
        let request = Request::Umount { deadline_ms: 60_000, force: true, discard: false };
        let line = Message::new(&request).line();
        let text = r#"{"version":1,"request":"umount","deadline_ms":60000,"force":true,"discard":false}"#;
        assert_eq!(String::from_utf8(line.clone()).unwrap(), format!("{text}\n"));
        assert_eq!(serde_json::from_slice::<Message<Request>>(&line).unwrap().body, request);

        let line = Message::new(Request::Status).about(VolumeRef::named(Some("web"))).line();
        assert_eq!(line, b"{\"version\":1,\"volume\":\"web\",\"request\":\"status\"}\n");
        let volume = VolumeRef { name: Some("web".into()), mountpoint: Some("/mnt/web".into()) };
        let line = Message::new(Request::Status).about(volume.clone()).line();
        assert_eq!(line, b"{\"version\":1,\"volume\":\"web\",\"at\":\"/mnt/web\",\"request\":\"status\"}\n");
        assert_eq!(serde_json::from_slice::<Message<Request>>(&line).unwrap().volume, volume);

        let failure = Failure::busy("in use").advise("close it");
        let line = Message::new(Reply::Failed(failure.clone())).line();
        assert_eq!(serde_json::from_slice::<Message<Reply>>(&line).unwrap().body, Reply::Failed(failure));
    }
}

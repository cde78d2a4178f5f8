//! The messages. A request is answered by any number of [`Reply::Progress`] or [`Reply::Event`], and then by one other reply.
//!
//! A mount process has one volume, and every request to it is about that one. A daemon has many: a message to it names the
//! volume that it is about, or none where the request is to the daemon itself.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::exit::Failure;

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
    /// The name of a daemon's volume that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) volume: Option<String>,
    #[serde(flatten)]
    pub(crate) body: T,
}

impl<T> Message<T> {
    pub(crate) fn new(body: T) -> Self {
        Self { version: VERSION, volume: None, body }
    }

    /// The same, about one of a daemon's volumes.
    pub(crate) fn about(self, volume: Option<String>) -> Self {
        Self { volume, ..self }
    }
}

impl<T: Serialize> Message<T> {
    /// As sent, newline included.
    pub(crate) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_else(|error| {
            let failure = Failure::failed(format!("this answer cannot be written: {error}"));
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
            | Self::Done => Failure::failed("the process answers something else than it was asked"),
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

/// Where a mount is in its life.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// It brings in what a predecessor left.
    Starting,
    Mounted,
    /// An unmount is under way.
    Unmounting,
    /// Unmounted here, but in use: by files that were open, as a bind mount, in another namespace.
    Elsewhere,
    /// Nobody can reach it any more, and not everything is in the source yet.
    Flushing,
}

/// A file and how much of it is not in the source.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct LostFile {
    pub(crate) path: String,
    pub(crate) bytes: u64,
}

/// Where a tenant is in its life.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TenantState {
    Online,
    /// Its cgroup has just been removed.
    Dying,
    /// That is gone, and some of its data is left.
    Offline,
}

/// What a tenant has in the cache of a mount.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tenant {
    /// No two tenants of a mount have the same, ever; 0 is what nobody else is asked to pay for.
    pub(crate) id: u64,
    /// The path of a cgroup, `uid:1000` or `volume`, and `root` for number 0.
    pub(crate) name: String,
    pub(crate) state: TenantState,
    pub(crate) limit_bytes: Option<u64>,
    /// What counts against the limit: pages that it dirtied, until they are durable in the source. 0 for number 0.
    pub(crate) charged_bytes: u64,
    /// The same in the files that are mostly its own, by how far it is.
    pub(crate) dirty_bytes: u64,
    pub(crate) writeback_bytes: u64,
    pub(crate) unstable_bytes: u64,
    /// What its flusher has brought to the source so far.
    pub(crate) written_bytes: u64,
    /// Age of the oldest file of it that waits for its flusher.
    pub(crate) oldest_ms: Option<u64>,
    /// How long its writers were slowed down, all together.
    pub(crate) paused_ms: u64,
    /// Clean pages that were cached for it.
    #[serde(default)]
    pub(crate) cached_bytes: u64,
    /// It is at its limit, and its writers wait.
    pub(crate) wants_room: bool,
}

/// A cache of the mount process that can give memory back.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shrinker {
    /// No two have the same at a time.
    pub(crate) name: String,
    /// Objects that it could give back. None if it cannot say now.
    pub(crate) count: Option<u64>,
    /// Scans that were due and have not been made yet.
    pub(crate) deferred: u64,
}

/// What the cache is worth to readers, since the mount. What the kernel's own cache answers is not in it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reads {
    /// Pages that were found in the cache.
    pub(crate) hits: u64,
    /// Pages that had to be brought from the source.
    pub(crate) misses: u64,
    /// What came from the source, also ahead of readers and for parts of pages that were written.
    pub(crate) filled_bytes: u64,
}

/// What DONTCACHE writes do.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Dontcache {
    pub(crate) dirty_bytes: u64,
    /// Writes that woke a flusher, since the mount.
    pub(crate) kicks: u64,
    /// Passes of flushers for such writes, since the mount.
    pub(crate) passes: u64,
}

/// How writers are held back.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Writers {
    /// How long they were told to pause since the mount, all together.
    pub(crate) paused_ms: u64,
    /// Writes that are done and whose writers pause now.
    pub(crate) paused: u64,
    /// Writes that wait for room now.
    pub(crate) parked: u64,
    /// What is kept of these.
    pub(crate) parked_bytes: u64,
}

/// Files that are given to another tenant, since others write them.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Switches {
    /// Since the mount.
    pub(crate) done: u64,
    pub(crate) in_flight: u64,
}

/// How short of memory the machine was, or the cgroup of a mount process.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct MemoryPressure {
    /// The files in which the kernel tells of it; none if it tells nothing here.
    pub(crate) sources: Vec<String>,
    /// How often it was heard of since the mount.
    pub(crate) events: u64,
    /// Objects in memory that were freed then; most of them are inodes.
    pub(crate) freed_objects: u64,
}

/// How a mount is.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) pid: u32,
    /// Its name in a daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) phase: Phase,
    pub(crate) source: PathBuf,
    pub(crate) mountpoint: PathBuf,
    pub(crate) arena: PathBuf,
    pub(crate) cache_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) writeback_bytes: u64,
    pub(crate) unstable_bytes: u64,
    pub(crate) bytes_left: u64,
    pub(crate) written_bytes: u64,
    pub(crate) open_files: u64,
    pub(crate) inodes: u64,
    /// The last write-back error, while write-back fails.
    pub(crate) failing: Option<String>,
    /// Attempts that failed since the mount. 0 from a mount process that is older than this, as all that follows.
    #[serde(default)]
    pub(crate) failures: u64,
    /// Age of the oldest file that waits for its flusher.
    #[serde(default)]
    pub(crate) oldest_ms: Option<u64>,
    /// Most that may be unclean in the cache now; less while write-back fails.
    #[serde(default)]
    pub(crate) share_bytes: u64,
    #[serde(default)]
    pub(crate) reads: Reads,
    #[serde(default)]
    pub(crate) dontcache: Dontcache,
    #[serde(default)]
    pub(crate) writers: Writers,
    #[serde(default)]
    pub(crate) switches: Switches,
    /// What the kernel lacks, and what is lost with it.
    pub(crate) missing_features: Vec<String>,
    /// Those with most in the cache first. None from a mount process that is older than this.
    #[serde(default)]
    pub(crate) tenants: Vec<Tenant>,
    /// And how many there are beyond what a reply holds.
    #[serde(default)]
    pub(crate) more_tenants: u64,
    /// None from a mount process that is older than this.
    #[serde(default)]
    pub(crate) shrinkers: Vec<Shrinker>,
    /// Nothing from a mount process that is older than this.
    #[serde(default)]
    pub(crate) memory_pressure: MemoryPressure,
}

#[cfg(test)]
impl Tenant {
    /// One that has nothing.
    pub(crate) fn sample(id: u64, name: &str) -> Self {
        Self {
            id,
            name: name.to_owned(),
            state: TenantState::Online,
            limit_bytes: None,
            charged_bytes: 0,
            dirty_bytes: 0,
            writeback_bytes: 0,
            unstable_bytes: 0,
            written_bytes: 0,
            oldest_ms: None,
            paused_ms: 0,
            cached_bytes: 0,
            wants_room: false,
        }
    }
}

#[cfg(test)]
impl Status {
    /// A mount that has nothing.
    pub(crate) fn sample() -> Self {
        Self {
            name: None,
            pid: 1,
            phase: Phase::Mounted,
            source: "/a".into(),
            mountpoint: "/b".into(),
            arena: "/c".into(),
            cache_bytes: 0,
            dirty_bytes: 0,
            writeback_bytes: 0,
            unstable_bytes: 0,
            bytes_left: 0,
            written_bytes: 0,
            open_files: 0,
            inodes: 0,
            failing: None,
            failures: 0,
            oldest_ms: None,
            share_bytes: 0,
            reads: Reads::default(),
            dontcache: Dontcache::default(),
            writers: Writers::default(),
            switches: Switches::default(),
            missing_features: Vec::new(),
            tenants: Vec::new(),
            more_tenants: 0,
            shrinkers: Vec::new(),
            memory_pressure: MemoryPressure::default(),
        }
    }
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

        let line = Message::new(Request::Status).about(Some("web".into())).line();
        assert_eq!(line, b"{\"version\":1,\"volume\":\"web\",\"request\":\"status\"}\n");

        let failure = Failure::busy("in use").advise("close it");
        let line = Message::new(Reply::Failed(failure.clone())).line();
        assert_eq!(serde_json::from_slice::<Message<Reply>>(&line).unwrap().body, Reply::Failed(failure));
    }
}

//! The messages. A request is answered by any number of [`Reply::Progress`] or [`Reply::Event`], and then by one other
//! reply.
//!
//! A mount process has one volume, and every request to it is about that one. A daemon has many: a request names the
//! volume, or no volume if it is to the daemon itself.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use crate::formats::Formats;
use crate::spec::{VolumeSpec, wire};

pub use crate::status::{
    Container, Dontcache, FailedUpgrade, KeptStatus, MemoryPressure, ObjectRole, ObjectStatus, Phase, Reads, Shrinker,
    Status, Switches, Tenant, TenantState, Writers,
};

/// The version of messages, incremented when one changes its meaning; both sides refuse any other version.
pub const VERSION: u32 = 1;
/// The version of requests whose new part an earlier process must not ignore: it would do something else.
pub const VERSION_OF_CREDENTIALS: u32 = 2;
/// Maximum length of a request, newline included.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Maximum length of a reply.
pub const REPLY_BYTES_MAX: usize = 16 << 20;
/// Maximum number of files that a reply names.
pub const FILES_MAX: usize = 10_000;

/// A message with its protocol version.
#[derive(Debug, Serialize, Deserialize)]
pub struct Message<T> {
    pub version: u32,
    #[serde(flatten)]
    pub volume: VolumeRef,
    #[serde(flatten)]
    pub body: T,
}

/// The volume that a message is about, for the daemon to look up. Empty in a message to a mount process, or about the
/// daemon itself.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct VolumeRef {
    /// The volume's name.
    #[serde(rename = "volume", default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The volume's mount point, absolute and without symbolic links. A volume mounted there takes precedence over one
    /// of that name.
    #[serde(rename = "at", default, skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<PathBuf>,
    /// The mount point of the volume that the request is about, in the mount namespace of the peer. `None`: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<PathBuf>,
    /// The process of the peer, as the server sees it.
    #[serde(skip)]
    pub peer: u32,
}

impl VolumeRef {
    /// The volume with this name, if there is a name.
    pub fn named(name: Option<&str>) -> Self {
        Self { name: name.map(str::to_owned), ..Self::default() }
    }

    /// Whether no volume is named.
    pub fn is_empty(&self) -> bool {
        self.name.is_none() && self.mountpoint.is_none()
    }
}

impl<T> Message<T> {
    pub fn new(body: T) -> Self {
        Self { version: VERSION, volume: VolumeRef::default(), body }
    }

    /// A request, with the first version that knows all of it.
    pub fn request(request: T) -> Self
    where
        T: Borrow<Request>,
    {
        let has_credentials = matches!(request.borrow(), Request::Mount(MountRequest { credentials: Some(_), .. }));
        let version = if has_credentials { VERSION_OF_CREDENTIALS } else { VERSION };
        Self { version, ..Self::new(request) }
    }

    /// The same message, about one of a daemon's volumes.
    pub fn about(self, volume: VolumeRef) -> Self {
        Self { volume, ..self }
    }
}

impl<T: Serialize> Message<T> {
    /// The line that is sent, newline included.
    pub fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_else(|error| {
            let failure = Failure::failed(format!("cannot encode the answer: {error}"));
            serde_json::to_vec(&Message::new(Reply::Failed(failure))).unwrap_or_default()
        });
        line.push(b'\n');
        line
    }
}

/// A request.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// The status of the volume.
    Status,
    /// Make everything written so far durable.
    Sync,
    /// List what `discard` would drop.
    WouldLose,
    /// Unmount. With `park`, what is unwritten at the deadline is left in the arena, as with `force`.
    Umount {
        deadline_ms: u64,
        force: bool,
        discard: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        park: bool,
    },
    /// Mount the volume at a further mount point, in the mount namespace of the peer. `options` are those that were
    /// stated, each with its value; the volume must have the same.
    Attach {
        mountpoint: PathBuf,
        options: BTreeMap<String, String>,
        /// The same as in [`MountRequest`].
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_repeated: bool,
    },
    /// Check, before a remount, that the volume has the options that were stated, as for `Attach`. If it is to become
    /// read-only, write everything back.
    PrepareRemount { read_only: bool, options: BTreeMap<String, String> },
    /// The volume is read-only or writable now, after a remount of its mount point.
    Remounted { read_only: bool },
    /// Detach the volume from its mount point at once; it ends when no program uses it any more.
    Detach,
    /// Let another process take the mount over, if it is kept; of another program, if there is one. Answered at once.
    Restart {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<NextProgram>,
    },
    /// Change a setting of the volume.
    Set { key: String, value: String },
    /// Mount a volume in a daemon.
    Mount(MountRequest),
    /// List the volumes of a daemon.
    List,
    /// List the tenants of a daemon, with totals over all volumes.
    Tenants,
    /// Change a setting of a tenant of a daemon. A pod is the tenant `pod:UID`; its setting `name` has the value
    /// `namespace/pod`.
    SetTenant { tenant: PathBuf, key: String, value: String },
    /// Send the events of a daemon from now on, until the peer closes.
    Events,
}

impl Request {
    /// The same request to the successor of a process that may have carried it out and not answered.
    pub fn repeated(mut self) -> Self {
        if let Self::Mount(MountRequest { is_repeated, .. }) | Self::Attach { is_repeated, .. } = &mut self {
            *is_repeated = true;
        }
        self
    }

    /// Whether the request changes nothing, and reveals nothing of the contents of files.
    pub fn is_query(&self) -> bool {
        match self {
            Self::Status | Self::List | Self::Tenants | Self::Events => true,
            Self::Sync
            | Self::WouldLose
            | Self::Umount { .. }
            | Self::Attach { .. }
            | Self::PrepareRemount { .. }
            | Self::Remounted { .. }
            | Self::Detach
            | Self::Restart { .. }
            | Self::Set { .. }
            | Self::Mount(_)
            | Self::SetTenant { .. } => false,
        }
    }
}

/// A volume for a daemon to mount.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct MountRequest {
    /// The volume's name. `None`: the last component of the mount point.
    pub name: Option<String>,
    /// A directory, absolute as is `mountpoint`; or the URL of an object volume.
    pub source: PathBuf,
    pub mountpoint: PathBuf,
    #[serde(default, with = "wire")]
    pub options: VolumeSpec,
    /// A file with the credentials of an object volume, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<PathBuf>,
    /// Whether an earlier process may have carried the request out and not answered: if so, it is done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_repeated: bool,
}

/// The program of the next process of a mount.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct NextProgram {
    /// The path of the program, absolute and without symbolic links, in the mount namespace of the peer.
    pub path: PathBuf,
    pub formats: Formats,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    Status(Box<Status>),
    /// Unwritten bytes, and bytes written back since the mount.
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
        /// Changes of names and attributes of an object volume that are only in its local log.
        #[serde(default)]
        changes: u64,
    },
    /// The volume is mounted under this name; with the features that the kernel lacks, and what each affects.
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
    /// Whether the request was carried out.
    ///
    /// # Errors
    /// The process refused or failed; or the reply is one to another request.
    pub fn done(self) -> Result<(), Failure> {
        if self == Self::Done { Ok(()) } else { Err(self.refusal()) }
    }

    /// The failure for a caller that expected another reply.
    pub fn refusal(self) -> Failure {
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

/// The volumes of a daemon.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct List {
    pub pid: u32,
    pub arena: PathBuf,
    pub cache_bytes: u64,
    /// The volumes, sorted by name.
    pub volumes: Vec<Listed>,
    /// Sources with data that an earlier daemon left, and that have not been mounted since.
    pub left: Vec<String>,
    /// How the volumes outlive the daemon, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptStatus>,
}

/// A volume of a daemon.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    pub name: String,
    pub source: PathBuf,
    pub mountpoint: PathBuf,
    pub phase: Phase,
    /// Unwritten bytes.
    pub bytes_left: u64,
    /// The last write-back error, while write-back fails.
    pub failing: Option<String>,
    /// The state of an object volume; `None` if the source is a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectStatus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// An event.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds since 1970.
    pub time_ms: u64,
    pub what: EventKind,
    /// The name of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The event in words, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// The kinds of events.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    Mounted,
    Unmounting,
    /// The unmount has failed, and the volume stays usable.
    StillMounted,
    Unmounted,
    /// A warning or an error, as in the log.
    Warning,
    /// Another process has taken all volumes over. Events of that time may be missing.
    TakenOver,
    /// The reader was too slow for some events before this one.
    Missed,
    /// A sign that the daemon is alive, without an event.
    Idle,
}

/// A file and its unwritten bytes.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct LostFile {
    pub path: String,
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_an_older_mount_process_is_parsed() {
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
    fn messages_keep_their_format() {
        let request = Request::Umount { deadline_ms: 60_000, force: true, discard: false, park: false };
        let line = Message::new(&request).line();
        let text = r#"{"version":1,"request":"umount","deadline_ms":60000,"force":true,"discard":false}"#;
        assert_eq!(String::from_utf8(line.clone()).unwrap(), format!("{text}\n"));
        assert_eq!(serde_json::from_slice::<Message<Request>>(&line).unwrap().body, request);

        let line = Message::new(Request::Status).about(VolumeRef::named(Some("web"))).line();
        assert_eq!(line, b"{\"version\":1,\"volume\":\"web\",\"request\":\"status\"}\n");
        let volume = VolumeRef { mountpoint: Some("/mnt/web".into()), ..VolumeRef::named(Some("web")) };
        let line = Message::new(Request::Status).about(volume.clone()).line();
        assert_eq!(line, b"{\"version\":1,\"volume\":\"web\",\"at\":\"/mnt/web\",\"request\":\"status\"}\n");
        assert_eq!(serde_json::from_slice::<Message<Request>>(&line).unwrap().volume, volume);

        let mount = |credentials| {
            let [source, mountpoint] = ["/a", "/b"].map(PathBuf::from);
            let options = VolumeSpec::default();
            Request::Mount(MountRequest { name: None, source, mountpoint, options, credentials, is_repeated: false })
        };
        assert_eq!(Message::request(mount(None)).version, 1);
        assert_eq!(Message::request(&mount(Some("/keys".into()))).version, 2, "version 1 would use its environment");

        let failure = Failure::busy("in use").advise("close it");
        let line = Message::new(Reply::Failed(failure.clone())).line();
        assert_eq!(serde_json::from_slice::<Message<Reply>>(&line).unwrap().body, Reply::Failed(failure));
    }
}

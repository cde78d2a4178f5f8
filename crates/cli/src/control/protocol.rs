//! The messages. A request is answered by any number of [`Reply::Progress`] and then by one other reply.

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
    #[serde(flatten)]
    pub(crate) body: T,
}

impl<T: Serialize> Message<T> {
    /// As sent, newline included.
    pub(crate) fn line_of(body: T) -> Vec<u8> {
        let mut line = serde_json::to_vec(&Message { version: VERSION, body }).unwrap_or_else(|error| {
            let failure = Failure::failed(format!("this answer cannot be written: {error}"));
            serde_json::to_vec(&Message { version: VERSION, body: Reply::Failed(failure) }).unwrap_or_default()
        });
        line.push(b'\n');
        line
    }
}

/// What the command asks of a mount process.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub(crate) enum Request {
    /// How it is.
    Status,
    /// Everything written so far is to be durable.
    Sync,
    /// What `discard` would throw away.
    WouldLose,
    /// It is to end.
    Umount { deadline_ms: u64, force: bool, discard: bool },
}

/// What the mount process says.
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
    Done,
    Failed(Failure),
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
    pub(crate) phase: Phase,
    pub(crate) source: PathBuf,
    pub(crate) mountpoint: PathBuf,
    pub(crate) arena: PathBuf,
    pub(crate) cache_bytes: u64,
    /// How much of the cache may hold what is not in the source yet. None from a mount process that is older than this,
    /// and while there is no volume.
    #[serde(default)]
    pub(crate) share_bytes: Option<u64>,
    pub(crate) dirty_bytes: u64,
    pub(crate) writeback_bytes: u64,
    pub(crate) unstable_bytes: u64,
    pub(crate) bytes_left: u64,
    pub(crate) written_bytes: u64,
    pub(crate) open_files: u64,
    pub(crate) inodes: u64,
    /// The last write-back error, while write-back fails.
    pub(crate) failing: Option<String>,
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
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_form() {
        let request = Request::Umount { deadline_ms: 60_000, force: true, discard: false };
        let line = Message::line_of(&request);
        let text = r#"{"version":1,"request":"umount","deadline_ms":60000,"force":true,"discard":false}"#;
        assert_eq!(String::from_utf8(line.clone()).unwrap(), format!("{text}\n"));
        assert_eq!(serde_json::from_slice::<Message<Request>>(&line).unwrap().body, request);

        let failure = Failure::busy("in use").advise("close it");
        let line = Message::line_of(Reply::Failed(failure.clone()));
        assert_eq!(serde_json::from_slice::<Message<Reply>>(&line).unwrap().body, Reply::Failed(failure));
    }
}

//! The status of a mount.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The phases in the life of a mount.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// The process writes back what a predecessor left.
    Starting,
    Mounted,
    /// An unmount is in progress.
    Unmounting,
    /// Unmounted here, but in use: by open files, as a bind mount, or in another namespace.
    Elsewhere,
    /// No program can reach the mount any more, and it is not fully written back.
    Flushing,
}

/// The states in the life of a tenant.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TenantState {
    Online,
    /// The tenant's cgroup has just been removed.
    Dying,
    /// The tenant's cgroup is removed, and some of its data is left.
    Offline,
}

/// The container or the pod behind a tenant.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Container {
    /// The namespace and the name of a pod, as the platform gave them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<String>,
    /// The pod's UID. This and all fields below are from the path of the tenant's cgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod_uid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) qos_class: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runtime: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) container_id: Option<String>,
}

/// The data of a tenant in the cache of a mount.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tenant {
    /// The number, unique for the life of the mount; 0 is data that is charged to no other tenant.
    pub(crate) id: u64,
    /// The path of a cgroup, `uid:1000` or `volume`, and `root` for number 0.
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) container: Container,
    pub(crate) state: TenantState,
    pub(crate) limit_bytes: Option<u64>,
    /// Bytes charged against the limit: pages that the tenant dirtied, until they are durable in the source. 0 for
    /// number 0.
    pub(crate) charged_bytes: u64,
    /// Dirty data in the files that the tenant owns, and below that the other states of such data.
    pub(crate) dirty_bytes: u64,
    pub(crate) writeback_bytes: u64,
    pub(crate) unstable_bytes: u64,
    /// Bytes that the tenant's flusher has written back so far.
    pub(crate) written_bytes: u64,
    /// Age of the tenant's oldest dirty file that waits for its flusher.
    pub(crate) oldest_ms: Option<u64>,
    /// Total time for which the tenant's writers were slowed down.
    pub(crate) paused_ms: u64,
    /// Clean pages cached for the tenant.
    #[serde(default)]
    pub(crate) cached_bytes: u64,
    /// Pages that the tenant's reads found in the cache, on all volumes.
    #[serde(default)]
    pub(crate) hits: u64,
    /// Pages that the tenant's reads had to fetch from a source, on all volumes.
    #[serde(default)]
    pub(crate) misses: u64,
    /// Whether the tenant is at its limit and its writers are blocked.
    pub(crate) wants_room: bool,
}

/// A cache of the mount process that can free memory.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shrinker {
    /// The name, unique at any moment.
    pub(crate) name: String,
    /// Objects that the cache could free. `None` if it cannot say now.
    pub(crate) count: Option<u64>,
    /// Scans that are due but deferred.
    pub(crate) deferred: u64,
}

/// Cache hits and misses of reads since the mount, without reads that the kernel answers itself.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reads {
    /// Pages that were found in the cache.
    pub(crate) hits: u64,
    /// Pages that had to be read from the source.
    pub(crate) misses: u64,
    /// Bytes read from the source, including readahead and the rest of partly written pages.
    pub(crate) filled_bytes: u64,
}

/// The effect of DONTCACHE writes.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Dontcache {
    pub(crate) dirty_bytes: u64,
    /// Writes that woke a flusher, since the mount.
    pub(crate) kicks: u64,
    /// Flusher passes for such writes, since the mount.
    pub(crate) passes: u64,
}

/// How writers are throttled.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Writers {
    /// Total time for which writers were paused since the mount.
    pub(crate) paused_ms: u64,
    /// Completed writes whose writers are paused now.
    pub(crate) paused: u64,
    /// Writes that wait for free frames now.
    pub(crate) parked: u64,
    /// Payload held for these writes.
    pub(crate) parked_bytes: u64,
    /// Bytes that programs stored to mappings and that were refused, since the mount. 0 from a mount process of an
    /// earlier version.
    #[serde(default)]
    pub(crate) refused_mapped_bytes: u64,
}

/// Files that move to another tenant because it writes to them most.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Switches {
    /// Moves that were completed since the mount.
    pub(crate) done: u64,
    pub(crate) in_flight: u64,
}

/// Memory pressure on the machine, or on the cgroup of a mount process.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct MemoryPressure {
    /// The files through which the kernel reports pressure; empty if it reports nothing here.
    pub(crate) sources: Vec<String>,
    /// Number of reports since the mount.
    pub(crate) events: u64,
    /// Objects that were freed upon these reports, mostly inodes.
    pub(crate) freed_objects: u64,
}

/// The part of this process in an object volume.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ObjectRole {
    Writer,
    Reader,
    /// Another process has taken the volume over; changes fail with ESTALE.
    Fenced,
}

/// The state of an object volume.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct ObjectStatus {
    pub(crate) role: ObjectRole,
    /// The process that has taken the volume over, if that is known.
    pub(crate) fenced_by: Option<String>,
    /// Changes that are only in the local log, and the age of the oldest.
    pub(crate) uncommitted_changes: u64,
    pub(crate) uncommitted_ms: Option<u64>,
    /// Time since the last commit; for a reader, the age of its view of the writer.
    pub(crate) last_commit_ms: Option<u64>,
    /// Commits. This and all counts below are since the mount.
    pub(crate) commits: u64,
    pub(crate) uploads_in_flight: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// Requests to the store, retries included.
    pub(crate) puts: u64,
    pub(crate) gets: u64,
    pub(crate) lists: u64,
    pub(crate) deletes: u64,
    /// Requests that failed; most are tried again.
    pub(crate) failed_requests: u64,
}

impl ObjectStatus {
    pub(crate) fn requests(&self) -> u64 {
        self.puts + self.gets + self.lists + self.deletes
    }
}

/// A mount that outlives its process.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptStatus {
    /// The process that keeps the mount.
    pub(crate) keeper: u32,
    /// Whether the keeper still keeps the mount. Otherwise a crash would end it.
    pub(crate) is_kept: bool,
    /// Whether the keeper does not answer, since it is stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_silent: bool,
    /// How often a process has taken the mount over from another one.
    pub(crate) takeovers: u32,
    /// How long nothing was answered during the last takeover.
    pub(crate) last_pause_ms: Option<u64>,
    /// The longest such pause of all takeovers.
    #[serde(default)]
    pub(crate) longest_pause_ms: Option<u64>,
    /// How long the present process has served the mount.
    pub(crate) serving_ms: u64,
    /// The last upgrade, if it failed. The program before serves the mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed_upgrade: Option<FailedUpgrade>,
}

/// An upgrade to a program that did not take the mount over.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct FailedUpgrade {
    pub(crate) program: PathBuf,
    pub(crate) error: String,
}

/// The status of a mount.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) pid: u32,
    /// The volume's name in a daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) phase: Phase,
    pub(crate) source: PathBuf,
    pub(crate) mountpoint: PathBuf,
    /// The other mount points of the volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) more_mountpoints: Vec<PathBuf>,
    /// Major and minor number of the volume's file system, with a colon; empty while it is not mounted.
    #[serde(default)]
    pub(crate) device: String,
    pub(crate) arena: PathBuf,
    pub(crate) cache_bytes: u64,
    /// Limit for the unwritten data of the volume; lower while write-back fails. `None` from a mount process of an
    /// earlier version, and while there is no volume.
    #[serde(default)]
    pub(crate) share_bytes: Option<u64>,
    pub(crate) dirty_bytes: u64,
    pub(crate) writeback_bytes: u64,
    pub(crate) unstable_bytes: u64,
    pub(crate) bytes_left: u64,
    pub(crate) written_bytes: u64,
    pub(crate) open_files: u64,
    pub(crate) inodes: u64,
    /// Files that another program removed in the source while they were dirty, and that no file there has the data of yet;
    /// and their bytes, which are part of `bytes_left`. 0 from a mount process of an earlier version.
    #[serde(default)]
    pub(crate) removed_files: u64,
    #[serde(default)]
    pub(crate) removed_bytes: u64,
    /// Paths that some of these files had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) removed_paths: Vec<PathBuf>,
    /// The last write-back error, while write-back fails.
    pub(crate) failing: Option<String>,
    /// Failed attempts since the mount. This and all later fields are 0 or empty from a mount process of an earlier
    /// version.
    #[serde(default)]
    pub(crate) failures: u64,
    /// Age of the oldest dirty file that waits for its flusher.
    #[serde(default)]
    pub(crate) oldest_ms: Option<u64>,
    #[serde(default)]
    pub(crate) reads: Reads,
    #[serde(default)]
    pub(crate) dontcache: Dontcache,
    #[serde(default)]
    pub(crate) writers: Writers,
    #[serde(default)]
    pub(crate) switches: Switches,
    /// How requests arrive: `uring` or `dev`. Empty while nothing is mounted, and from a mount process of an earlier
    /// version.
    #[serde(default)]
    pub(crate) transport: String,
    /// Why requests do not come over io_uring.
    #[serde(default)]
    pub(crate) no_uring: Option<String>,
    /// Features that the kernel lacks, and what each affects.
    pub(crate) missing_features: Vec<String>,
    /// The tenants, sorted by data in the cache, most first. Empty from a mount process of an earlier version.
    #[serde(default)]
    pub(crate) tenants: Vec<Tenant>,
    /// Number of tenants that did not fit into the reply.
    #[serde(default)]
    pub(crate) more_tenants: u64,
    /// Empty from a mount process of an earlier version.
    #[serde(default)]
    pub(crate) shrinkers: Vec<Shrinker>,
    /// Zero from a mount process of an earlier version.
    #[serde(default)]
    pub(crate) memory_pressure: MemoryPressure,
    /// The state of an object volume; `None` if the source is a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<ObjectStatus>,
    /// How the mount outlives its process; `None` if it ends with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kept: Option<KeptStatus>,
}

#[cfg(test)]
impl Tenant {
    /// A tenant without data.
    pub(crate) fn sample(id: u64, name: &str) -> Self {
        Self {
            id,
            name: name.to_owned(),
            container: Container::default(),
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
            hits: 0,
            misses: 0,
            wants_room: false,
        }
    }
}

#[cfg(test)]
impl ObjectStatus {
    /// A writer that has done nothing yet.
    pub(crate) fn sample() -> Self {
        Self {
            role: ObjectRole::Writer,
            fenced_by: None,
            uncommitted_changes: 0,
            uncommitted_ms: None,
            last_commit_ms: Some(0),
            commits: 0,
            uploads_in_flight: 0,
            sent_bytes: 0,
            received_bytes: 0,
            puts: 0,
            gets: 0,
            lists: 0,
            deletes: 0,
            failed_requests: 0,
        }
    }
}

#[cfg(test)]
impl Status {
    /// A mount without data.
    pub(crate) fn sample() -> Self {
        Self {
            name: None,
            pid: 1,
            phase: Phase::Mounted,
            source: "/a".into(),
            mountpoint: "/b".into(),
            more_mountpoints: Vec::new(),
            device: String::new(),
            arena: "/c".into(),
            cache_bytes: 0,
            dirty_bytes: 0,
            writeback_bytes: 0,
            unstable_bytes: 0,
            bytes_left: 0,
            written_bytes: 0,
            open_files: 0,
            inodes: 0,
            removed_files: 0,
            removed_bytes: 0,
            removed_paths: Vec::new(),
            failing: None,
            failures: 0,
            oldest_ms: None,
            share_bytes: None,
            reads: Reads::default(),
            dontcache: Dontcache::default(),
            writers: Writers::default(),
            switches: Switches::default(),
            transport: String::new(),
            no_uring: None,
            missing_features: Vec::new(),
            tenants: Vec::new(),
            more_tenants: 0,
            shrinkers: Vec::new(),
            memory_pressure: MemoryPressure::default(),
            object: None,
            kept: None,
        }
    }
}

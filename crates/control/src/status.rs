//! The status of a mount.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use slackwater_host::Printable as _;

/// The phases in the life of a mount.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
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
pub enum TenantState {
    Online,
    /// The tenant's cgroup has just been removed.
    Dying,
    /// The tenant's cgroup is removed, and some of its data is left.
    Offline,
}

/// The container or the pod behind a tenant.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Container {
    /// The namespace and the name of a pod, as the platform gave them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The pod's UID. This and all fields below are from the path of the tenant's cgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos_class: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
}

/// The data of a tenant in the cache of a mount.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Tenant {
    /// The number, unique for the life of the mount; 0 is data that is charged to no other tenant.
    pub id: u64,
    /// The path of a cgroup, `uid:1000` or `volume`, and `root` for number 0.
    pub name: String,
    /// The number of the tenant above it, whose limit covers it too; `None` if there is none with a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u64>,
    #[serde(flatten)]
    pub container: Container,
    pub state: TenantState,
    pub limit_bytes: Option<u64>,
    /// Bytes charged against the limit: pages that the tenant and those below it dirtied, until they are durable in the
    /// source. 0 for number 0.
    pub charged_bytes: u64,
    /// Dirty data in the files that the tenant owns, and below that the other states of such data.
    pub dirty_bytes: u64,
    pub writeback_bytes: u64,
    pub unstable_bytes: u64,
    /// Bytes that the tenant's flusher has written back so far.
    pub written_bytes: u64,
    /// Age of the tenant's oldest dirty file that waits for its flusher.
    pub oldest_ms: Option<u64>,
    /// Total time for which the tenant's writers were slowed down.
    pub paused_ms: u64,
    /// Clean pages cached for the tenant.
    #[serde(default)]
    pub cached_bytes: u64,
    /// Pages that the tenant's reads found in the cache, on all volumes.
    #[serde(default)]
    pub hits: u64,
    /// Pages that the tenant's reads had to fetch from a source, on all volumes.
    #[serde(default)]
    pub misses: u64,
    /// Whether the tenant is at its limit and its writers are blocked.
    pub wants_room: bool,
}

/// A cache of the mount process that can free memory.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Shrinker {
    /// The name, unique at any moment.
    pub name: String,
    /// Objects that the cache could free. `None` if it cannot say now.
    pub count: Option<u64>,
    /// Scans that are due but deferred.
    pub deferred: u64,
}

/// Cache hits and misses of reads since the mount, without reads that the kernel answers itself.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Reads {
    /// Pages that were found in the cache.
    pub hits: u64,
    /// Pages that had to be read from the source.
    pub misses: u64,
    /// Bytes read from the source, including readahead and the rest of partly written pages.
    pub filled_bytes: u64,
}

/// The effect of DONTCACHE writes.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Dontcache {
    pub dirty_bytes: u64,
    /// Writes that woke a flusher, since the mount.
    pub kicks: u64,
    /// Flusher passes for such writes, since the mount.
    pub passes: u64,
}

/// How writers are throttled.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Writers {
    /// Total time for which writers were paused since the mount.
    pub paused_ms: u64,
    /// Completed writes whose writers are paused now.
    pub paused: u64,
    /// Writes that wait for free frames now.
    pub parked: u64,
    /// Payload held for these writes.
    pub parked_bytes: u64,
    /// Bytes that programs stored to mappings and that were refused, since the mount. 0 from a mount process of an
    /// earlier version.
    #[serde(default)]
    pub refused_mapped_bytes: u64,
}

/// Files that move to another tenant because it writes to them most.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Switches {
    /// Moves that were completed since the mount.
    pub done: u64,
    pub in_flight: u64,
}

/// Memory pressure on the machine, or on the cgroup of a mount process.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct MemoryPressure {
    /// The files through which the kernel reports pressure; empty if it reports nothing here.
    pub sources: Vec<String>,
    /// Number of reports since the mount.
    pub events: u64,
    /// Objects that were freed upon these reports, mostly inodes.
    pub freed_objects: u64,
}

/// The part of this process in an object volume.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectRole {
    Writer,
    Reader,
    /// Another process has taken the volume over; changes fail with ESTALE.
    Fenced,
}

/// The state of an object volume.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ObjectStatus {
    pub role: ObjectRole,
    /// The process that has taken the volume over, if that is known.
    pub fenced_by: Option<String>,
    /// Changes that are only in the local log, and the age of the oldest.
    pub uncommitted_changes: u64,
    pub uncommitted_ms: Option<u64>,
    /// Time since the last commit; for a reader, the age of its view of the writer.
    pub last_commit_ms: Option<u64>,
    /// Commits. This and all counts below are since the mount.
    pub commits: u64,
    pub uploads_in_flight: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Requests to the store, retries included.
    pub puts: u64,
    pub gets: u64,
    pub lists: u64,
    pub deletes: u64,
    /// Requests that failed; most are tried again.
    pub failed_requests: u64,
}

impl ObjectStatus {
    pub fn requests(&self) -> u64 {
        self.puts + self.gets + self.lists + self.deletes
    }
}

/// A mount that outlives its process.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct KeptStatus {
    /// The process that keeps the mount.
    pub keeper: u32,
    /// Whether the keeper still keeps the mount. Otherwise a crash would end it.
    pub is_kept: bool,
    /// Whether the keeper does not answer, since it is stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_silent: bool,
    /// How often a process has taken the mount over from another one.
    pub takeovers: u32,
    /// How long nothing was answered during the last takeover.
    pub last_pause_ms: Option<u64>,
    /// The longest such pause of all takeovers.
    #[serde(default)]
    pub longest_pause_ms: Option<u64>,
    /// How long the present process has served the mount.
    pub serving_ms: u64,
    /// The last upgrade, if it failed. The program before serves the mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_upgrade: Option<FailedUpgrade>,
}

/// An upgrade to a program that did not take the mount over.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct FailedUpgrade {
    pub program: PathBuf,
    pub error: String,
}

/// The status of a mount.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub pid: u32,
    /// The volume's name in a daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub phase: Phase,
    pub source: PathBuf,
    pub mountpoint: PathBuf,
    /// The other mount points of the volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_mountpoints: Vec<PathBuf>,
    /// Major and minor number of the volume's file system, with a colon; empty while it is not mounted.
    #[serde(default)]
    pub device: String,
    pub arena: PathBuf,
    pub cache_bytes: u64,
    /// Limit for the unwritten data of the volume; lower while write-back fails. `None` from a mount process of an
    /// earlier version, and while there is no volume.
    #[serde(default)]
    pub share_bytes: Option<u64>,
    pub dirty_bytes: u64,
    pub writeback_bytes: u64,
    pub unstable_bytes: u64,
    pub bytes_left: u64,
    pub written_bytes: u64,
    pub open_files: u64,
    pub inodes: u64,
    /// Files that another program removed in the source while they were dirty, and that no file there has the data of yet;
    /// and their bytes, which are part of `bytes_left`. 0 from a mount process of an earlier version.
    #[serde(default)]
    pub removed_files: u64,
    #[serde(default)]
    pub removed_bytes: u64,
    /// Paths that some of these files had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_paths: Vec<PathBuf>,
    /// The last write-back error, while write-back fails.
    pub failing: Option<String>,
    /// Failed attempts since the mount. This and all later fields are 0 or empty from a mount process of an earlier
    /// version.
    #[serde(default)]
    pub failures: u64,
    /// Age of the oldest dirty file that waits for its flusher.
    #[serde(default)]
    pub oldest_ms: Option<u64>,
    #[serde(default)]
    pub reads: Reads,
    #[serde(default)]
    pub dontcache: Dontcache,
    #[serde(default)]
    pub writers: Writers,
    #[serde(default)]
    pub switches: Switches,
    /// How requests arrive: `uring` or `dev`. Empty while nothing is mounted, and from a mount process of an earlier
    /// version.
    #[serde(default)]
    pub transport: String,
    /// Why requests do not come over io_uring.
    #[serde(default)]
    pub no_uring: Option<String>,
    /// Features that the kernel lacks, and what each affects.
    pub missing_features: Vec<String>,
    /// The tenants, sorted by data in the cache, most first. Empty from a mount process of an earlier version.
    #[serde(default)]
    pub tenants: Vec<Tenant>,
    /// Number of tenants that did not fit into the reply.
    #[serde(default)]
    pub more_tenants: u64,
    /// Empty from a mount process of an earlier version.
    #[serde(default)]
    pub shrinkers: Vec<Shrinker>,
    /// Zero from a mount process of an earlier version.
    #[serde(default)]
    pub memory_pressure: MemoryPressure,
    /// The state of an object volume; `None` if the source is a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectStatus>,
    /// How the mount outlives its process; `None` if it ends with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptStatus>,
}

impl Tenant {
    /// Unwritten data of the tenant in the cache: charged to it, or in its files, whichever is more.
    pub fn held_bytes(&self) -> u64 {
        let in_its_files = self.dirty_bytes.saturating_add(self.writeback_bytes).saturating_add(self.unstable_bytes);
        self.charged_bytes.max(in_its_files)
    }

    /// The name for people: that of the container or the pod, if the tenant is one.
    pub fn label(&self) -> String {
        self.container.label().unwrap_or_else(|| self.name.printable().to_string())
    }
}

impl Tenant {
    /// A tenant without data.
    pub fn sample(id: u64, name: &str) -> Self {
        Self {
            id,
            name: name.to_owned(),
            parent: None,
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

impl ObjectStatus {
    /// A writer that has done nothing yet.
    pub fn sample() -> Self {
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

impl Status {
    /// A mount without data.
    pub fn sample() -> Self {
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

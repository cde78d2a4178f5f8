//! How a mount is, as it tells it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
    /// Pages that its reads found in the cache, on all volumes.
    #[serde(default)]
    pub(crate) hits: u64,
    /// Pages that its reads had to have brought from a source, on all volumes.
    #[serde(default)]
    pub(crate) misses: u64,
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
    /// How much of the cache may hold what is not in the source yet; less while write-back fails. None from a mount process that is older than this,
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
    /// Attempts that failed since the mount. 0 from a mount process that is older than this, as all that follows.
    #[serde(default)]
    pub(crate) failures: u64,
    /// Age of the oldest file that waits for its flusher.
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
            hits: 0,
            misses: 0,
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
            share_bytes: None,
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

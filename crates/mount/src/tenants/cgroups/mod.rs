//! The tenant of a cgroup: the nearest cgroup, itself or above it, with a limit or configured settings; else the
//! top-level one. Above a tenant, the cgroups with a limit are tenants too.
//!
//! Results are cached by the cgroup's number for [`FRESH`]. After that, one of the threads that need them reads the
//! limits again. A removed cgroup leaves the cache when the removal of its tenant is reported, or else when the cache
//! is full.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::stat;
use rustix::io::Errno;
use slackwater::{Memcg, Tick};
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use crate::lock_order::LAST;
use crate::tenants::error::LookupError;
use crate::tenants::limits::Limits;
use crate::tenants::watches::Watches;
use crate::tenants::{AsOf, Tenant, TenantConfig, TenantId};
use slackwater_host::cgroup::{Hierarchy, Kind, Layout};

/// How long a limit is cached.
const FRESH: Duration = Duration::from_secs(2);
/// Limit of cached cgroups: more than write within [`FRESH`] on any current machine.
const CACHED_MAX: usize = 4096;
/// Distinguishes numbers of the memory hierarchy from those of the unified one.
const MEMORY: u64 = 1 << 63;
/// Suffix that `/proc` adds to the path of an exited thread whose cgroup was removed.
const DELETED: &[u8] = b" (deleted)";

/// A cgroup: its hierarchy, and the inode number of its directory there.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct CgroupId {
    pub(super) kind: Kind,
    pub(super) inode: u64,
}

impl From<CgroupId> for TenantId {
    fn from(id: CgroupId) -> Self {
        match id.kind {
            Kind::Unified => Self(id.inode),
            Kind::Memory => Self(id.inode | MEMORY),
        }
    }
}

impl From<TenantId> for CgroupId {
    fn from(id: TenantId) -> Self {
        let kind = if id.0 & MEMORY == 0 { Kind::Unified } else { Kind::Memory };
        Self { kind, inode: id.0 & !MEMORY }
    }
}

pub(super) struct Cgroups {
    pub(super) layout: Layout,
    pub(super) watches: Watches,
    pub(super) limits: Limits,
    known: Mutex<HashMap<CgroupId, CachedCgroup>>,
    /// Number of times that entries were dropped; changes with `known` locked. A result from before is not cached
    /// after.
    removals: AtomicU64,
}

struct CachedCgroup {
    path: PathBuf,
    tenant: Arc<Tenant>,
    read_at: Tick,
}

impl CachedCgroup {
    fn is_fresh(&self, now: Tick) -> bool {
        now.since(self.read_at) < FRESH
    }
}

impl Cgroups {
    pub(super) fn new(layout: Layout, limits: Limits, watches: Watches) -> Self {
        let known = Mutex::new(LAST, HashMap::new());
        Self { layout, watches, limits, known, removals: AtomicU64::new(0) }
    }

    /// The tenant of a cgroup that was [resolved](Self::resolve) before, at the path where it was then.
    pub(super) fn cached(&self, id: CgroupId, now: Tick) -> Option<Arc<Tenant>> {
        let removals = self.removals();
        let mut known = self.known.lock();
        let cgroup = known.get_mut(&id)?;
        if cgroup.is_fresh(now) {
            return Some(Arc::clone(&cgroup.tenant));
        }
        // Other threads use the old result meanwhile.
        cgroup.read_at = now;
        let path = cgroup.path.clone();
        drop(known);
        if let Ok((found, _)) = self.directory(id.kind, &path)
            && found == id
            && let Ok(tenant) = self.find(id.kind, &path, now)
        {
            return Some(self.store(id, path, tenant, now, removals));
        }
        self.known.lock().remove(&id);
        None
    }

    /// The cgroup at `path` in a hierarchy, and its tenant.
    pub(super) fn resolve(&self, kind: Kind, path: PathBuf, now: Tick) -> Result<(CgroupId, Arc<Tenant>), LookupError> {
        let (id, _) = self.directory(kind, &path)?;
        if let Some(cgroup) = self.known.lock().get(&id).filter(|known| known.is_fresh(now) && known.path == path) {
            return Ok((id, Arc::clone(&cgroup.tenant)));
        }
        let removals = self.removals();
        let tenant = self.find(kind, &path, now)?;
        Ok((id, self.store(id, path, tenant, now, removals)))
    }

    /// The number and the directory of the cgroup at `path`.
    pub(super) fn directory(&self, kind: Kind, path: &Path) -> Result<(CgroupId, PathBuf), LookupError> {
        let hierarchy = self.hierarchy(kind)?;
        let directory = hierarchy
            .directory(path)
            .ok_or_else(|| LookupError::Outside { path: path.to_owned(), mountpoint: hierarchy.mountpoint.clone() })?;
        match stat(&directory) {
            Ok(stat) => Ok((CgroupId { kind, inode: stat.st_ino }, directory)),
            Err(Errno::NOENT) if path.as_os_str().as_bytes().ends_with(DELETED) => Err(LookupError::Gone),
            Err(source) => Err(LookupError::Directory { directory, source }),
        }
    }

    /// Drops removed tenants (T3).
    pub(super) fn forget(&self, gone: &[TenantId]) {
        if !gone.is_empty() {
            let mut known = self.known.lock();
            known.retain(|_, cgroup| !cgroup.tenant.lineage().any(|tenant| gone.contains(&tenant.id)));
            self.removals.fetch_add(1, Ordering::Release);
        }
    }

    /// Applies `config` to the cgroup at `path` from now on. It may become, or cease to be, the nearest tenant of
    /// others, so all results are dropped.
    pub(super) fn set_config(&self, path: PathBuf, config: TenantConfig) {
        self.limits.configured.set(path, config);
        let mut known = self.known.lock();
        known.clear();
        self.removals.fetch_add(1, Ordering::Release);
    }

    /// The limit of the tenant `id`, the cgroup at `path`.
    pub(super) fn limit_bytes(&self, id: TenantId, path: &Path) -> Option<u64> {
        self.limits.of(&self.layout, CgroupId::from(id).kind, path)?.limit_bytes
    }

    /// Changes whenever entries are dropped.
    pub(super) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    fn hierarchy(&self, kind: Kind) -> Result<&Hierarchy, LookupError> {
        self.layout.hierarchy(kind).ok_or(LookupError::Nowhere)
    }

    fn find(&self, kind: Kind, path: &Path, now: Tick) -> Result<Tenant, LookupError> {
        let hierarchy = self.hierarchy(kind)?;
        let mut lineage = hierarchy.lineage(path);
        let named = lineage.find_map(|level| Some((level, self.limits.of(&self.layout, kind, level)?)));
        let (path, TenantConfig { limit_bytes, .. }) =
            named.unwrap_or_else(|| (hierarchy.top_level(path), TenantConfig::default()));
        let limited = |level| Some((level, self.limits.of(&self.layout, kind, level)?.limit_bytes?));
        let above: Vec<_> = hierarchy.lineage(path).skip(1).filter_map(limited).collect();
        // Its user may make any number of cgroups in a delegated one, but none above that.
        let outermost = above.into_iter().rev().take(Memcg::LEVELS_MAX - 1);
        let parent =
            outermost.map(|(level, limit_bytes)| (level, Some(limit_bytes))).try_fold(None, |above, level| {
                self.tenant_at(hierarchy, kind, level, above, now).map(|tenant| Some(Arc::new(tenant)))
            })?;
        self.tenant_at(hierarchy, kind, (path, limit_bytes), parent, now)
    }

    /// The tenant that is the cgroup at a path, with this limit. Its removal is noticed from now on.
    fn tenant_at(
        &self,
        hierarchy: &Hierarchy,
        kind: Kind,
        (path, limit_bytes): (&Path, Option<u64>),
        parent: Option<Arc<Tenant>>,
        now: Tick,
    ) -> Result<Tenant, LookupError> {
        let dontcache = hierarchy.lineage(path).find_map(|level| self.limits.dontcache(level));
        let (id, directory) = self.directory(kind, path)?;
        // A mounted root cannot be removed.
        if path != hierarchy.root {
            self.watches.watch(id, &directory)?;
        }
        let (id, path, as_of) = (id.into(), path.to_string_lossy().into_owned(), AsOf::new(now));
        Ok(Tenant { id, path, limit_bytes, dontcache, parent, as_of })
    }

    /// Caches a result that was found after `removals`.
    fn store(&self, id: CgroupId, path: PathBuf, tenant: Tenant, now: Tick, removals: u64) -> Arc<Tenant> {
        let mut known = self.known.lock();
        if self.removals() != removals {
            return Arc::new(tenant);
        }
        if known.len() >= CACHED_MAX && !known.contains_key(&id) {
            known.retain(|_, cgroup| cgroup.is_fresh(now));
            if known.len() >= CACHED_MAX {
                known.clear();
            }
        }
        match known.entry(id) {
            Entry::Occupied(mut entry) => {
                let cgroup = entry.get_mut();
                if *cgroup.tenant == tenant {
                    cgroup
                        .tenant
                        .lineage()
                        .zip(tenant.lineage())
                        .for_each(|(known, again)| known.as_of.note(&again.as_of));
                } else {
                    cgroup.tenant = Arc::new(tenant);
                }
                (cgroup.path, cgroup.read_at) = (path, now);
                Arc::clone(&cgroup.tenant)
            }
            Entry::Vacant(entry) => {
                let tenant = Arc::new(tenant);
                entry.insert(CachedCgroup { path, tenant: Arc::clone(&tenant), read_at: now });
                tenant
            }
        }
    }
}

#[cfg(test)]
mod tests;

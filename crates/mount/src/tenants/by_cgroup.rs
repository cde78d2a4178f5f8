//! The tenant of a thread, found by its cgroup.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use slackwater::{Clock, Tick};
use slackwater_sync::lock::{Mutex, might_sleep};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};

use crate::lock_order::LAST;
use crate::tenants::cgroup_walk::CgroupWalk;
use crate::tenants::cgroups::{CgroupId, Cgroups};
use crate::tenants::error::{LookupError, TenantsError};
use crate::tenants::limits::Limits;
use crate::tenants::thread_cache::{CachedTenant, CachedThread, ThreadCache};
use crate::tenants::thread_handle::ThreadHandleKind;
use crate::tenants::watches::Watches;
use crate::tenants::{Tenant, TenantConfig, TenantId, Watcher, cgroup_names, pid_namespace};
use slackwater_host::cgroup::{Hierarchy, Kind, Layout};

/// Inode number of a hierarchy's root in kernfs.
const ROOT: u64 = 1;
/// Attempts for a thread that moves, or whose id is reused, during the lookup.
const ATTEMPTS: usize = 4;

pub(super) struct ByCgroup {
    clock: Arc<dyn Clock>,
    threads: ThreadCache,
    cgroups: Arc<Cgroups>,
    /// Mounted cgroup hierarchies at the start, by which configured cgroups are named.
    mounts: Vec<(Option<Kind>, Hierarchy)>,
    has_warned: AtomicBool,
    /// The last walk through a hierarchy. Taken out while it goes on.
    walk: Mutex<Option<CgroupWalk>>,
}

impl ByCgroup {
    pub(super) fn new(config: BTreeMap<PathBuf, TenantConfig>, clock: Arc<dyn Clock>) -> Result<Self, TenantsError> {
        pid_namespace::check()?;
        let path = PathBuf::from("/proc/self/mountinfo");
        let mountinfo = match std::fs::read(&path) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(source) => return Err(TenantsError::Proc { path, source }),
        };
        let layout = Layout::parse(&mountinfo);
        if layout == Layout::default() {
            return Err(TenantsError::NoCgroups);
        }
        let mounts: Vec<_> = Hierarchy::all(&mountinfo).collect();
        let config = cgroup_names::by_path(config, &mounts, &layout)?;
        let cgroups = Cgroups::new(layout, Limits::new(config), Watches::new());
        Ok(Self { mounts, ..Self::with_parts(ThreadHandleKind::of_this_kernel(), cgroups, clock) })
    }

    pub(super) fn with_parts(kind: ThreadHandleKind, cgroups: Cgroups, clock: Arc<dyn Clock>) -> Self {
        let (threads, cgroups) = (ThreadCache::new(kind), Arc::new(cgroups));
        Self {
            clock,
            threads,
            cgroups,
            mounts: Vec::new(),
            has_warned: AtomicBool::new(false),
            walk: Mutex::new(LAST, None),
        }
    }

    /// See [`Tenants::set_config`](super::Tenants::set_config).
    pub(super) fn set_config(&self, name: &Path, config: TenantConfig) -> Result<PathBuf, TenantsError> {
        let path = cgroup_names::path_of(name, &self.mounts, &self.cgroups.layout)?;
        // A caller that removes settings usually knows that the cgroup is gone.
        if config != TenantConfig::default() {
            cgroup_names::warn_if_absent(&path, &self.cgroups.layout);
        }
        self.cgroups.set_config(path.clone(), config);
        Ok(path)
    }

    pub(super) fn limit_bytes(&self, id: TenantId, path: &Path) -> Option<u64> {
        self.cgroups.limit_bytes(id, path)
    }

    pub(super) fn has_dontcache(&self) -> bool {
        self.cgroups.limits.configured.has_dontcache()
    }

    pub(super) fn watcher(&self) -> Watcher {
        Watcher::new(Arc::clone(&self.cgroups))
    }

    /// The tenant of a cgroup that was a tenant in an earlier process.
    pub(super) fn tenant_again(&self, id: TenantId) -> Option<Arc<Tenant>> {
        might_sleep();
        let (id, now) = (CgroupId::from(id), self.clock.now());
        let hierarchy = self.cgroups.layout.hierarchy(id.kind)?;
        let known = self.walk.lock().take().filter(|walk| walk.is_usable(id.kind, now));
        let mut walk = known.unwrap_or_else(|| CgroupWalk::new(id.kind, hierarchy, now));
        let directory = walk.directory_of(id.inode);
        *self.walk.lock() = Some(walk);
        let (found, tenant) = self.cgroups.resolve(id.kind, hierarchy.path(&directory?)?, now).ok()?;
        (found == id).then_some(tenant)
    }

    pub(super) fn tenant_of(&self, tid: u32) -> Option<Arc<Tenant>> {
        might_sleep();
        let now = self.clock.now();
        for attempt in 1..=ATTEMPTS {
            let thread = match self.threads.get(tid, now) {
                Ok(thread) => thread,
                Err(error) => return self.unknown(tid, &error),
            };
            match self.try_find(tid, &thread, attempt == ATTEMPTS, now) {
                Ok(tenant) => return tenant,
                // T1: the next attempt finds the thread that has the id now, or none.
                Err(LookupError::Gone) => self.threads.remove(tid, &thread),
                Err(error) if error.is_transient() => {}
                Err(error) => return self.unknown(tid, &error),
            }
        }
        None
    }

    /// The tenant of one thread, or `None` if it is unknown; both are cached. A transient error is returned for another
    /// attempt, unless this is the last.
    fn try_find(
        &self,
        tid: u32,
        thread: &CachedThread,
        is_last: bool,
        now: Tick,
    ) -> Result<Option<Arc<Tenant>>, LookupError> {
        let layout = &self.cgroups.layout;
        let kernel_id = thread.handle.unified_id()?;
        let decides = |id: &u64| layout.unified.is_some() && (*id != ROOT || layout.memory.is_none());
        let unified_id = kernel_id.filter(decides);
        let removals = self.cgroups.removals();
        if let Some(tenant) = thread.cached(unified_id, removals, now) {
            return Ok(tenant);
        }
        let found = match unified_id {
            Some(inode) => self.by_id(tid, thread, CgroupId { kind: Kind::Unified, inode }, now),
            None => self.by_text(tid, thread, kernel_id.is_some(), now),
        };
        let tenant = match found {
            Ok(tenant) => Some(tenant),
            Err(error) if error.is_transient() && !is_last => return Err(error),
            Err(error) => self.unknown(tid, &error),
        };
        thread.store(CachedTenant { unified_id, tenant: tenant.clone(), at: now, removals });
        Ok(tenant)
    }

    /// The kernel has returned the cgroup's number; the path is read the first time.
    fn by_id(&self, tid: u32, thread: &CachedThread, id: CgroupId, now: Tick) -> Result<Arc<Tenant>, LookupError> {
        if let Some(tenant) = self.cgroups.cached(id, now) {
            return Ok(tenant);
        }
        let path = thread.handle.membership(tid)?.unified.ok_or(LookupError::Nowhere)?;
        let (found, tenant) = self.cgroups.resolve(id.kind, path, now)?;
        if found == id { Ok(tenant) } else { Err(LookupError::Moved) }
    }

    /// Finds the tenant from `/proc`: the unified cgroup, unless it is the root, else that in the memory hierarchy.
    fn by_text(
        &self,
        tid: u32,
        thread: &CachedThread,
        is_unified_root: bool,
        now: Tick,
    ) -> Result<Arc<Tenant>, LookupError> {
        let membership = thread.handle.membership(tid)?;
        let layout = &self.cgroups.layout;
        let unified = membership.unified.filter(|_| layout.unified.is_some() && !is_unified_root);
        let memory = membership.memory.filter(|_| layout.memory.is_some());
        let (kind, path) = match (unified, memory) {
            (Some(unified), Some(memory)) => match self.cgroups.directory(Kind::Unified, &unified) {
                Ok((id, _)) if id.inode == ROOT => (Kind::Memory, memory),
                _ => (Kind::Unified, unified),
            },
            (Some(unified), None) => (Kind::Unified, unified),
            (None, Some(memory)) => (Kind::Memory, memory),
            (None, None) => return Err(LookupError::Nowhere),
        };
        self.cgroups.resolve(kind, path, now).map(|(_, tenant)| tenant)
    }

    /// No tenant: the write is charged to the inode's owner. Unexpected errors are logged only once, to keep the log
    /// short.
    fn unknown(&self, tid: u32, error: &LookupError) -> Option<Arc<Tenant>> {
        if !matches!(error, LookupError::Gone) && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "cannot find the tenant of thread {tid}: {error}; writes of such threads are charged to the owners of \
                 the inodes. This is logged once"
            );
        }
        None
    }
}

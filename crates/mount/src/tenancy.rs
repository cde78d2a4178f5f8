//! The engine's [`Memcg`] for each tenant that [`Tenants`] finds: the one charged for a request's dirty and cached
//! pages.
//!
//! # Invariants
//! Y1. A tenant has one `Memcg` from when it is first found until its cgroup is removed, or until another tenant is the
//!     nearest above it. Then the `Memcg` is taken offline, and a tenant found later under the same number gets another.
//!     Data of before stays charged where it was until it is clean: to the old one and to those above that.
//!
//! Y2. The data that an earlier process left is charged to the tenants of its files, which are found by their
//!     [keys](Tenants::key). A tenant that does not exist any more leaves its data to the root, as in Y1.
//! Y3. The `Memcg` of a tenant is a child of that of its [parent](Tenant::parent), as the latest lookup has found it. Lookups
//!     for several cgroups below one tenant are of different age: an older one changes nothing that a newer one has set.
//!
//! # Lock order
//! The table comes before the engine's leaves: a tenant is created, and its limit set, under it. Lookups are made
//! before it is locked. So a lookup may end after its tenant was removed or configured; then it is repeated (Y1).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slackwater::{Engine, Memcg};
use slackwater_sync::lock::{Mutex, RwLock};
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};
use slackwater_sync::shim::{Arc, Weak, thread};

use crate::lock_order::{CONFIGURING, TENANCY};
use crate::tenants::{Tenant, TenantConfig, TenantId, Tenants, TenantsError, Watcher};

/// How long the watching thread may take to notice that the `Tenancy` was dropped.
const EXIT_POLL_INTERVAL: Duration = Duration::from_secs(5);

struct Charged {
    memcg: Arc<Memcg>,
    limit_bytes: Option<u64>,
    /// See [`AsOf`]: the lookup that this is from.
    as_of: u64,
}

impl Charged {
    fn set_limit(&mut self, limit_bytes: Option<u64>) {
        if self.limit_bytes != limit_bytes {
            self.limit_bytes = limit_bytes;
            self.memcg.set_limit_bytes(limit_bytes);
        }
    }
}

/// Charges the writes on the mounts of one engine to tenants.
pub struct Tenancy {
    tenants: Tenants,
    engine: Engine,
    charged: RwLock<HashMap<TenantId, Charged>>,
    /// Number of removals and configurations; changes with `charged` locked.
    changes: AtomicU64,
    /// Held from the change of the configuration until the tenants have their new limits.
    configuring: Mutex<()>,
}

impl Tenancy {
    /// Charges the tenants that `tenants` finds in `engine`. A thread waits for the removal of cgroups; it ends with
    /// the last reference.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new(tenants: Tenants, engine: &Engine) -> io::Result<Arc<Self>> {
        let watcher = tenants.watcher();
        let charged = RwLock::new(TENANCY, HashMap::new());
        let (changes, configuring) = (AtomicU64::new(0), Mutex::new(CONFIGURING, ()));
        let tenancy = Arc::new(Self { tenants, engine: engine.clone(), charged, changes, configuring });
        let weak = Arc::downgrade(&tenancy);
        engine.find_tenants_by(move |key| {
            let tenancy = weak.upgrade()?;
            tenancy.charged_as(|| tenancy.tenants.find_by_key(key))
        });
        if let Some(watcher) = watcher {
            if let Some(reason) = watcher.polling_reason() {
                tracing::warn!(reason, "looking for removed cgroups once per second");
            }
            let weak = Arc::downgrade(&tenancy);
            thread::Builder::new().name("sw-tenants".to_owned()).spawn(move || watch(&weak, watcher))?;
        }
        Ok(tenancy)
    }

    /// The tenant charged for the writes of thread `pid` of `uid`. `None` if unknown, so that the file's owner is
    /// charged.
    pub(crate) fn memcg(&self, pid: u32, uid: u32) -> Option<Arc<Memcg>> {
        self.charged_as(|| self.tenants.find(pid, uid))
    }

    /// The `Memcg` of the tenant that `find` finds.
    fn charged_as(&self, find: impl Fn() -> Option<Arc<Tenant>>) -> Option<Arc<Memcg>> {
        loop {
            let changes = self.changes.load(Ordering::Acquire); // before the lookup
            let tenant = find()?;
            if let Some(charged) = as_found(&self.charged.read(), &tenant) {
                return Some(Arc::clone(&charged.memcg));
            }
            if let Some(memcg) = self.insert(&tenant, changes) {
                return Some(memcg);
            }
        }
    }

    /// The same for a tenant that was charged before: reading only cached data does not make a new tenant.
    pub(crate) fn existing(&self, pid: u32, uid: u32) -> Option<Arc<Memcg>> {
        let tenant = self.tenants.find(pid, uid)?;
        self.charged.read().get(&tenant.id).map(|charged| Arc::clone(&charged.memcg))
    }

    /// Whether the reads and writes of thread `pid` of `uid` stay out of the cache, if its tenant says so.
    pub(crate) fn dontcache(&self, pid: u32, uid: u32) -> Option<bool> {
        if !self.tenants.has_dontcache() {
            return None;
        }
        self.tenants.find(pid, uid)?.dontcache
    }

    /// Replaces the settings of `tenant`; a default `config` removes them. When this returns, an existing tenant has
    /// its new limit and its waiting writes continue under it; other tenants get the limit when they are first found. A
    /// cgroup without settings may no longer be a tenant of its own. Its dirty data stays charged to the old tenant
    /// until it is clean.
    ///
    /// # Errors
    /// `tenant` cannot be a tenant; nothing has changed.
    ///
    /// # Blocking
    /// For files of cgroups, and another change of the configuration. The caller holds no lock of rank 5 or more.
    pub fn set_config(&self, tenant: &Path, config: TenantConfig) -> Result<(), TenantsError> {
        let _one = self.configuring.lock();
        let path = self.tenants.set_config(tenant, config)?;
        let name = path.to_string_lossy();
        let ids: Vec<TenantId> = {
            let table = self.charged.write();
            self.changes.fetch_add(1, Ordering::Release);
            table.iter().filter(|(_, charged)| charged.memcg.name() == name).map(|(id, _)| *id).collect()
        };
        for id in ids {
            let limit_bytes = self.tenants.limit_bytes(id, &path);
            if let Some(charged) = self.charged.write().get_mut(&id) {
                charged.set_limit(limit_bytes);
            }
        }
        Ok(())
    }

    /// The `Memcg` of a tenant that was looked up after `changes`. `None` if a tenant was removed or configured
    /// meanwhile. If it was this one, its `Memcg` would never go offline, or would have an old limit.
    fn insert(&self, tenant: &Tenant, changes: u64) -> Option<Arc<Memcg>> {
        let mut replaced = Vec::new();
        let memcg = {
            let mut table = self.charged.write();
            if self.changes.load(Ordering::Relaxed) != changes {
                return None;
            }
            self.insert_into(&mut table, tenant, &mut replaced)
        };
        for memcg in &replaced {
            self.engine.memcg_offline(memcg);
        }
        Some(memcg)
    }

    /// The `Memcg` of a tenant, below those of its parents (Y3). Adds to `replaced` what has to be taken offline.
    fn insert_into(
        &self,
        table: &mut HashMap<TenantId, Charged>,
        tenant: &Tenant,
        replaced: &mut Vec<Arc<Memcg>>,
    ) -> Arc<Memcg> {
        let above = tenant.parent.as_ref().map(|parent| self.insert_into(table, parent, replaced));
        let is_below =
            |memcg: &Memcg| memcg.parent().map(|parent| parent.id()) == above.as_ref().map(|above| above.id());
        let as_of = tenant.as_of.get();
        if let Entry::Occupied(known) = table.entry(tenant.id) {
            if known.get().as_of > as_of {
                // A lookup for another cgroup below it has seen more (Y3).
                return Arc::clone(&known.get().memcg);
            }
            if !is_below(&known.get().memcg) {
                replaced.push(known.remove().memcg);
            }
        }
        let charged = table.entry(tenant.id).or_insert_with(|| {
            let memcg = self.engine.memcg_create(&tenant.path, above.as_ref(), tenant.limit_bytes);
            memcg.set_key(self.tenants.key(tenant.id));
            Charged { memcg, limit_bytes: tenant.limit_bytes, as_of }
        });
        charged.set_limit(tenant.limit_bytes);
        charged.as_of = as_of;
        Arc::clone(&charged.memcg)
    }

    fn forget(&self, id: TenantId) {
        let removed = {
            let mut table = self.charged.write();
            self.changes.fetch_add(1, Ordering::Release);
            table.remove(&id)
        };
        if let Some(charged) = removed {
            self.engine.memcg_offline(&charged.memcg);
        }
    }
}

/// The entry of a tenant, if the table has its limit and those above it as they were found.
fn as_found<'a>(table: &'a HashMap<TenantId, Charged>, tenant: &Tenant) -> Option<&'a Charged> {
    let charged = table.get(&tenant.id)?;
    let parent = match &tenant.parent {
        Some(parent) => Some(as_found(table, parent)?.memcg.id()),
        None => None,
    };
    let has_parent = charged.memcg.parent().map(|parent| parent.id()) == parent;
    (has_parent && charged.limit_bytes == tenant.limit_bytes).then_some(charged)
}

/// Takes tenants offline when their cgroups are removed, until the tenancy is dropped.
fn watch(tenancy: &Weak<Tenancy>, mut watcher: Watcher) {
    loop {
        let timeout = watcher.poll_interval().map_or(EXIT_POLL_INTERVAL, |interval| interval.min(EXIT_POLL_INTERVAL));
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let fd = watcher.fd();
        let mut polled: Vec<_> = fd.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut polled, Some(&timeout)); // there may be a removal, whatever ended the poll
        drop(polled);
        let Some(tenancy) = tenancy.upgrade() else { return };
        watcher.drain().into_iter().for_each(|id| tenancy.forget(id));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use slackwater::{ManualClock, Tick, Timestamp, Tunables};
    use slackwater_arena::{Arena, ArenaConfig};

    use super::*;
    use crate::tenants::{AsOf, TenantBy};

    const MIB: u64 = 1 << 20;

    fn tenancy() -> (Engine, Arc<Tenancy>) {
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let engine = Engine::new(Arena::create(&ArenaConfig::memfd(MIB)).unwrap(), clock.clone(), Tunables::default());
        let tenants = Tenants::new(TenantBy::Volume, BTreeMap::new(), clock).unwrap();
        let tenancy = Tenancy::new(tenants, &engine).unwrap();
        (engine, tenancy)
    }

    /// A tenant as a lookup at `as_of` finds it.
    fn tenant(id: u64, limit_mib: u64, as_of: u64, parent: Option<&Arc<Tenant>>) -> Arc<Tenant> {
        let (id, path, as_of) = (TenantId(id), format!("/{id}"), AsOf::new(Tick(as_of)));
        Arc::new(Tenant {
            id,
            path,
            limit_bytes: Some(limit_mib * MIB),
            dontcache: None,
            parent: parent.cloned(),
            as_of,
        })
    }

    /// The limits of a tenant and of those above it.
    fn limits_mib(memcg: &Arc<Memcg>) -> Vec<u64> {
        let lineage = std::iter::successors(Some(memcg), |memcg| memcg.parent());
        lineage.map(|memcg| memcg.limit_bytes().unwrap() / MIB).collect()
    }

    #[test]
    fn an_older_lookup_changes_nothing_that_a_newer_one_has_set() {
        let (engine, tenancy) = tenancy();
        // Since 20, all pods have a limit, and that of the pod is smaller.
        let (pods, before) = (tenant(1, 64, 20, None), tenant(2, 16, 10, None));
        let pod = tenant(2, 8, 20, Some(&pods));
        let (a, b) = (tenant(3, 32, 10, Some(&before)), tenant(4, 32, 20, Some(&pod)));
        let of_b = tenancy.insert(&b, 0).unwrap();
        assert_eq!(limits_mib(&of_b), [32, 8, 64]);
        let of_a = tenancy.insert(&a, 0).unwrap();
        assert_eq!(limits_mib(&of_a), [32, 8, 64]);
        assert!(Arc::ptr_eq(of_a.parent().unwrap(), of_b.parent().unwrap()));
        let found = |tenant: &Tenant| as_found(&tenancy.charged.read(), tenant).map(|it| Arc::clone(&it.memcg));
        assert!(found(&a).is_none() && found(&b).is_some_and(|memcg| Arc::ptr_eq(&memcg, &of_b)));

        // The next lookup for the other container agrees.
        let a = tenant(3, 32, 30, Some(&tenant(2, 8, 30, Some(&tenant(1, 64, 30, None)))));
        assert!(Arc::ptr_eq(&tenancy.insert(&a, 0).unwrap(), &of_a));

        // The limit of all pods goes. The view of one container still has it, and its tenant moves at its next write.
        let b = tenant(4, 32, 40, Some(&tenant(2, 8, 40, None)));
        assert_eq!(limits_mib(&tenancy.insert(&b, 0).unwrap()), [32, 8]);
        assert!(found(&a).is_none());
        assert_eq!(limits_mib(&tenancy.insert(&a, 0).unwrap()), [32, 8]);
        assert!(!engine.memcg_offline(&of_a) && !engine.memcg_offline(&of_b), "both are replaced");
    }
}

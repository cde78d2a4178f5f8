//! From who asks to who pays for what is dirty and what is cached: the engine's [`Memcg`] of each tenant that [`Tenants`] finds.
//!
//! # Invariants
//! Y1. A tenant has one `Memcg` from when it is first found until its cgroup is removed. It is taken offline then, and who
//!     is found under the same number later is another.
//!
//! # Lock order
//! The table is above the engine's leaves: a tenant is made, and its limit set, under it. Lookups are made before it is
//! taken, so one may end after the removal of what it found, or after it was configured: then it is made again (Y1).

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slackwater::{Engine, Memcg};
use slackwater_sync::lock::{Mutex, RwLock};
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};
use slackwater_sync::shim::{Arc, Weak, thread};

use crate::tenants::{Tenant, TenantConfig, TenantId, Tenants, TenantsError, Watcher};
use crate::volume::lock_order::{CONFIGURING, TENANCY};

/// How long the watching thread may take to see that nobody needs it any more.
const EXIT_POLL_INTERVAL: Duration = Duration::from_secs(5);

struct Charged {
    memcg: Arc<Memcg>,
    limit_bytes: Option<u64>,
}

impl Charged {
    fn set_limit(&mut self, limit_bytes: Option<u64>) {
        if self.limit_bytes != limit_bytes {
            self.limit_bytes = limit_bytes;
            self.memcg.set_limit_bytes(limit_bytes);
        }
    }
}

/// Who pays for what is written on the mounts of an engine: one for each engine.
pub struct Tenancy {
    tenants: Tenants,
    engine: Engine,
    charged: RwLock<HashMap<TenantId, Charged>>,
    /// How many tenants were told to be removed, or were configured; changes with `charged` locked.
    changes: AtomicU64,
    /// Held from when something is configured until those who pay have their new limits.
    configuring: Mutex<()>,
}

impl Tenancy {
    /// Finds tenants by `tenants`, and has them pay in `engine`. A thread of its own waits for the removal of cgroups; it
    /// ends with the last reference.
    ///
    /// # Errors
    /// There is no thread.
    pub fn new(tenants: Tenants, engine: &Engine) -> io::Result<Arc<Self>> {
        let watcher = tenants.watcher();
        let charged = RwLock::new(TENANCY, HashMap::new());
        let (changes, configuring) = (AtomicU64::new(0), Mutex::new(CONFIGURING, ()));
        let tenancy = Arc::new(Self { tenants, engine: engine.clone(), charged, changes, configuring });
        if let Some(watcher) = watcher {
            if let Some(reason) = watcher.polling_reason() {
                tracing::warn!(reason, "looking for removed cgroups once per second");
            }
            let weak = Arc::downgrade(&tenancy);
            thread::Builder::new().name("sw-tenants".to_owned()).spawn(move || watch(&weak, watcher))?;
        }
        Ok(tenancy)
    }

    /// Who pays for what thread `pid` of `uid` writes. `None`: nobody knows, so the file's owner does.
    pub(crate) fn memcg(&self, pid: u32, uid: u32) -> Option<Arc<Memcg>> {
        loop {
            let changes = self.changes.load(Ordering::Acquire); // and only then whom
            let tenant = self.tenants.find(pid, uid)?;
            if let Some(charged) = self.charged.read().get(&tenant.id)
                && charged.limit_bytes == tenant.limit_bytes
            {
                return Some(Arc::clone(&charged.memcg));
            }
            if let Some(memcg) = self.insert(&tenant, changes) {
                return Some(memcg);
            }
        }
    }

    /// The same of a tenant that pays for something already: who only finds things in the cache becomes no tenant by that.
    pub(crate) fn existing(&self, pid: u32, uid: u32) -> Option<Arc<Memcg>> {
        let tenant = self.tenants.find(pid, uid)?;
        self.charged.read().get(&tenant.id).map(|charged| Arc::clone(&charged.memcg))
    }

    /// Whether what thread `pid` of `uid` reads and writes is to stay out of the cache, if its tenant says anything of that.
    pub(crate) fn dontcache(&self, pid: u32, uid: u32) -> Option<bool> {
        if !self.tenants.has_dontcache() {
            return None;
        }
        self.tenants.find(pid, uid)?.dontcache
    }

    /// Configures `config` for `tenant`, in place of what was configured for it; nothing for one that says nothing. Who pays
    /// already has its new limit when this returns, and who waits for room at the old one goes on; others are found by it from
    /// then on. A cgroup for which nothing is configured any more may be no tenant of its own from then on: what it has
    /// dirty stays charged to what it was until that is clean.
    ///
    /// # Errors
    /// It is for somebody who cannot be, and nothing has changed.
    ///
    /// # Blocking
    /// For files of cgroups, and another configuration. The caller holds no lock of rank 5 or more.
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

    /// The `Memcg` of a tenant that was looked for after `changes`. `None`: a tenant was removed or configured meanwhile. If
    /// it was this one, nobody would ever take its `Memcg` offline, or its limit would be an old one.
    fn insert(&self, tenant: &Tenant, changes: u64) -> Option<Arc<Memcg>> {
        let mut table = self.charged.write();
        if self.changes.load(Ordering::Relaxed) != changes {
            return None;
        }
        let charged = table.entry(tenant.id).or_insert_with(|| Charged {
            memcg: self.engine.memcg_create(&tenant.path, None, tenant.limit_bytes),
            limit_bytes: tenant.limit_bytes,
        });
        charged.set_limit(tenant.limit_bytes);
        Some(Arc::clone(&charged.memcg))
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

/// Takes tenants offline whose cgroups are removed, until the tenancy is gone.
fn watch(tenancy: &Weak<Tenancy>, mut watcher: Watcher) {
    loop {
        let timeout = watcher.poll_interval().map_or(EXIT_POLL_INTERVAL, |interval| interval.min(EXIT_POLL_INTERVAL));
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let fd = watcher.fd();
        let mut polled: Vec<_> = fd.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut polled, Some(&timeout)); // whatever ended it, there may be something
        drop(polled);
        let Some(tenancy) = tenancy.upgrade() else { return };
        watcher.drain().into_iter().for_each(|id| tenancy.forget(id));
    }
}

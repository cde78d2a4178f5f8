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
const LOOK: Duration = Duration::from_secs(5);

struct Paying {
    memcg: Arc<Memcg>,
    limit_bytes: Option<u64>,
}

impl Paying {
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
    paying: RwLock<HashMap<TenantId, Paying>>,
    /// How many tenants were told to be removed, or were configured; changes with `paying` locked.
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
        let paying = RwLock::new(TENANCY, HashMap::new());
        let (changes, configuring) = (AtomicU64::new(0), Mutex::new(CONFIGURING, ()));
        let tenancy = Arc::new(Self { tenants, engine: engine.clone(), paying, changes, configuring });
        if let Some(watcher) = watcher {
            if let Some(reason) = watcher.polls_because() {
                tracing::warn!(reason, "removed cgroups are looked for once a second");
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
            let tenant = self.tenants.of(pid, uid)?;
            if let Some(paying) = self.paying.read().get(&tenant.id)
                && paying.limit_bytes == tenant.limit_bytes
            {
                return Some(Arc::clone(&paying.memcg));
            }
            if let Some(memcg) = self.learn(&tenant, changes) {
                return Some(memcg);
            }
        }
    }

    /// The same of a tenant that pays for something already: who only finds things in the cache becomes no tenant by that.
    pub(crate) fn known(&self, pid: u32, uid: u32) -> Option<Arc<Memcg>> {
        let tenant = self.tenants.of(pid, uid)?;
        self.paying.read().get(&tenant.id).map(|paying| Arc::clone(&paying.memcg))
    }

    /// Whether what thread `pid` of `uid` reads and writes is to stay out of the cache, if its tenant says anything of that.
    pub(crate) fn dontcache(&self, pid: u32, uid: u32) -> Option<bool> {
        if !self.tenants.has_dontcache() {
            return None;
        }
        self.tenants.of(pid, uid)?.dontcache
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
            let table = self.paying.write();
            self.changes.fetch_add(1, Ordering::Release);
            table.iter().filter(|(_, paying)| paying.memcg.name() == name).map(|(id, _)| *id).collect()
        };
        for id in ids {
            let limit_bytes = self.tenants.limit_bytes(id, &path);
            if let Some(paying) = self.paying.write().get_mut(&id) {
                paying.set_limit(limit_bytes);
            }
        }
        Ok(())
    }

    /// The `Memcg` of a tenant that was looked for after `changes`. `None`: a tenant was removed or configured meanwhile. If
    /// it was this one, nobody would ever take its `Memcg` offline, or its limit would be an old one.
    fn learn(&self, tenant: &Tenant, changes: u64) -> Option<Arc<Memcg>> {
        let mut table = self.paying.write();
        if self.changes.load(Ordering::Relaxed) != changes {
            return None;
        }
        let paying = table.entry(tenant.id).or_insert_with(|| Paying {
            memcg: self.engine.memcg_create(&tenant.path, None, tenant.limit_bytes),
            limit_bytes: tenant.limit_bytes,
        });
        paying.set_limit(tenant.limit_bytes);
        Some(Arc::clone(&paying.memcg))
    }

    fn forget(&self, id: TenantId) {
        let removed = {
            let mut table = self.paying.write();
            self.changes.fetch_add(1, Ordering::Release);
            table.remove(&id)
        };
        if let Some(paying) = removed {
            self.engine.memcg_offline(&paying.memcg);
        }
    }
}

/// Takes tenants offline whose cgroups are removed, until the tenancy is gone.
fn watch(tenancy: &Weak<Tenancy>, mut watcher: Watcher) {
    loop {
        let timeout = watcher.poll_interval().map_or(LOOK, |interval| interval.min(LOOK));
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let fd = watcher.fd();
        let mut polled: Vec<_> = fd.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut polled, Some(&timeout)); // whatever ended it, there may be something
        drop(polled);
        let Some(tenancy) = tenancy.upgrade() else { return };
        watcher.drain().into_iter().for_each(|id| tenancy.forget(id));
    }
}

//! From who asks to who pays for what is dirty and what is cached: the engine's [`Memcg`] of each tenant that [`Tenants`] finds.
//!
//! # Invariants
//! Y1. A tenant has one `Memcg` from when it is first found until its cgroup is removed. It is taken offline then, and who
//!     is found under the same number later is another.
//!
//! # Lock order
//! The table is above the engine's leaves: a tenant is made, and its limit set, under it. Lookups are made before it is
//! taken, so one may end after the removal of what it found: then it is made again (Y1).

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slackwater::{Engine, Memcg};
use slackwater_sync::lock::RwLock;
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};
use slackwater_sync::shim::{Arc, Weak, thread};

use crate::tenants::{Tenant, TenantId, Tenants, Watcher};
use crate::volume::lock_order::TENANCY;

/// How long the watching thread may take to see that nobody needs it any more.
const LOOK: Duration = Duration::from_secs(5);

struct Paying {
    memcg: Arc<Memcg>,
    limit_bytes: Option<u64>,
}

/// Who pays for what is written on the mounts of an engine: one for each engine.
pub struct Tenancy {
    tenants: Tenants,
    engine: Engine,
    paying: RwLock<HashMap<TenantId, Paying>>,
    /// How many tenants were told to be removed; changes with `paying` locked.
    removals: AtomicU64,
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
        let tenancy = Arc::new(Self { tenants, engine: engine.clone(), paying, removals: AtomicU64::new(0) });
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
            let removals = self.removals.load(Ordering::Acquire); // and only then whom
            let tenant = self.tenants.of(pid, uid)?;
            if let Some(paying) = self.paying.read().get(&tenant.id)
                && paying.limit_bytes == tenant.limit_bytes
            {
                return Some(Arc::clone(&paying.memcg));
            }
            if let Some(memcg) = self.learn(&tenant, removals) {
                return Some(memcg);
            }
        }
    }

    /// Whether what thread `pid` of `uid` reads and writes is to stay out of the cache, if its tenant says anything of that.
    pub(crate) fn dontcache(&self, pid: u32, uid: u32) -> Option<bool> {
        if !self.tenants.has_dontcache() {
            return None;
        }
        self.tenants.of(pid, uid)?.dontcache
    }

    /// The `Memcg` of a tenant that was looked for after `removals`. `None`: a tenant was removed meanwhile. If it was
    /// this one, nobody would ever take its `Memcg` offline.
    fn learn(&self, tenant: &Tenant, removals: u64) -> Option<Arc<Memcg>> {
        let mut table = self.paying.write();
        if self.removals.load(Ordering::Relaxed) != removals {
            return None;
        }
        let paying = table.entry(tenant.id).or_insert_with(|| Paying {
            memcg: self.engine.memcg_create(&tenant.path, None, tenant.limit_bytes),
            limit_bytes: tenant.limit_bytes,
        });
        if paying.limit_bytes != tenant.limit_bytes {
            paying.limit_bytes = tenant.limit_bytes;
            paying.memcg.set_limit_bytes(tenant.limit_bytes);
        }
        Some(Arc::clone(&paying.memcg))
    }

    fn forget(&self, id: TenantId) {
        let removed = {
            let mut table = self.paying.write();
            self.removals.fetch_add(1, Ordering::Release);
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

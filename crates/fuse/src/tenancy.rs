//! From who asks to who pays: the engine's [`Memcg`] of each tenant that [`Tenants`] finds.
//!
//! # Invariants
//! Y1. A tenant has one `Memcg` from when it is first found until its cgroup is removed. It is taken offline then, and who
//!     is found under the same number later is another.
//!
//! # Lock order
//! The table is a leaf; lookups are made before it is taken.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slackwater::{Engine, Memcg};
use slackwater_sync::lock::RwLock;
use slackwater_sync::shim::{Arc, Weak, thread};

use crate::tenants::{Tenant, TenantId, Tenants, Watcher};
use crate::volume::lock_order::LEAF;

/// How long the watching thread may take to see that nobody needs it any more.
const LOOK: Duration = Duration::from_secs(5);

struct Known {
    memcg: Arc<Memcg>,
    limit_bytes: Option<u64>,
}

/// Who pays for what is written on the mounts of an engine: one for each engine.
pub struct Tenancy {
    tenants: Tenants,
    engine: Engine,
    known: RwLock<HashMap<TenantId, Known>>,
}

impl Tenancy {
    /// Finds tenants by `tenants`, and has them pay in `engine`. A thread of its own waits for the removal of cgroups; it
    /// ends with the last reference.
    ///
    /// # Errors
    /// There is no thread.
    pub fn new(tenants: Tenants, engine: &Engine) -> io::Result<Arc<Self>> {
        let watcher = tenants.watcher();
        let known = RwLock::new(LEAF, HashMap::new());
        let tenancy = Arc::new(Self { tenants, engine: engine.clone(), known });
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
        let tenant = self.tenants.of(pid, uid)?;
        if let Some(known) = self.known.read().get(&tenant.id)
            && known.limit_bytes == tenant.limit_bytes
        {
            return Some(Arc::clone(&known.memcg));
        }
        Some(self.learn(&tenant))
    }

    fn learn(&self, tenant: &Tenant) -> Arc<Memcg> {
        let mut known = self.known.write();
        let known = known.entry(tenant.id).or_insert_with(|| Known {
            memcg: self.engine.memcg_create(&tenant.path, None, tenant.limit_bytes),
            limit_bytes: tenant.limit_bytes,
        });
        if known.limit_bytes != tenant.limit_bytes {
            known.limit_bytes = tenant.limit_bytes;
            known.memcg.set_limit_bytes(tenant.limit_bytes);
        }
        Arc::clone(&known.memcg)
    }

    fn forget(&self, id: TenantId) {
        let removed = self.known.write().remove(&id);
        if let Some(known) = removed {
            self.engine.memcg_offline(&known.memcg);
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

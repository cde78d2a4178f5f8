//! Finding the tenants of dirty data that survived its process.
//!
//! The record of a dirty inode in the arena has the key of its tenant. Only the program that made the tenants can find
//! the same ones in another process. Data of a tenant that is not found belongs to the root.

use std::collections::HashMap;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;

use crate::cgroup::Memcg;
use crate::lock_order::LEAVES;

type FindTenant = dyn Fn(u64) -> Option<Arc<Memcg>> + Send + Sync;

/// See [`Engine::find_tenants_by`](crate::Engine::find_tenants_by).
pub(crate) struct TenantFinder(Mutex<Option<Arc<FindTenant>>>);

impl TenantFinder {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LEAVES, None))
    }

    pub(crate) fn set(&self, find: impl Fn(u64) -> Option<Arc<Memcg>> + Send + Sync + 'static) {
        let replaced = self.0.lock().replace(Arc::new(find));
        drop(replaced); // without a lock
    }

    /// A search for the tenants of one volume.
    pub(crate) fn search(&self) -> TenantSearch {
        TenantSearch { find: self.0.lock().clone(), found: HashMap::new() }
    }
}

/// Asks for each key once.
pub(crate) struct TenantSearch {
    find: Option<Arc<FindTenant>>,
    found: HashMap<u64, Option<Arc<Memcg>>>,
}

impl TenantSearch {
    /// The tenant with this key. `None`: the root.
    pub(crate) fn tenant(&mut self, key: u64) -> Option<Arc<Memcg>> {
        let find = self.find.as_ref().filter(|_| key != 0)?;
        self.found.entry(key).or_insert_with(|| find(key)).clone()
    }
}

//! Settings of tenants by [`Tenant::path`](crate::tenants::Tenant::path). They may change while lookups run.
//!
//! # Lock order
//! The table's lock is a leaf.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use slackwater_sync::lock::RwLock;
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};

use crate::lock_order::LAST;
use crate::tenants::TenantConfig;

pub(super) struct ConfigTable {
    by_path: RwLock<BTreeMap<PathBuf, TenantConfig>>,
    /// Whether any entry has [`TenantConfig::dontcache`] set; changes with the table locked.
    has_dontcache: AtomicBool,
}

impl ConfigTable {
    pub(super) fn new(by_path: BTreeMap<PathBuf, TenantConfig>) -> Self {
        let has_dontcache = AtomicBool::new(has_dontcache(&by_path));
        Self { by_path: RwLock::new(LAST, by_path), has_dontcache }
    }

    pub(super) fn get(&self, path: &Path) -> Option<TenantConfig> {
        self.by_path.read().get(path).copied()
    }

    pub(super) fn has_dontcache(&self) -> bool {
        self.has_dontcache.load(Ordering::Relaxed)
    }

    /// Replaces the settings of `path`; a default `config` removes them.
    pub(super) fn set(&self, path: PathBuf, config: TenantConfig) {
        let mut by_path = self.by_path.write();
        if config == TenantConfig::default() {
            by_path.remove(&path);
        } else {
            by_path.insert(path, config);
        }
        self.has_dontcache.store(has_dontcache(&by_path), Ordering::Relaxed);
    }
}

fn has_dontcache(by_path: &BTreeMap<PathBuf, TenantConfig>) -> bool {
    by_path.values().any(|config| config.dontcache.is_some())
}

//! The tenant behind a request, to which its writes are charged.
//!
//! A tenant is a cgroup, a user or the volume; [`TenantBy`] says which. A cgroup is found through the requesting
//! thread:
//!
//! ```text
//! pid -> handle of the thread           -> its cgroup  -> the nearest cgroup with a limit, or the top-level one
//!        `thread_handle`, `thread_cache`   `by_cgroup`    `cgroups`, `limits`
//! ```
//!
//! Limits are a tree: of the cgroups above a tenant, each with a limit is a tenant too, and its limit covers all below
//! it ([`Tenant::parent`]).
//!
//! On the unified hierarchy the kernel returns the cgroup's number directly (`PIDFD_GET_INFO`), so a thread that moves
//! to another cgroup is charged there from its next write on. For a thread whose unified cgroup is the root, the line
//! of the v1 memory hierarchy in `/proc/PID/cgroup` is read. That takes 24 us and is cached for 1 s. On a kernel
//! without that call every cgroup is found this way. [`slackwater_host::cgroup`] finds the hierarchies.
//!
//! Leaf cgroups are not tenants unless they have a limit. Otherwise a container could create any number of them and get
//! as many budgets.
//!
//! # Invariants
//! T1. Thread ids are reused, so a cached result for one holds only while the handle it was found through still refers
//!     to a live thread. Every lookup checks the handle, cached or not: an id is reused only after the handle of its
//!     previous thread returns ESRCH.
//! T2. A tenant's number is its cgroup's, permanently. It is the inode number of the cgroup's directory, a 64-bit
//!     number whose upper half is a generation; kernfs never reuses one, in either version. A directory created again
//!     under the same name is another tenant. With 32-bit inode numbers a number can be reused; its cached result is
//!     dropped when its removal is noticed, or else within 2 s.
//! T3. No lookup that begins after [`Watcher::drain`] has returned a tenant finds that tenant again. A lookup that is
//!     already running may.
//!
//! # Lock order
//! The shards, the cached threads and the table of cgroups are leaves, and no file is accessed under one. `WATCHES` is
//! a sleeping lock: inotify is called under it. No lookup holds two of these.

mod by_cgroup;
mod cgroup_names;
mod cgroup_walk;
mod cgroups;
mod config_table;
mod error;
mod limits;
mod pid_namespace;
mod sys;
#[cfg(test)]
mod tests;
mod thread_cache;
mod thread_handle;
mod watcher;
mod watches;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use slackwater::{Clock, Tick};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use by_cgroup::ByCgroup;
pub use cgroup_names::CgroupNameError;
use config_table::ConfigTable;
pub use error::TenantsError;
pub use watcher::Watcher;

/// The kind of tenants that writes are charged to.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum TenantBy {
    /// The cgroup of the requesting thread.
    Cgroup,
    /// The requesting user.
    Uid,
    /// All users of the volume together.
    Volume,
}

impl TenantBy {
    /// Whether a tenant of this kind can have this [`Tenant::path`].
    fn is_valid_name(self, tenant: &Path) -> bool {
        match self {
            Self::Cgroup => tenant.is_absolute(),
            Self::Uid => {
                let uid = tenant.to_str().and_then(|name| name.strip_prefix("uid:")?.parse::<u32>().ok());
                uid.is_some_and(|uid| tenant == Path::new(&name_of_user(uid)))
            }
            Self::Volume => tenant == Path::new(VOLUME),
        }
    }

    fn check(self, tenant: &Path) -> Result<(), TenantsError> {
        let is_one = self.is_valid_name(tenant);
        if is_one { Ok(()) } else { Err(TenantsError::NoSuchTenant { by: self, tenant: tenant.to_owned() }) }
    }

    fn example(self) -> &'static str {
        match self {
            Self::Cgroup => "/containers/a, as in /proc/PID/cgroup",
            Self::Uid => "uid:1000",
            Self::Volume => VOLUME,
        }
    }
}

/// Name of the only tenant by volume.
const VOLUME: &str = "volume";
/// The key of that tenant.
const VOLUME_KEY: u64 = USER_KEYS | 1 << 32;
/// Keys of users. The generation of a cgroup's number would need 2^30 reuses of the number to reach them.
const USER_KEYS: u64 = 1 << 62;

fn name_of_user(uid: u32) -> String {
    format!("uid:{uid}")
}

impl fmt::Display for TenantBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cgroup => "cgroup",
            Self::Uid => "uid",
            Self::Volume => VOLUME,
        })
    }
}

/// The string is not a [`TenantBy`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` is not one of cgroup, uid and volume")]
pub struct ParseTenantByError(String);

impl FromStr for TenantBy {
    type Err = ParseTenantByError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let all = [Self::Cgroup, Self::Uid, Self::Volume];
        all.into_iter().find(|by| by.to_string() == word).ok_or_else(|| ParseTenantByError(word.to_owned()))
    }
}

/// Settings of a tenant.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct TenantConfig {
    /// Limit of the tenant's dirty data.
    pub limit_bytes: Option<u64>,
    /// Whether the tenant's reads and writes stay out of the cache. `None` inherits from the cgroup above or the
    /// volume.
    pub dontcache: Option<bool>,
}

impl TenantConfig {
    /// Settings with only a limit.
    #[must_use]
    pub fn limit(bytes: u64) -> Self {
        Self { limit_bytes: Some(bytes), dontcache: None }
    }

    /// Combines two settings: the smaller limit, and caching if either asks for it.
    fn and(self, other: Self) -> Self {
        Self {
            limit_bytes: self.limit_bytes.into_iter().chain(other.limit_bytes).min(),
            dontcache: self.dontcache.into_iter().chain(other.dontcache).min(),
        }
    }
}

/// Identifies a tenant within one [`Tenants`].
///
/// By cgroup: the inode number of the cgroup's directory, with bit 63 set for the v1 memory hierarchy, whose numbers
/// are independent. By uid: the uid. By volume: 0.
#[derive(Copy, Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TenantId(pub u64);

/// The tenant that a write is charged to. It is as current as lookups make it: a new limit of a cgroup is seen within 2
/// s, and a change by [`Tenants::set_config`] at once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tenant {
    /// Identifies it.
    pub id: TenantId,
    /// The cgroup's path as in `/proc/PID/cgroup`; else `uid:1000`, or `volume`.
    pub path: String,
    /// The smaller of the configured limit and the cgroup's memory limit; `None` without either.
    pub limit_bytes: Option<u64>,
    /// Whether its reads and writes stay out of the cache, if configured for it or for a cgroup above it.
    pub dontcache: Option<bool>,
    /// The nearest cgroup above it with a limit, which covers the dirty data of this one too. There are at most
    /// [`Memcg::LEVELS_MAX`] in a line, the outermost ones.
    ///
    /// [`Memcg::LEVELS_MAX`]: slackwater::Memcg::LEVELS_MAX
    pub parent: Option<Arc<Tenant>>,
    pub(crate) as_of: AsOf,
}

/// When the limits of a tenant were read last, in nanoseconds of the engine's clock. Cgroups below one tenant are looked
/// up at different times, and the latest is right. It is no part of what a tenant is: any two are equal.
#[derive(Debug, Default)]
pub(crate) struct AsOf(AtomicU64);

impl AsOf {
    pub(crate) fn new(now: Tick) -> Self {
        Self(AtomicU64::new(now.0))
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The limits were read again at `other`, and are the same.
    pub(crate) fn note(&self, other: &Self) {
        self.0.fetch_max(other.get(), Ordering::Relaxed);
    }
}

impl Clone for AsOf {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.get()))
    }
}

impl PartialEq for AsOf {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for AsOf {}

impl Tenant {
    /// The tenant and those above it, the nearest first.
    pub(crate) fn lineage(&self) -> impl Iterator<Item = &Tenant> {
        std::iter::successors(Some(self), |tenant| tenant.parent.as_deref())
    }
}

/// Finds the tenant of a request. See the [module](self).
pub struct Tenants {
    by: TenantBy,
    finder: Finder,
}

enum Finder {
    Cgroup(Box<ByCgroup>),
    Uid(ConfigTable),
    Volume(ConfigTable),
}

impl Tenants {
    /// Creates a finder for tenants of the kind `by`. Keys of `config` are a [`Tenant::path`] or the directory of a
    /// cgroup. For a cgroup that does not exist a warning is logged, since it may be created later. Also probes whether
    /// the kernel can name the cgroup of a thread.
    ///
    /// # Errors
    /// A key of `config` cannot be a tenant. By cgroup only: callers cannot be identified, or no cgroup hierarchy is
    /// mounted. Callers cannot be identified if this process is in its own pid namespace or cannot read `/proc`;
    /// [`TenantsError`] says what to do.
    pub fn new(
        by: TenantBy,
        config: BTreeMap<PathBuf, TenantConfig>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TenantsError> {
        config.keys().try_for_each(|tenant| by.check(tenant))?;
        let finder = match by {
            TenantBy::Cgroup => Finder::Cgroup(Box::new(ByCgroup::new(config, clock)?)),
            TenantBy::Uid => Finder::Uid(ConfigTable::new(config)),
            TenantBy::Volume => Finder::Volume(ConfigTable::new(config)),
        };
        Ok(Self { by, finder })
    }

    /// Replaces the settings of `tenant`, under whatever name they were set; a default `config` removes them. Every
    /// lookup that begins after this uses the new settings. Returns the [`Tenant::path`].
    ///
    /// # Errors
    /// `tenant` cannot be a tenant; nothing has changed.
    pub fn set_config(&self, tenant: &Path, config: TenantConfig) -> Result<PathBuf, TenantsError> {
        self.by.check(tenant)?;
        match &self.finder {
            Finder::Cgroup(by_cgroup) => by_cgroup.set_config(tenant, config),
            Finder::Uid(configured) | Finder::Volume(configured) => {
                configured.set(tenant.to_owned(), config);
                Ok(tenant.to_owned())
            }
        }
    }

    /// The limit of the tenant `id` with the path `path`, as a lookup would find it now.
    pub(crate) fn limit_bytes(&self, id: TenantId, path: &Path) -> Option<u64> {
        match &self.finder {
            Finder::Cgroup(by_cgroup) => by_cgroup.limit_bytes(id, path),
            Finder::Uid(configured) | Finder::Volume(configured) => configured.get(path)?.limit_bytes,
        }
    }

    /// Whether `dontcache` is configured for any tenant.
    #[must_use]
    pub fn has_dontcache(&self) -> bool {
        match &self.finder {
            Finder::Cgroup(by_cgroup) => by_cgroup.has_dontcache(),
            Finder::Uid(configured) | Finder::Volume(configured) => configured.has_dontcache(),
        }
    }

    /// The tenant of a request by thread `pid` of user `uid`, both as in the request's header. `None` if it is unknown,
    /// so that the write is charged to the inode's owner. By cgroup that is so for pid 0, for a thread that has exited,
    /// and for a cgroup that cannot be read, which is logged once.
    ///
    /// # Blocking
    /// About 1 us for a thread seen less than 1 s ago. Otherwise files of `/proc` and of cgroups are read. The caller
    /// holds no lock of rank 9 or more.
    #[must_use]
    pub fn find(&self, pid: u32, uid: u32) -> Option<Arc<Tenant>> {
        match &self.finder {
            Finder::Volume(configured) => Some(Arc::new(configured_tenant(TenantId(0), VOLUME.to_owned(), configured))),
            Finder::Uid(configured) => {
                Some(Arc::new(configured_tenant(TenantId(uid.into()), name_of_user(uid), configured)))
            }
            Finder::Cgroup(by_cgroup) => (pid != 0).then(|| by_cgroup.tenant_of(pid)).flatten(),
        }
    }

    /// The number by which a tenant is found in another process, which may have another kind of tenants. Never 0.
    pub(crate) fn key(&self, id: TenantId) -> u64 {
        match &self.finder {
            Finder::Cgroup(_) => id.0,
            Finder::Uid(_) => USER_KEYS | id.0,
            Finder::Volume(_) => VOLUME_KEY,
        }
    }

    /// The tenant to which an earlier process charged writes, by its [key](Self::key). `None` if it does not exist any
    /// more.
    ///
    /// # Blocking
    /// For files of cgroups.
    pub(crate) fn find_by_key(&self, key: u64) -> Option<Arc<Tenant>> {
        match &self.finder {
            Finder::Cgroup(by_cgroup) => by_cgroup.tenant_again(TenantId(key)),
            Finder::Uid(_) => {
                let uid = u32::try_from(key ^ USER_KEYS).ok()?;
                self.find(0, uid)
            }
            Finder::Volume(_) if key == VOLUME_KEY => self.find(0, 0),
            Finder::Volume(_) => None,
        }
    }

    /// Reports removed tenants; `None` if tenants are not cgroups and therefore permanent. Each removal is reported to
    /// one watcher, so keep only one.
    #[must_use]
    pub fn watcher(&self) -> Option<Watcher> {
        match &self.finder {
            Finder::Cgroup(by_cgroup) => Some(by_cgroup.watcher()),
            Finder::Uid(_) | Finder::Volume(_) => None,
        }
    }
}

fn configured_tenant(id: TenantId, path: String, configured: &ConfigTable) -> Tenant {
    let TenantConfig { limit_bytes, dontcache } = configured.get(Path::new(&path)).unwrap_or_default();
    Tenant { id, path, limit_bytes, dontcache, parent: None, as_of: AsOf::default() }
}

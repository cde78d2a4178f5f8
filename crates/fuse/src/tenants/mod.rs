//! Who is behind a request: the tenant whose budget a write is charged to.
//!
//! A tenant is a cgroup, a user or the volume; [`TenantBy`] says which. A cgroup is found by the thread that asks:
//!
//! ```text
//! pid -> descriptor of the thread -> its cgroup -> the nearest cgroup with a limit, or the top-level one
//!        `thread_handle`, `thread_cache`         `by_cgroup`   `cgroups`, `limits`
//! ```
//!
//! On the unified hierarchy the kernel tells the cgroup's number at once (`PIDFD_GET_INFO`), so a thread that is moved
//! is charged elsewhere from its next write on. A thread whose unified cgroup is the root is looked for in the memory
//! hierarchy of v1, by its line in `/proc/PID/cgroup`; that costs 24 us and is believed for 1 s. On a kernel without
//! that call every cgroup is found so. `layout` finds out what is mounted where and assumes nothing.
//!
//! Leaf cgroups are no tenants, unless they have a limit: a container could make any number of them and have as many
//! budgets.
//!
//! # Invariants
//! T1. Thread ids are reused, so what is remembered of one holds only while the descriptor that it was learnt by still
//!     means a live thread. Every lookup asks the descriptor, hit or not: an id is given away only after the
//!     descriptor of its last owner answers ESRCH.
//! T2. A tenant's number is its cgroup's for ever. It is the inode number of the directory, which has 64 bits of which
//!     the upper half is a generation: kernfs gives none twice, in either version. A directory that is made again under
//!     the same name is another tenant. Where inode numbers have 32 bits a number can come back; what was
//!     remembered of it is forgotten with the notice of its removal, or else within 2 s.
//! T3. No lookup that begins after [`Watcher::drain`] has named a tenant finds it again. One that runs meanwhile may.
//!
//! # Lock order
//! Shards, callers and the table of cgroups are leaves, and no file is touched under one. `WATCHES` is a sleeping lock:
//! inotify is asked under it. Of these no lookup holds two.

mod by_cgroup;
mod cgroup_names;
mod cgroups;
mod config_table;
mod error;
mod layout;
mod limits;
mod membership;
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

use slackwater::Clock;
use slackwater_sync::shim::Arc;

use by_cgroup::ByCgroup;
pub use cgroup_names::CgroupNameError;
use config_table::ConfigTable;
pub use error::TenantsError;
pub use layout::{Hierarchy, Layout};
pub use watcher::Watcher;

/// What makes a tenant.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum TenantBy {
    /// The cgroup of the thread that asks.
    Cgroup,
    /// The user that asks.
    Uid,
    /// All who use the volume are one tenant.
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

/// The one tenant by volume.
const VOLUME: &str = "volume";

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

/// A word that names no [`TenantBy`].
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

/// What is configured for a tenant.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct TenantConfig {
    /// What may be dirty for it.
    pub limit_bytes: Option<u64>,
    /// Whether what it reads and writes is to stay out of the cache. `None`: as above it, or as the volume says.
    pub dontcache: Option<bool>,
}

impl TenantConfig {
    /// A limit alone.
    #[must_use]
    pub fn limit(bytes: u64) -> Self {
        Self { limit_bytes: Some(bytes), dontcache: None }
    }

    /// What both say: the smaller limit, and to use the cache.
    fn and(self, other: Self) -> Self {
        Self {
            limit_bytes: self.limit_bytes.into_iter().chain(other.limit_bytes).min(),
            dontcache: self.dontcache.into_iter().chain(other.dontcache).min(),
        }
    }
}

/// Names a tenant among those of one [`Tenants`].
///
/// By cgroup: the inode number of the cgroup's directory, with bit 63 set for the memory hierarchy of v1, which counts
/// on its own. By uid: the uid. By volume: 0.
#[derive(Copy, Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TenantId(pub u64);

/// Whom a write is charged to. What may change of it is as old as a lookup makes it: a new limit of a cgroup is seen within 2 s,
/// and what [`Tenants::set_config`] says at once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tenant {
    /// Names it.
    pub id: TenantId,
    /// The cgroup's path, as `/proc/PID/cgroup` has it; else `uid:1000`, or `volume`.
    pub path: String,
    /// The smaller of the configured limit and the cgroup's memory limit; `None` without either.
    pub limit_bytes: Option<u64>,
    /// Whether what it reads and writes is to stay out of the cache, if that is configured for it or a cgroup above it.
    pub dontcache: Option<bool>,
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
    /// Tenants of the kind `by`, where `config` is by [`Tenant::path`], or by the directory of a cgroup. A cgroup that is not
    /// there is warned of, since it may come. Whether the kernel can name the cgroup of a thread is
    /// tried out here.
    ///
    /// # Errors
    /// Something is configured for somebody who cannot be. By cgroup only: callers cannot be told apart, since this process is in a pid
    /// namespace of its own or cannot read `/proc` ([`TenantsError`] says what to do), or no cgroup hierarchy is mounted.
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

    /// Configures `config` for `tenant`, in place of what was configured for it under any name; nothing for one that says
    /// nothing. Every lookup that begins after this goes by it. Returns the [`Tenant::path`].
    ///
    /// # Errors
    /// It is for somebody who cannot be, and nothing has changed.
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

    /// The limit of the tenant `id` that is called `path`, as a lookup would find it now.
    pub(crate) fn limit_bytes(&self, id: TenantId, path: &Path) -> Option<u64> {
        match &self.finder {
            Finder::Cgroup(by_cgroup) => by_cgroup.limit_bytes(id, path),
            Finder::Uid(configured) | Finder::Volume(configured) => configured.get(path)?.limit_bytes,
        }
    }

    /// Whether it is configured for some what stays out of the cache.
    #[must_use]
    pub fn has_dontcache(&self) -> bool {
        match &self.finder {
            Finder::Cgroup(by_cgroup) => by_cgroup.has_dontcache(),
            Finder::Uid(configured) | Finder::Volume(configured) => configured.has_dontcache(),
        }
    }

    /// The tenant of a request by thread `pid` of user `uid`, both as the request's header has them. `None`: nobody in
    /// particular, and the write is to be charged to the inode's owner. That is so by cgroup for pid 0, for a thread that is
    /// gone, and where a cgroup cannot be read, which is logged once.
    ///
    /// # Blocking
    /// A thread that was here less than 1 s ago costs about 1 us. Else files of `/proc` and of cgroups are read. The caller
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

    /// Tells which tenants are removed; `None` where tenants are no cgroups and stay for ever. Each removal is told to
    /// one watcher: keep one.
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
    Tenant { id, path, limit_bytes, dontcache }
}

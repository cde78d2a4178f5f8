//! Errors in finding tenants: of the whole setup, or for one thread.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::tenants::{CgroupNameError, TenantBy};

/// Why tenants cannot be found as requested.
#[derive(Debug, thiserror::Error)]
pub enum TenantsError {
    /// Callers outside our pid namespace have no id in it.
    #[error(
        "tenants by cgroup need the host's pid namespace: in this one (pid:[{inode}]) callers from outside have pid 0, \
         so their cgroups are unknown. Run in the host's pid namespace (docker: --pid=host, Kubernetes: hostPID), or \
         use --tenant-by uid or volume"
    )]
    ForeignPidNamespace {
        /// Inode number of our namespace.
        inode: u64,
    },
    /// `/proc` is missing, shows another pid namespace, or hides other users' processes.
    #[error(
        "tenants by cgroup need /proc of this pid namespace, mounted without hidepid: {path}: {source}. Mount it, or use \
         --tenant-by uid or volume"
    )]
    Proc {
        /// The file that cannot be read.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Neither cgroup2 nor the v1 memory hierarchy is mounted.
    #[error(
        "tenants by cgroup need cgroups: neither cgroup2 nor the memory controller of cgroup v1 is mounted here. Mount \
         one, or use --tenant-by uid or volume"
    )]
    NoCgroups,
    /// A setting for a name that cannot be a tenant.
    #[error("{tenant} is not a tenant; with --tenant-by {by}, a tenant is written as {example}", example = by.example())]
    NoSuchTenant {
        /// The kind of tenants.
        by: TenantBy,
        /// The name as configured.
        tenant: PathBuf,
    },
    /// A setting for a cgroup in which no process can be.
    #[error("{name:?} is not a usable cgroup: {source}")]
    NoSuchCgroup {
        /// The name as configured.
        name: PathBuf,
        /// Why no process can be in it.
        source: CgroupNameError,
    },
}

/// Why the tenant of one thread is unknown.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookupError {
    /// The thread has exited.
    #[error("the thread is gone")]
    Gone,
    /// `/proc` names a directory other than that of the thread's cgroup, or the directory was removed meanwhile.
    #[error("it is moving between cgroups, or something is mounted over the hierarchy")]
    Moved,
    #[error("cannot open a descriptor for the thread: {0}")]
    Descriptor(Errno),
    #[error("/proc/{tid}/cgroup: {source}")]
    Proc { tid: u32, source: io::Error },
    #[error("cgroup {path} is not below the part of the hierarchy that is mounted at {mountpoint}")]
    Outside { path: PathBuf, mountpoint: PathBuf },
    #[error("cgroup directory {directory}: {source}")]
    Directory { directory: PathBuf, source: Errno },
    #[error("it has no cgroup in a mounted hierarchy")]
    Nowhere,
}

impl LookupError {
    /// Whether another attempt may succeed, since the thread may just have moved or exited.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Gone | Self::Moved => true,
            Self::Directory { source, .. } => *source == Errno::NOENT,
            Self::Descriptor(_) | Self::Proc { .. } | Self::Outside { .. } | Self::Nowhere => false,
        }
    }
}

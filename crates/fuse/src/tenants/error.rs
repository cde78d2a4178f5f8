//! Why there are no tenants by cgroup, or none for one caller.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::tenants::{CgroupNameError, TenantBy};

/// Why tenants cannot be told apart as asked.
#[derive(Debug, thiserror::Error)]
pub enum TenantsError {
    /// ThreadCache outside of our pid namespace have no number in it.
    #[error(
        "tenants by cgroup need the host's pid namespace: in this one (pid:[{inode}]) callers from outside are pid 0 and \
         their cgroups cannot be known; run in the host's pid namespace (docker: --pid=host, Kubernetes: hostPID), or \
         use --tenant-by uid or volume"
    )]
    ForeignPidNamespace {
        /// The number of our namespace.
        inode: u64,
    },
    /// `/proc` is not there, shows another pid namespace or hides other users' processes.
    #[error(
        "tenants by cgroup need /proc of this pid namespace, without hidepid: {path}: {source}; mount it, or use \
         --tenant-by uid or volume"
    )]
    Proc {
        /// What cannot be read.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Neither cgroup2 nor the memory hierarchy of v1 is mounted.
    #[error(
        "tenants by cgroup need cgroups: neither cgroup2 nor the memory controller of cgroup v1 is mounted here; mount \
         one, or use --tenant-by uid or volume"
    )]
    NoCgroups,
    /// What is configured would be for nobody.
    #[error("{tenant} is not a tenant; with --tenant-by {by}, a tenant is written as {example}", example = by.example())]
    NoSuchTenant {
        /// What makes a tenant.
        by: TenantBy,
        /// For whom it was to be.
        tenant: PathBuf,
    },
    /// A cgroup in which nobody can be.
    #[error("{name:?} is not a usable cgroup: {source}")]
    NoSuchCgroup {
        /// As it was written.
        name: PathBuf,
        /// Why nobody can.
        source: CgroupNameError,
    },
}

/// Why one caller's tenant is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookupError {
    /// The thread does not live any more.
    #[error("the thread is gone")]
    Gone,
    /// The directory that `/proc` names is another than that of the thread's cgroup, or is removed by now.
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
    /// Whether it may be the trace of a moment in which the thread moved or ended.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Gone | Self::Moved => true,
            Self::Directory { source, .. } => *source == Errno::NOENT,
            Self::Descriptor(_) | Self::Proc { .. } | Self::Outside { .. } | Self::Nowhere => false,
        }
    }
}

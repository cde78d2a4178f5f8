//! A place where a volume is mounted: a path in a mount namespace.
//!
//! A mount namespace is known by its link in `/proc` and entered through any process that is in it. An open descriptor of
//! a namespace would keep its mounts alive when its last process has ended.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::mounted::namespaces::visit;
use slackwater_fuse::mount::{self, UnmountError};
use slackwater_host::device_at;

/// A place where a volume is mounted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MountPoint {
    path: PathBuf,
    /// The link to the mount namespace in `/proc`; `None` if it is that of this process.
    namespace: Option<PathBuf>,
}

impl MountPoint {
    /// A path in the mount namespace of this process.
    pub fn here(path: PathBuf) -> Self {
        Self { path, namespace: None }
    }

    /// A path, absolute and without symbolic links, in the mount namespace of the process `pid`.
    ///
    /// # Errors
    /// The process has ended, or belongs to another user.
    pub fn of_process(pid: u32, path: PathBuf) -> io::Result<Self> {
        let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt"))?;
        let is_own = fs::read_link("/proc/self/ns/mnt")? == namespace;
        Ok(Self { path, namespace: (!is_own).then_some(namespace) })
    }

    /// A path in the mount namespace with this link in `/proc`; without one, in that of this process. For a place of an
    /// earlier process in the same namespace.
    pub fn again(path: PathBuf, namespace: Option<PathBuf>) -> Self {
        Self { path, namespace }
    }

    /// The link to its mount namespace in `/proc`; `None` if that is the one of this process.
    pub fn namespace(&self) -> Option<&Path> {
        self.namespace.as_deref()
    }

    /// The path in its mount namespace.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is in the mount namespace of this process.
    pub fn is_here(&self) -> bool {
        self.namespace.is_none()
    }

    /// Does `work` with the path, on a thread in the mount namespace.
    ///
    /// # Errors
    /// The namespace is gone, or this process may not enter it.
    pub(super) fn visit<T: Send + 'static>(&self, work: impl FnOnce(&Path) -> T + Send + 'static) -> Result<T, Errno> {
        let Some(namespace) = &self.namespace else { return Ok(work(&self.path)) };
        let path = self.path.clone();
        visit(namespace, move || work(&path))
    }

    /// The device that is mounted there.
    pub(super) fn device(&self) -> Result<u64, Errno> {
        self.visit(device_at)?
    }

    /// Unmounts as umount2(2) does.
    pub(super) fn unmount_with(&self, flags: UnmountFlags) -> Result<(), Errno> {
        self.visit(move |path| rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW))?
    }

    /// Unmounts as [`mount::unmount`] does.
    pub(super) fn unmount(&self, lazy: bool) -> Result<(), UnmountError> {
        self.visit(move |path| mount::unmount(path, lazy)).map_err(UnmountError::Kernel)?
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_process_of_the_same_namespace_is_here() {
        let point = MountPoint::of_process(std::process::id(), "/proc".into()).unwrap();
        assert!(point.is_here());
        assert_eq!(point, MountPoint::here("/proc".into()));
        assert_eq!(point.device(), Ok(fs::metadata("/proc").unwrap().dev()));
    }

    #[test]
    fn a_namespace_without_processes_is_gone() {
        let point = MountPoint { path: "/proc".into(), namespace: Some("mnt:[1]".into()) };
        assert!(!point.is_here());
        assert_eq!(point.device(), Err(Errno::SRCH));
    }
}

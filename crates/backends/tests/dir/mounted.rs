//! File systems that a test mounts for itself.

use std::ffi::CStr;
use std::path::Path;

use rustix::io;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

/// A mount that is taken away again, also by a panic.
pub(crate) struct Mounted<'a>(pub(crate) &'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        unmount(self.0, UnmountFlags::DETACH).ok();
    }
}

/// Mounts a file system of its own at `path`; says so and gives nothing where that is not permitted.
pub(crate) fn mounted<'a>(path: &'a Path, mount: impl FnOnce(&Path) -> io::Result<()>) -> Option<Mounted<'a>> {
    match mount(path) {
        Ok(()) => {
            let mounted = Mounted(path);
            mount_change(path, MountPropagationFlags::PRIVATE).expect("our own mount can be made private");
            Some(mounted)
        }
        Err(errno) => {
            println!("skipped: cannot mount: {errno}");
            None
        }
    }
}

/// For [`mounted`]: memory of this `size`.
pub(crate) fn mount_tmpfs(path: &Path, size: &CStr) -> io::Result<()> {
    mount("tmpfs", path, "tmpfs", MountFlags::NODEV | MountFlags::NOSUID, size)
}

//! File systems that a test mounts for its own use.

use std::ffi::CStr;
use std::path::Path;

use rustix::io;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

/// A mount that is unmounted when this is dropped, also after a panic.
pub(crate) struct Mounted<'a>(pub(crate) &'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        unmount(self.0, UnmountFlags::DETACH).ok();
    }
}

/// Mounts a file system of its own at `path`. Where that is not permitted it prints so and returns nothing.
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

/// Options of a tmpfs of this `size`, for [`mounted`].
pub(crate) fn mount_tmpfs(path: &Path, size: &CStr) -> io::Result<()> {
    mount("tmpfs", path, "tmpfs", MountFlags::NODEV | MountFlags::NOSUID, size)
}

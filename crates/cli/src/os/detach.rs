//! Taking a mount out of sight, whether its process lives or not.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// Detaches what is mounted at `mountpoint`: nobody finds it any more, and who has files open keeps them.
///
/// # Errors
/// It is not mounted, or is none of ours to unmount.
pub(crate) fn detach(mountpoint: &Path) -> io::Result<()> {
    match unmount(mountpoint, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => by_helper(mountpoint),
        done => Ok(done?),
    }
}

/// Without privileges the set-uid helper does it.
fn by_helper(mountpoint: &Path) -> io::Result<()> {
    let mut helper = Command::new("fusermount3");
    let output = helper.args(["-u", "-z", "--"]).arg(mountpoint).stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

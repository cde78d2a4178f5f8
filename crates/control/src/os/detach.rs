//! Lazy unmount, whether or not the process of the mount is alive.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// Detaches the mount at `mountpoint`: lookups no longer find it, and open files stay open.
///
/// # Errors
/// Nothing is mounted there, or this user may not unmount it.
pub fn detach(mountpoint: &Path) -> io::Result<()> {
    match unmount(mountpoint, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => by_helper(mountpoint),
        done => Ok(done?),
    }
}

/// Detaches the mount by the set-user-ID helper, for a user without privileges.
fn by_helper(mountpoint: &Path) -> io::Result<()> {
    let mut helper = Command::new("fusermount3");
    let output = helper.args(["-u", "-z", "--"]).arg(mountpoint).stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

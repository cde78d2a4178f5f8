//! Aborting a connection by its control file, which works however it is used and wherever it is mounted.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags, minor, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Where a system that has all of its file systems mounted shows the control files.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Aborts the connection whose files are on `dev`: requests that wait fail, and so do all later ones.
///
/// # Errors
/// The connection is gone; or its control file is not to be had: that belongs to the user who mounted, and is seen by root alone
/// where nobody has mounted the control file system.
pub(super) fn abort(dev: u64) -> io::Result<()> {
    let name = format!("{}/abort", minor(dev));
    let mut control = match File::options().write(true).open(Path::new(CONNECTIONS).join(&name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => open_unmounted(&name)?,
        opened => opened?,
    };
    control.write_all(b"1")
}

/// Opens a control file by a mount that nobody else sees, and that is gone when this returns.
fn open_unmounted(name: &str) -> Result<File, Errno> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(openat(&root, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

//! Aborting a FUSE connection by its number, from any process.
//!
//! # Kernel counterpart
//! `fuse_conn_abort_write` of the file system `fusectl`.

use std::fs::File;
use std::io::{self, Write};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Aborts a connection: unanswered requests fail with `ECONNABORTED`, and later ones with `ENOTCONN`. `number` is the
/// minor device number of its mounts. A connection that is already gone is not an error.
///
/// When a connection has ended, the kernel gives its number to the next mount of any program. So `is_meant` is called after
/// the control file was opened, which belongs to one connection: only if it says that the connection is still there, it had
/// the number at that moment, and is aborted.
///
/// If the control file system is not mounted, root uses a detached mount of its own.
///
/// # Errors
/// The connection belongs to another user, or this process cannot reach the control file.
pub fn abort_connection(number: u32, is_meant: impl FnOnce() -> bool) -> io::Result<()> {
    let path = format!("/sys/fs/fuse/connections/{number}/abort");
    let mut control = match File::options().write(true).open(path) {
        Ok(control) => control,
        Err(_) => {
            let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&control)?;
            let root = fsmount(&control, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
            match openat(&root, format!("{number}/abort"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
                Ok(control) => File::from(control),
                Err(rustix::io::Errno::NOENT) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    };
    if is_meant() { control.write_all(b"1") } else { Ok(()) }
}

//! The attributes of a mount that is not attached yet, for which the libraries have no call.
#![allow(unsafe_code, reason = "a system call on a mount")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Makes a mount read-only, whatever its file system is.
///
/// # Errors
/// The kernel refuses it.
pub(super) fn make_read_only(mount: impl AsFd) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the descriptor is open, the path is an empty string, and the attributes are valid for the call, with their
    // size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

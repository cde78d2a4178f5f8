//! Closing a descriptor with its result, for which there is no safe call.
#![allow(unsafe_code, reason = "close")]

use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};

pub(super) fn close(fd: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor belonged to its owner alone, who has given it up.
    match unsafe { libc::close(fd.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

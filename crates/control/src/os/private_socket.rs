//! A Unix socket to which only this user can connect.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::Mode;
use rustix::process::umask;

/// Listens at a new socket file, which has the mode 0600 from its first moment. To be called before other threads create
/// files: their modes are limited too meanwhile.
///
/// # Errors
/// The file exists or cannot be created.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let before = umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    bound
}

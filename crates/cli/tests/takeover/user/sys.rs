//! Mount namespaces of single threads, for which there is no safe call.
#![allow(unsafe_code, reason = "unshare")]

/// Gives this thread, and the threads and processes that it starts, a mount namespace of its own.
pub(crate) fn leave_mount_namespace() {
    // SAFETY: it takes no pointers. The working directory of the thread becomes its own.
    let outcome = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

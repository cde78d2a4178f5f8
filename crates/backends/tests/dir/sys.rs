//! A umask for one thread: the one system call of these tests that has no safe wrapper.
#![allow(unsafe_code, reason = "rustix has no safe way to part from the other threads' umask")]

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the calling thread, and those it starts, a umask and a working directory of their own.
pub(crate) fn part_from_the_umask_of_other_threads() {
    // SAFETY: nothing in these tests relies on a working directory or umask that threads share.
    unsafe { unshare_unsafe(UnshareFlags::FS) }.expect("a thread may part from the others");
}

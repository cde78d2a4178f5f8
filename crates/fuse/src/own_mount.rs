//! Calls of this process that its own mounts have to answer.
//!
//! A call whose request was read and not answered ends with the answer alone: no signal ends it, not even SIGKILL. If the
//! process dies at that moment, its own thread waits for it. The thread would keep the process and all descriptors
//! alive, so that the connection stayed open and nothing ever answered.
//!
//! # Invariants
//! O1. Such a call is made on a thread that has none of the descriptors of the process. When the other threads have
//!     ended, the connection is closed, unless a keeper has it. In either case the call ends: it fails, or the next process
//!     answers it.
//! O2. The thread has the name [`OWN_MOUNT_THREAD`] and calls nothing of a source, by which a keeper knows that the next
//!     process may start before the thread has ended.
//!
//! [ADR 0040](../../../docs/adr/0040-no-process-waits-for-its-own-mounts.md) lists all calls that can reach a mount of
//! the same process.
//!
//! # Kernel counterpart
//! `request_wait_answer`, whose last wait is not killable.

use std::io;

use slackwater_sync::shim::thread::{self, JoinHandle};

use crate::sys;

/// The name of threads that call a mount of their own process, and never a source.
pub const OWN_MOUNT_THREAD: &str = "sw-own-mount";

/// Does `work` on such a thread. Descriptors that it opens are its own; it cannot use others (O1). Threads that it starts
/// by [`start_beside`] have the same ones.
pub(crate) fn start<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<JoinHandle<io::Result<T>>> {
    start_beside(move || {
        sys::have_own_descriptors()?;
        work()
    })
}

/// Does `work` on another thread, which has the descriptors of this one.
pub(crate) fn start_beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(OWN_MOUNT_THREAD.to_owned()).spawn(work)
}

//! Calls of this process that its own mounts have to answer.
//!
//! A call whose request was read and not answered ends with the answer alone: no signal ends it, not even SIGKILL. If the
//! process dies at that moment, its own thread waits for it. The thread would keep the process and all descriptors
//! alive, so that the connection stayed open and nothing ever answered.
//!
//! # Invariants
//! O1. Such a call is made on a thread that has none of the descriptors of the process. When the other threads have
//!     ended, the connection is closed, unless a keeper has it. In either case the call ends: it fails, or the next process
//!     answers it. A thread that is started later would have copies of all descriptors, and closing a copy asks the server
//!     of its file system. So one thread without descriptors is started with the first pool, before sources are open, and
//!     starts those threads.
//! O2. The thread has the name [`OWN_MOUNT_THREAD`] and calls nothing of a source, by which a keeper knows that the next
//!     process may start before the thread has ended.
//!
//! [ADR 0040](../../../docs/adr/0040-no-process-waits-for-its-own-mounts.md) lists all calls that can reach a mount of
//! the same process.
//!
//! # Kernel counterpart
//! `request_wait_answer`, whose last wait is not killable.

use std::collections::VecDeque;
use std::io;

use slackwater_sync::Completion;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::thread::{self, JoinHandle};
use slackwater_sync::shim::{Arc, OnceLock};

use crate::{TRANSPORT, sys};

/// The name of threads that call a mount of their own process, and never a source.
pub const OWN_MOUNT_THREAD: &str = "sw-own-mount";

type Work = Box<dyn FnOnce() + Send>;

/// Work for the thread without descriptors, which starts a thread for each.
struct Queue {
    work: Mutex<VecDeque<Work>>,
    /// Completed once for each.
    added: Completion,
}

/// `None` if the system has no thread.
static QUEUE: OnceLock<Option<Arc<Queue>>> = OnceLock::new();

/// Starts the thread without descriptors, once for the process (O1).
pub(crate) fn prepare() {
    QUEUE.get_or_init(|| {
        let queue = Arc::new(Queue { work: Mutex::new(TRANSPORT, VecDeque::new()), added: Completion::new() });
        let served = Arc::clone(&queue);
        let serve = move || {
            let is_bare = sys::have_own_descriptors().is_ok();
            loop {
                served.added.wait();
                // Work that is dropped here fails.
                let work = served.work.lock().pop_front().filter(|_| is_bare);
                let _ = work.map(start_beside);
            }
        };
        thread::Builder::new().name("sw-bare".to_owned()).spawn(serve).is_ok().then_some(queue)
    });
}

/// The outcome of a call.
struct Outcome<T> {
    result: Mutex<Option<io::Result<T>>>,
    done: Completion,
}

/// Completes the outcome when the work has ended, or was dropped.
struct Done<T>(Arc<Outcome<T>>);

impl<T> Drop for Done<T> {
    fn drop(&mut self) {
        self.0.done.complete_all();
    }
}

/// A call on another thread.
pub struct Call<T>(Arc<Outcome<T>>);

impl<T> Call<T> {
    /// Waits for its end.
    ///
    /// # Errors
    /// That of the call, or that of the system if no thread could be started for it.
    pub fn join(self) -> io::Result<T> {
        self.0.done.wait();
        let result = self.0.result.lock().take();
        result.unwrap_or_else(|| Err(io::Error::other("no thread for it could be started")))
    }
}

/// Does `work` on such a thread. Descriptors that it opens are its own; it cannot use others (O1). Threads that it starts
/// by [`start_beside`] have the same ones.
///
/// # Errors
/// The process has no such threads: `Unsupported`.
pub fn start<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<Call<T>> {
    let queue = QUEUE.get().and_then(Option::as_ref).ok_or(io::ErrorKind::Unsupported)?;
    let outcome = Arc::new(Outcome { result: Mutex::new(TRANSPORT, None), done: Completion::new() });
    let done = Done(Arc::clone(&outcome));
    let work: Work = Box::new(move || {
        let done = done;
        let result = work();
        *done.0.result.lock() = Some(result);
    });
    queue.work.lock().push_back(work);
    queue.added.complete();
    Ok(Call(outcome))
}

/// Does `work` on another thread, which has the descriptors of this one.
///
/// # Errors
/// The system starts no thread.
pub fn start_beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(OWN_MOUNT_THREAD.to_owned()).spawn(work)
}

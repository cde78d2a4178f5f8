//! The threads of all object volumes of a process.
//!
//! SlateDB and `object_store` need tokio. It lives here alone: other volumes neither run on these threads nor wait for
//! them. The threads start with the first object volume of the process, and stay.

use std::io;

use slackwater_sync::shim::OnceLock;
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that run tasks. A request to a store needs little of them, so few serve many volumes.
const WORKERS: usize = 3;
/// Threads for calls that block: the file system below `file:` volumes. They end when they are idle.
const BLOCKING_THREADS_MAX: usize = 64;

static RUNTIME: OnceLock<io::Result<Runtime>> = OnceLock::new();

/// The runtime. Started by the first call.
///
/// # Errors
/// The threads could not be started; no later call tries again.
pub(crate) fn handle() -> io::Result<Handle> {
    let runtime = RUNTIME.get_or_init(|| {
        Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .thread_name("slackwater-obj")
            .enable_all()
            .build()
    });
    match runtime {
        Ok(runtime) => Ok(runtime.handle().clone()),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    }
}

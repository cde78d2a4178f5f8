//! The threads of all object volumes of a process.
//!
//! SlateDB and `object_store` need tokio. It lives here alone: other volumes neither run on these threads nor wait for
//! them. The threads start with the first object volume of the process, and stay.

use std::io;

use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::OnceLock;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::VolumeError;

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

/// Does `work` on these threads, for a call of a user of the crate.
///
/// # Errors
/// Those of the work, or the threads could not be started.
///
/// # Blocking
/// Until the work is done.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, VolumeError>>) -> Result<T, VolumeError> {
    let runtime = handle().map_err(|error| {
        VolumeError::Store(BackendError::new(ErrorKind::Io, format!("no threads for object volumes: {error}")))
    })?;
    runtime.block_on(work)
}

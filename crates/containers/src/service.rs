//! The process of a plugin, once it listens.
//!
//! One thread receives and answers; calls have threads of their own, and so has the work that an earlier plugin left.

use std::io;
use std::thread;
use std::time::Duration;

use slackwater_control::exit::Failure;
use slackwater_control::os::sys::{Signal, Signals};
use slackwater_control::outln;
use slackwater_host::Printable as _;
use tokio::sync::oneshot;

use crate::endpoint::Endpoint;

/// The time that running calls get at the end. After it they are cut off, as by a kill, and the platform repeats them.
pub(super) const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Runs `finish`, if it is given, beside `serve`. That gets a channel on which a signal arrives when the plugin is to end; an
/// error on it means that no signal can arrive any more. `calls_max` calls run at the same time.
///
/// # Errors
/// The plugin cannot serve.
///
/// # Blocking
/// For as long as the plugin runs.
pub(super) fn run<F: Future<Output = io::Result<()>>>(
    signals: Signals,
    endpoint: Endpoint,
    calls_max: usize,
    finish: Option<impl FnOnce() + Send + 'static>,
    serve: impl FnOnce(oneshot::Receiver<Signal>) -> F,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot serve {}: {error}", endpoint.path().printable()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(calls_max)
        .build()
        .map_err(failed)?;
    let (asks, asked) = oneshot::channel();
    thread::Builder::new().name("sw-signals".into()).spawn(move || asks.send(signals.wait())).map_err(failed)?;
    if let Some(finish) = finish {
        thread::Builder::new().name("sw-finish".into()).spawn(finish).map_err(failed)?;
    }
    outln!("Listening at {}. End with Ctrl-C or SIGTERM.", endpoint.path().printable());
    let served = runtime.block_on(serve(asked)).map_err(failed);
    drop(endpoint);
    // Threads that wait for a hung source end with the process.
    runtime.shutdown_background();
    served
}

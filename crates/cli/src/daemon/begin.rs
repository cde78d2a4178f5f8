//! The volumes of a daemon that has just started: those that are configured, and what a dead one has left.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use slackwater::Engine;

use crate::control::protocol::MountRequest;
use crate::daemon::volumes::Volumes;
use crate::registry::Found;
use crate::terminal::say;

/// For so long the start waits for sources.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);

/// Mounts what is configured and brings in what is left, each volume by itself; returns how many are mounted when all are done,
/// or when those that are not have had [`BEGIN_WITHIN`]: they go on beside the others.
pub(super) fn begin(volumes: &Arc<Volumes>, engine: &Engine, configured: &[MountRequest], dead: Vec<Found>) -> usize {
    // By name alone: looking at a source may hang.
    let named = |source: &Path| {
        let is_it = |request: &MountRequest| std::path::absolute(&request.source).is_ok_and(|path| path == source);
        configured.iter().any(is_it)
    };
    let (done, outcomes) = channel();
    for found in volumes.shared.left.reserve(dead, named) {
        let (volumes, engine, done) = (Arc::clone(volumes), engine.clone(), done.clone());
        beside("sw-left", move || {
            volumes.shared.left.bring_in(&engine, &found);
            drop((volumes, engine));
            let _ = done.send(false);
        });
    }
    for request in configured {
        let (volumes, request, done) = (Arc::clone(volumes), request.clone(), done.clone());
        beside("sw-mount", move || {
            let is_mounted = mount_configured(&volumes, &request);
            drop(volumes);
            let _ = done.send(is_mounted);
        });
    }
    drop(done);
    let deadline = Instant::now() + BEGIN_WITHIN;
    let mut mounted = 0;
    loop {
        match outcomes.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(is_mounted) => mounted += usize::from(is_mounted),
            Err(RecvTimeoutError::Disconnected) => return mounted,
            Err(RecvTimeoutError::Timeout) => {
                say!("Some sources have not answered yet; their volumes follow when they do.");
                return mounted;
            }
        }
    }
}

/// Does `work` on a thread of its own, or here where there is none.
fn beside(name: &str, work: impl FnOnce() + Send + 'static) {
    let work = Arc::new(Mutex::new(Some(work)));
    let own = Arc::clone(&work);
    let take = |work: &Mutex<Option<_>>| work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let run = move || {
        if let Some(work) = take(&own) {
            work();
        }
    };
    if thread::Builder::new().name(name.to_owned()).spawn(run).is_err()
        && let Some(work) = take(&work)
    {
        work();
    }
}

fn mount_configured(volumes: &Volumes, request: &MountRequest) -> bool {
    match volumes.mount(request) {
        Ok(_) => true,
        Err(failure) => {
            say!("{}: not mounted: {failure}", request.name.as_deref().unwrap_or_default());
            false
        }
    }
}

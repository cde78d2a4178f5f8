//! The volumes of a daemon that has just started: those in the configuration, and those that a dead daemon left.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use slackwater::Engine;
use slackwater_control::errln;
use slackwater_control::name;
use slackwater_control::parallel::for_each_within;
use slackwater_control::protocol::MountRequest;

use crate::commands::daemon::volumes::Volumes;
use crate::registry::Found;

/// How long the start waits for sources.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);

/// A volume at start.
enum Volume {
    Left(Found),
    Configured(MountRequest),
}

/// The leftovers to write back: those of sources that are not configured.
pub(super) fn leftovers(volumes: &Volumes, configured: &[MountRequest], dead: Vec<Found>) -> Vec<Found> {
    // By name only, because looking at a source may hang.
    let named = |source: &Path| {
        let is_it = |request: &MountRequest| name::absolute(&request.source).is_ok_and(|path| path == source);
        configured.iter().any(is_it)
    };
    volumes.shared.left.reserve(dead, named)
}

/// Mounts the configured volumes and writes back the leftovers, each volume on its own thread. Returns how many are
/// mounted when all are done, or after [`BEGIN_WITHIN`]. Volumes that are not done by then continue in the background.
///
/// # Errors
/// A thread cannot be started.
pub(super) fn mount_volumes(
    volumes: &Arc<Volumes>,
    engine: &Engine,
    configured: &[MountRequest],
    left: Vec<Found>,
) -> io::Result<usize> {
    let left = left.into_iter().map(Volume::Left);
    let all: Vec<Volume> = left.chain(configured.iter().cloned().map(Volume::Configured)).collect();
    let (volumes, engine) = (Arc::clone(volumes), engine.clone());
    // A hung source blocks its thread only.
    let work = move |volume| match volume {
        Volume::Left(found) => {
            let keeper = volumes.shared.keeper.as_ref().map(|keeper| keeper.pid);
            volumes.shared.left.write_back(&engine, &found, keeper);
            false
        }
        Volume::Configured(request) => mount_configured(&volumes, &request),
    };
    let (are_mounted, is_over) = for_each_within("sw-begin", all, BEGIN_WITHIN, work)?;
    if !is_over {
        errln!("Some source directories do not answer yet; their volumes are mounted when they do.");
    }
    Ok(are_mounted.into_iter().filter(|is_mounted| *is_mounted).count())
}

fn mount_configured(volumes: &Volumes, request: &MountRequest) -> bool {
    match volumes.mount(request) {
        Ok(_) => true,
        Err(failure) => {
            errln!("{}: not mounted: {failure}", request.name.as_deref().unwrap_or_default());
            false
        }
    }
}

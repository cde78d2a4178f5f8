//! The part of `status` about caches that can free memory.

use slackwater::shrink::{Count, ShrinkerStatus};
use slackwater::{Engine, SuperBlock};

use crate::control::protocol::Shrinker;

/// All of an engine: one for each of its volumes.
pub(super) fn all(engine: &Engine) -> Vec<Shrinker> {
    engine.shrinkers().into_iter().map(Shrinker::from).collect()
}

/// The one of `volume`.
pub(super) fn of(volume: &SuperBlock) -> Vec<Shrinker> {
    volume.shrinker().into_iter().map(Shrinker::from).collect()
}

impl From<ShrinkerStatus> for Shrinker {
    fn from(status: ShrinkerStatus) -> Self {
        let count = match status.count {
            Count::Empty => Some(0),
            Count::Unknown => None,
            Count::Objects(objects) => Some(objects),
        };
        Self { name: status.name, count, deferred: status.deferred }
    }
}

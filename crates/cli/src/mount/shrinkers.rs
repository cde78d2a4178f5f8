//! What `status` says of the caches that can give memory back.

use slackwater::SuperBlock;
use slackwater::shrink::{Count, ShrinkerStatus};

use crate::control::protocol::Shrinker;

/// Those of the engine that `volume` is mounted in: one for each of its volumes.
pub(super) fn of(volume: &SuperBlock) -> Vec<Shrinker> {
    volume.shrinkers().into_iter().map(Shrinker::from).collect()
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

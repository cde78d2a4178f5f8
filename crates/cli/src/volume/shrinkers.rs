//! The part of `status` about caches that can free memory.

use slackwater::shrink::{Count, ShrinkerStatus};
use slackwater::{Engine, SuperBlock};
use slackwater_control::protocol::Shrinker;

/// All of an engine: one for each of its volumes.
pub(super) fn all(engine: &Engine) -> Vec<Shrinker> {
    engine.shrinkers().into_iter().map(shrinker_of).collect()
}

/// The one of `volume`.
pub(super) fn of(volume: &SuperBlock) -> Vec<Shrinker> {
    volume.shrinker().into_iter().map(shrinker_of).collect()
}

/// A cache, as messages have it.
fn shrinker_of(status: ShrinkerStatus) -> Shrinker {
    let count = match status.count {
        Count::Empty => Some(0),
        Count::Unknown => None,
        Count::Objects(objects) => Some(objects),
    };
    Shrinker { name: status.name, count, deferred: status.deferred }
}

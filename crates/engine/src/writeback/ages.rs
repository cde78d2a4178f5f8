//! How old the dirty data of a volume may become: the age of the engine, unless the volume has one of its own.
//!
//! # Memory ordering
//! The age stands alone: no other data depends on its value.
//!
//! # Kernel counterpart
//! `dirty_expire_centisecs` and `dirty_writeback_centisecs`, which the kernel has once for all devices.

use std::time::Duration;

use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use crate::tunables::Tunables;

/// In place of an age.
const OF_ENGINE: u64 = u64::MAX;

/// See the [module documentation](self).
pub(crate) struct Ages {
    own_expire_ns: AtomicU64,
}

impl Ages {
    pub(crate) fn new() -> Self {
        Self { own_expire_ns: AtomicU64::new(OF_ENGINE) }
    }

    pub(crate) fn set_expire(&self, age: Option<Duration>) {
        let ns = age.map_or(OF_ENGINE, |age| u64::try_from(age.as_nanos()).unwrap_or(OF_ENGINE - 1));
        self.own_expire_ns.store(ns, Ordering::Relaxed);
    }

    fn own_expire(&self) -> Option<Duration> {
        let ns = self.own_expire_ns.load(Ordering::Relaxed);
        (ns != OF_ENGINE).then(|| Duration::from_nanos(ns))
    }

    /// See [`Tunables::dirty_expire`].
    pub(crate) fn expire(&self, tunables: &Tunables) -> Duration {
        self.own_expire().unwrap_or(tunables.dirty_expire)
    }

    /// See [`Tunables::dirty_writeback`].
    pub(crate) fn writeback(&self, tunables: &Tunables) -> Duration {
        self.at_most(tunables.dirty_writeback)
    }

    /// See [`Tunables::commit_interval`].
    pub(crate) fn commit(&self, tunables: &Tunables) -> Duration {
        self.at_most(tunables.commit_interval)
    }

    /// Old data is searched for at least as often as it becomes old.
    fn at_most(&self, interval: Duration) -> Duration {
        self.own_expire().map_or(interval, |age| interval.min(Tunables::interval_for(age)))
    }
}

//! The wait of an unmount between taking mounts out of the tree and ending their volumes.
//!
//! A lookup may have found a mount just before it was taken out. After a grace period all such lookups have ended, and
//! only then can the last reference be recognised. The work after that must be done when the unmount returns, because a
//! caller that mounts the volume again at once must not meet the old one. So it cannot be left to a callback. That form
//! was tried, and is kept to show the effect ([`UmountGrace::Deferred`]).
//!
//! # Kernel counterpart
//! `synchronize_rcu_expedited` in `namespace_unlock`.

use slackwater_sync::gate;
use slackwater_sync::rcu::Domain;
use slackwater_sync::shim::thread;

/// How an unmount by path waits for lookups that may have found the mount.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum UmountGrace {
    /// An expedited grace period, which takes microseconds. It interrupts the CPUs that run threads of this process.
    #[default]
    Expedited,
    /// A normal grace period, which takes some milliseconds and interrupts no CPU: for hosts with other
    /// latency-critical work.
    Normal,
    /// No wait: the work is done later. Wrong; for experiments.
    #[doc(hidden)]
    Deferred,
}

impl UmountGrace {
    /// Runs `rest` after a grace period. `None` if it will run later.
    ///
    /// # Blocking
    /// Waits for the grace period and for `rest`, unless deferred.
    pub(super) fn wait_then<R>(self, domain: &Domain, rest: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        match self {
            Self::Expedited => domain.synchronize_expedited(),
            Self::Normal => domain.synchronize(),
            Self::Deferred => {
                // It waits for callbacks itself, so it must not run in one.
                let rest = || {
                    gate::pass("namespace.deferred");
                    drop(rest());
                };
                domain.call(|| drop(thread::spawn(rest)));
                return None;
            }
        }
        Some(rest())
    }
}

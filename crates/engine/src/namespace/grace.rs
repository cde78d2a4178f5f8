//! What an unmount does between taking mounts out of the tree and ending their volumes.
//!
//! A lookup may have found a mount just before it was taken out. All such lookups are over after a grace period, and only then
//! the last reference can be seen. What comes next is the real work, and it has to be done when the unmount returns: who
//! mounts the volume again at once must not meet the old one. That is why the wait cannot be left to a callback, which was
//! tried, and is kept here to show it ([`UmountGrace::Deferred`]).
//!
//! # Kernel counterpart
//! `synchronize_rcu_expedited` in `namespace_unlock`; sem. 9.4.

use slackwater_sync::gate;
use slackwater_sync::rcu::Domain;
use slackwater_sync::shim::thread;

/// How an unmount by path waits for lookups that may have found the mount.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum UmountGrace {
    /// At once, for microseconds. Interrupts the CPUs that run threads of this process.
    #[default]
    Expedited,
    /// For some milliseconds, and disturbs nobody: for hosts that others' latency matters to.
    Normal,
    /// Not at all: the rest is done later. Wrong; for experiments.
    #[doc(hidden)]
    Deferred,
}

impl UmountGrace {
    /// Does `rest` after a grace period. `None`: it will be done later.
    ///
    /// # Blocking
    /// For the grace period and for `rest`, unless deferred.
    pub(super) fn wait_then<R>(self, domain: &Domain, rest: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        match self {
            Self::Expedited => domain.synchronize_expedited(),
            Self::Normal => domain.synchronize(),
            Self::Deferred => {
                // It waits for callbacks itself, so it does not run in one.
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

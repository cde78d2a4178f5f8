//! How shrinkers are registered and unregistered during walks. One form per file; the last is the default.
//!
//! | form | walk | unregistering waits for |
//! |---|---|---|
//! | [`rwsem`] | under one lock, only try-locked; yields to a writer | every walk, until it ends or yields |
//! | [`srcu`] | in a read section that may sleep | every walk, and a grace period even without walks |
//! | [`refcount_rcu`] | a reference to one shrinker at a time | walks that are visiting this shrinker |
//!
//! # Kernel counterpart
//! `shrinker_rwsem` up to 6.3, SRCU in 6.4, and `shrinker_try_get` since 6.7. The first two are kept to measure their cost.

mod refcount_rcu;
mod rwsem;
mod srcu;

use std::time::Duration;

use slackwater_sync::rcu::Domain;
use slackwater_sync::shim::Arc;

use super::entry::{Entry, ShrinkerId};

/// The registered shrinkers. No method may be called from inside a walk of the same thread.
pub(super) trait Registry: Send + Sync {
    /// Adds `entry` to the walks from now on.
    ///
    /// # Blocking
    /// Depends on the form.
    fn register(&self, entry: &Arc<Entry>) -> Box<dyn Registered>;

    /// Calls `visit` for each registered entry, in the order of their numbers or of registration.
    ///
    /// # Blocking
    /// As `visit` does.
    fn walk(&self, visit: &mut dyn FnMut(&Entry)) -> Walk;
}

/// A registered entry.
pub(super) trait Registered: Send + Sync {
    /// Unregisters it. After this returns, no walk visits it any more.
    ///
    /// # Blocking
    /// Depends on the form.
    fn unregister(self: Box<Self>);
}

/// How a walk ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[must_use]
pub(super) enum Walk {
    /// The walk visited every entry.
    Complete,
    /// A registration or unregistration was waiting: some or all entries were skipped.
    Yielded,
}

/// The form an engine uses. For experiments and tests; [`ShrinkerForm::RefcountRcu`] is the right one.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub enum ShrinkerForm {
    /// The form of Linux up to 6.3.
    Rwsem,
    /// The form that was tried in Linux 6.4 and reverted.
    Srcu,
    /// The form of Linux since 6.7.
    #[default]
    RefcountRcu,
}

impl ShrinkerForm {
    pub(super) fn registry(self, rcu: &Arc<Domain>, coalesce: Duration) -> Box<dyn Registry> {
        match self {
            Self::Rwsem => Box::new(rwsem::Rwsem::new()),
            Self::Srcu => Box::new(srcu::SrcuList::new(coalesce)),
            Self::RefcountRcu => Box::new(refcount_rcu::RefcountRcu::new(rcu)),
        }
    }
}

//! How shrinkers come and go beside walks: one form per file, the last is the default.
//!
//! | form | walk | unregistering waits for |
//! |---|---|---|
//! | [`rwsem`] | under a lock for all, taken by trying; gives way to a writer | every walk, whole or until it gives way |
//! | [`srcu`] | in a section that may sleep | every walk, and a grace period though nobody walks |
//! | [`refcount_rcu`] | a reference to one shrinker after the other | who is at this very shrinker |
//!
//! # Kernel counterpart
//! The three designs of sem. 10.4. The first two are kept for what they cost.

mod refcount_rcu;
mod rwsem;
mod srcu;

use std::time::Duration;

use slackwater_sync::rcu::Domain;
use slackwater_sync::shim::Arc;

use super::entry::{Entry, ShrinkerId};

/// What is registered, and who walks it. The caller of any of it is not inside a walk of the same thread.
pub(super) trait Registry: Send + Sync {
    /// Walks visit `entry` from here on.
    ///
    /// # Blocking
    /// See the form.
    fn register(&self, entry: &Arc<Entry>) -> Box<dyn Registered>;

    /// Calls `visit` with what is registered, in the order of their numbers or of their coming.
    ///
    /// # Blocking
    /// As `visit` does.
    fn walk(&self, visit: &mut dyn FnMut(&Entry)) -> Walk;
}

/// An entry that is registered.
pub(super) trait Registered: Send + Sync {
    /// Takes it away. When this returns nobody visits it, and nobody will.
    ///
    /// # Blocking
    /// See the form.
    fn unregister(self: Box<Self>);
}

/// How a walk ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[must_use]
pub(super) enum Walk {
    /// It has been everywhere.
    Whole,
    /// Somebody registers or unregisters: some were left out, perhaps all.
    GaveWay,
}

/// Which of the forms an engine uses. For experiments and tests; [`ShrinkerForm::RefcountRcu`] is right.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub enum ShrinkerForm {
    /// As in Linux to 6.3.
    Rwsem,
    /// As once tried in 6.4, and reverted.
    Srcu,
    /// As in Linux since 6.7.
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

//! Giving back memory that can be had again: each cache registers a [`Shrinker`], and whoever is short of memory walks them.
//!
//! ```text
//! Engine::shrink(priority) --> `registry`: each shrinker that is registered --> `slab`: count, decide, scan in batches
//! ```
//! `shrinker` is the contract. `registry` lets shrinkers come and go beside walks, in three forms. `slab` decides how
//! much of each is scanned. `entry` is what is kept of one, and its number.
//!
//! # Invariants
//! K1. After [`Engine::unregister_shrinker`](crate::Engine::unregister_shrinker) has returned no scan of that shrinker
//!     runs, and none will: its owner may be taken apart.
//! K2. Who is inside a walk neither registers nor unregisters, in any form, and begins no other walk. A form could wait for
//!     itself otherwise, or two walks for each other.
//! K3. What a shrinker says is bounded before it is believed: nonsense costs the pass in which it was said, no more.
//!
//! # Kernel counterpart
//! `mm/shrinker.c`; sem. 10. Differs: no NUMA nodes and no bitmaps for tenants; K2 and K3 hold however a shrinker behaves.

mod entry;
mod registry;
mod shrinker;
mod slab;

pub use registry::ShrinkerForm;
pub use shrinker::{Count, DEFAULT_SEEKS, Scanned, ShrinkControl, Shrinker};

use std::time::Duration;

use slackwater_sync::ThreadMark;
use slackwater_sync::rcu::Domain;
use slackwater_sync::shim::Arc;

use crate::error::InsideScan;
use entry::{Entry, Ids};
use registry::{Registered, Registry, Walk};

/// The lightest walk; 0 is the heaviest.
pub const LIGHTEST: u32 = 12;

/// The shrinkers of an engine.
pub(crate) struct Shrinkers {
    registry: Box<dyn Registry>,
    ids: Arc<Ids>,
    /// Set inside walks (K2).
    walks: ThreadMark,
}

/// A shrinker that is registered, for who is to unregister it. Dropped, it leaves the shrinker where it is until the engine
/// goes.
#[must_use = "nothing else can unregister it"]
pub struct ShrinkerRegistration {
    registered: Box<dyn Registered>,
    entry: Arc<Entry>,
}

impl ShrinkerRegistration {
    /// What is known of this shrinker, without a look at any other. Its [`Shrinker::count`] runs outside of any walk (K2): it
    /// must be one that neither registers nor walks, as that of a volume is.
    pub(crate) fn status(&self) -> ShrinkerStatus {
        self.entry.status()
    }
}

/// What is known of a shrinker.
#[derive(Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct ShrinkerStatus {
    /// `<name>-<id>`. No two have the same at a time.
    pub name: String,
    /// What it can give back.
    pub count: Count,
    /// Scans that were due and have not been made yet.
    pub deferred: u64,
}

impl Shrinkers {
    /// `coalesce`: how long a grace period of readers that may sleep waits for joiners, where the form has one.
    pub(crate) fn new(form: ShrinkerForm, rcu: &Arc<Domain>, coalesce: Duration) -> Self {
        Self { registry: form.registry(rcu, coalesce), ids: Ids::new(), walks: ThreadMark::new() }
    }

    /// See [`Engine::register_shrinker`](crate::Engine::register_shrinker).
    pub(crate) fn register(&self, shrinker: Box<dyn Shrinker>) -> Result<ShrinkerRegistration, InsideScan> {
        if self.is_walking() {
            return Err(InsideScan);
        }
        let entry = Arc::new(Entry::new(&self.ids, shrinker));
        Ok(ShrinkerRegistration { registered: self.registry.register(&entry), entry })
    }

    /// See [`Engine::unregister_shrinker`](crate::Engine::unregister_shrinker).
    pub(crate) fn unregister(&self, registration: ShrinkerRegistration) -> Result<(), ShrinkerRegistration> {
        if self.is_walking() {
            return Err(registration);
        }
        let ShrinkerRegistration { registered, entry } = registration;
        registered.unregister();
        drop(entry); // on this thread, with the shrinker: R1 of the form in use
        Ok(())
    }

    /// See [`Engine::shrink`](crate::Engine::shrink).
    pub(crate) fn shrink(&self, priority: u32) -> u64 {
        if self.is_walking() {
            return 0;
        }
        let mut freed = 0_u64;
        match self.walk(&mut |entry| freed = freed.saturating_add(entry.shrink(priority.min(LIGHTEST)))) {
            Walk::Whole => freed,
            Walk::GaveWay => freed.max(1),
        }
    }

    /// See [`Engine::shrinkers`](crate::Engine::shrinkers).
    pub(crate) fn status(&self) -> Vec<ShrinkerStatus> {
        let mut found = Vec::new();
        let _ = self.walk(&mut |entry| found.push(entry.status()));
        found
    }

    /// Whether the calling thread is inside a walk.
    pub(crate) fn is_walking(&self) -> bool {
        self.walks.is_set()
    }

    fn walk(&self, visit: &mut dyn FnMut(&Entry)) -> Walk {
        let _inside = self.walks.enter();
        self.registry.walk(visit)
    }
}

//! Shrinkers: each cache that can free objects registers a [`Shrinker`], and a thread that is short of memory walks
//! them.
//!
//! ```text
//! Engine::shrink(priority) --> `registry`: each shrinker that is registered --> `slab`: count, decide, scan in batches
//! ```
//! `shrinker` defines the interface. `registry` allows registration during walks, in three forms. `slab` decides how
//! many objects of each are scanned. `entry` is a registered shrinker and its number.
//!
//! # Invariants
//! K1. After [`Engine::unregister_shrinker`](crate::Engine::unregister_shrinker) has returned, no scan of that shrinker
//!     runs or will run, so its owner may be dropped.
//! K2. From inside a walk nothing is registered or unregistered and no other walk begins, whatever the form. Otherwise
//!     a form could wait for itself, or two walks for each other.
//! K3. A shrinker's answers are bounded before use: an implausible answer affects only the pass it was given in.
//!
//! # Kernel counterpart
//! `mm/shrinker.c`. Differs: no NUMA nodes and no bitmaps for tenants; K2 and K3 hold whatever a shrinker
//! does.

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

/// A registered shrinker, with which it can be unregistered. If this is dropped, the shrinker stays registered until
/// the engine is dropped.
#[must_use = "nothing else can unregister the shrinker"]
pub struct ShrinkerRegistration {
    registered: Box<dyn Registered>,
    entry: Arc<Entry>,
}

impl ShrinkerRegistration {
    /// The status of this shrinker. Its [`Shrinker::count`] runs outside any walk (K2), so it must neither register
    /// shrinkers nor walk; that of a volume complies.
    pub(crate) fn status(&self) -> ShrinkerStatus {
        self.entry.status()
    }
}

/// Status of a shrinker.
#[derive(Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct ShrinkerStatus {
    /// `<name>-<id>`, unique at any time.
    pub name: String,
    /// The number of objects it can free.
    pub count: Count,
    /// Scans that are due but have not been made yet.
    pub deferred: u64,
}

impl Shrinkers {
    /// `coalesce`: how long a grace period of readers that may sleep waits for joiners, if the form has one.
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
        drop(entry); // on this thread, with the shrinker: R1 of the default form
        Ok(())
    }

    /// See [`Engine::shrink`](crate::Engine::shrink).
    pub(crate) fn shrink(&self, priority: u32) -> u64 {
        if self.is_walking() {
            return 0;
        }
        let mut freed = 0_u64;
        match self.walk(&mut |entry| freed = freed.saturating_add(entry.shrink(priority.min(LIGHTEST)))) {
            Walk::Complete => freed,
            Walk::Yielded => freed.max(1),
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

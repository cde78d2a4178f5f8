//! A registered shrinker and its number.
//!
//! # Invariants
//! E1. A number belongs to one entry at a time. It is returned when the entry is dropped, and can no longer be found
//!     then.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use super::{ShrinkControl, Shrinker, ShrinkerStatus, slab};
use crate::lock_order::LEAVES;

/// Number of a shrinker.
pub(super) type ShrinkerId = u32;

/// A shrinker and its deferred work.
pub(super) struct Entry {
    id: Id,
    deferred: AtomicU64,
    shrinker: Box<dyn Shrinker>,
}

/// Allocates the smallest free number. Kernel: `shrinker_debugfs_ida`.
pub(super) struct Ids(Mutex<Free>);

#[derive(Default)]
struct Free {
    /// Numbers from here on were never allocated.
    fresh: ShrinkerId,
    returned: BinaryHeap<Reverse<ShrinkerId>>,
}

/// An allocated number, returned when dropped (E1).
struct Id {
    number: ShrinkerId,
    ids: Arc<Ids>,
}

impl Entry {
    pub(super) fn new(ids: &Arc<Ids>, shrinker: Box<dyn Shrinker>) -> Self {
        Self { id: ids.take(), deferred: AtomicU64::new(0), shrinker }
    }

    pub(super) fn id(&self) -> ShrinkerId {
        self.id.number
    }

    /// Runs one pass. Returns the number of objects freed.
    pub(super) fn shrink(&self, priority: u32) -> u64 {
        slab::do_shrink_slab(&*self.shrinker, &self.deferred, priority)
    }

    pub(super) fn status(&self) -> ShrinkerStatus {
        ShrinkerStatus {
            name: format!("{}-{}", self.shrinker.name(), self.id()),
            count: self.shrinker.count(&ShrinkControl::default()),
            deferred: self.deferred.load(Ordering::Relaxed),
        }
    }
}

impl Ids {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(LEAVES, Free::default())))
    }

    fn take(self: &Arc<Self>) -> Id {
        let mut free = self.0.lock();
        let number = free.returned.pop().map_or(free.fresh, |Reverse(number)| number);
        free.fresh = free.fresh.max(number + 1);
        Id { number, ids: Arc::clone(self) }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        self.ids.0.lock().returned.push(Reverse(self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_reused_once_its_entry_is_dropped() {
        let ids = Ids::new();
        let mut taken: Vec<_> = (0..4).map(|_| ids.take()).collect();
        let numbers = |taken: &[Id]| taken.iter().map(|id| id.number).collect::<Vec<_>>();
        assert_eq!(numbers(&taken), [0, 1, 2, 3]);
        taken.remove(2);
        taken.remove(0);
        taken.extend((0..3).map(|_| ids.take()));
        assert_eq!(numbers(&taken), [1, 3, 0, 2, 4]);
    }
}

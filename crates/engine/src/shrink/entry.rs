//! What is kept of a shrinker that is registered, and its number.
//!
//! # Invariants
//! E1. A number belongs to one entry at a time, and is given back when that is dropped: nobody can find it any more then.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use super::{ShrinkControl, Shrinker, ShrinkerStatus, slab};
use crate::lock_order::LEAVES;

/// The number of a shrinker.
pub(super) type ShrinkerId = u32;

/// A shrinker, and what is left to do of it.
pub(super) struct Entry {
    id: Id,
    deferred: AtomicU64,
    shrinker: Box<dyn Shrinker>,
}

/// Numbers for shrinkers: the smallest that is free. Kernel: `shrinker_debugfs_ida`.
pub(super) struct Ids(Mutex<Free>);

#[derive(Default)]
struct Free {
    /// Numbers from here on have never been given.
    fresh: ShrinkerId,
    returned: BinaryHeap<Reverse<ShrinkerId>>,
}

/// A number, until dropped (E1).
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

    /// One pass over it; returns how many objects it gave back.
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
    fn a_number_is_given_again_when_its_entry_is_gone() {
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

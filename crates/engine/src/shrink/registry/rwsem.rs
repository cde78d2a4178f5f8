//! The form that holds one lock during whole walks.
//!
//! A slow scan blocks all registering and unregistering, and so mounts and unmounts. While one of them waits, no new
//! walk begins. A walk that finds a writer waiting yields after its current scan. Sem. 10.4.

use std::collections::BTreeMap;

use slackwater_sync::lock::RwLock;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU32, Ordering};

use super::{Entry, Registered, Registry, ShrinkerId, Walk};
use crate::lock_order::SHRINKER_RWSEM;

/// See the [module documentation](self).
pub(super) struct Rwsem(Arc<List>);

struct List {
    entries: RwLock<BTreeMap<ShrinkerId, Arc<Entry>>>,
    /// Threads that hold or wait for the lock to change the list.
    writers: AtomicU32,
}

struct Listed {
    list: Arc<List>,
    id: ShrinkerId,
}

impl Rwsem {
    pub(super) fn new() -> Self {
        let entries = RwLock::new(SHRINKER_RWSEM, BTreeMap::new());
        Self(Arc::new(List { entries, writers: AtomicU32::new(0) }))
    }
}

impl List {
    fn change<R>(&self, change: impl FnOnce(&mut BTreeMap<ShrinkerId, Arc<Entry>>) -> R) -> R {
        self.writers.fetch_add(1, Ordering::Relaxed);
        let result = change(&mut self.entries.write());
        self.writers.fetch_sub(1, Ordering::Relaxed);
        result
    }
}

impl Registry for Rwsem {
    fn register(&self, entry: &Arc<Entry>) -> Box<dyn Registered> {
        self.0.change(|entries| entries.insert(entry.id(), Arc::clone(entry)));
        Box::new(Listed { list: Arc::clone(&self.0), id: entry.id() })
    }

    fn walk(&self, visit: &mut dyn FnMut(&Entry)) -> Walk {
        let Some(entries) = self.0.entries.try_read() else { return Walk::Yielded };
        for entry in entries.values() {
            visit(entry);
            if self.0.writers.load(Ordering::Relaxed) != 0 {
                return Walk::Yielded;
            }
        }
        Walk::Complete
    }
}

impl Registered for Listed {
    fn unregister(self: Box<Self>) {
        let entry = self.list.change(|entries| entries.remove(&self.id));
        drop(entry); // dropping it needs no lock
    }
}

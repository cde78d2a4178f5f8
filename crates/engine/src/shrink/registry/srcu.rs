//! The form in which unregistering waits for a grace period of readers that may sleep.
//!
//! Registering is never blocked, and walks are not blocked by either operation. But each unmount waits for a grace
//! period: for every scan of every shrinker, and for joiners if there is none. It was reverted because of that cost. The list itself is read under a leaf lock here.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use slackwater_sync::lock::Mutex;
use slackwater_sync::rcu::Srcu;
use slackwater_sync::shim::Arc;

use super::{Entry, Registered, Registry, ShrinkerId, Walk};
use crate::lock_order::LEAVES;

/// See the [module documentation](self).
pub(super) struct SrcuList(Arc<List>);

struct List {
    entries: Mutex<BTreeMap<ShrinkerId, Arc<Entry>>>,
    srcu: Srcu,
}

struct Listed {
    list: Arc<List>,
    id: ShrinkerId,
}

impl SrcuList {
    pub(super) fn new(coalesce: Duration) -> Self {
        Self(Arc::new(List { entries: Mutex::new(LEAVES, BTreeMap::new()), srcu: Srcu::new(coalesce) }))
    }
}

impl List {
    fn next(&self, from: Bound<ShrinkerId>) -> Option<Arc<Entry>> {
        self.entries.lock().range((from, Bound::Unbounded)).next().map(|(_, entry)| Arc::clone(entry))
    }
}

impl Registry for SrcuList {
    fn register(&self, entry: &Arc<Entry>) -> Box<dyn Registered> {
        self.0.entries.lock().insert(entry.id(), Arc::clone(entry));
        Box::new(Listed { list: Arc::clone(&self.0), id: entry.id() })
    }

    fn walk(&self, visit: &mut dyn FnMut(&Entry)) -> Walk {
        let _section = self.0.srcu.read_lock();
        let mut from = Bound::Unbounded;
        while let Some(entry) = self.0.next(from) {
            visit(&entry);
            from = Bound::Excluded(entry.id());
        }
        Walk::Complete
    }
}

impl Registered for Listed {
    fn unregister(self: Box<Self>) {
        let entry = self.list.entries.lock().remove(&self.id);
        self.list.srcu.synchronize();
        drop(entry);
    }
}

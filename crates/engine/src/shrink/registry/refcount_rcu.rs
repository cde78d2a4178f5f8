//! The default form: a walk holds a reference to the shrinker it is visiting, and to no other.
//!
//! Registering is never blocked. Unregistering waits for scans of that shrinker alone; the list entry is freed by a
//! callback. [`slackwater_sync::Registry`] is the list and explains why it may be walked without a lock.
//!
//! # Invariants
//! R1. The registrant owns the entry, and the list refers to it weakly. So only a link is left to the callback, and the
//!     shrinker is dropped at once on the thread that unregisters it, with everything it refers to. Otherwise another
//!     thread would free a volume's record, and each mount would begin in cold memory.

use slackwater_sync::lock::Mutex;
use slackwater_sync::rcu::Domain;
use slackwater_sync::shim::{Arc, Weak};
use slackwater_sync::{Registration, Registry as List};

use super::{Entry, Registered, Registry, Walk};
use crate::lock_order::LEAVES;

/// See the [module documentation](self).
pub(super) struct RefcountRcu(Arc<Shared>);

struct Shared {
    list: List<Weak<Entry>>,
    /// Entries that can no longer be unregistered.
    kept: Mutex<Vec<Arc<Entry>>>,
}

struct Counted {
    shared: Arc<Shared>,
    /// `None` once unregistered.
    registered: Option<(Registration<Weak<Entry>>, Arc<Entry>)>,
}

impl RefcountRcu {
    pub(super) fn new(rcu: &Arc<Domain>) -> Self {
        let (list, kept) = (List::new(Arc::clone(rcu)), Mutex::new(LEAVES, Vec::new()));
        Self(Arc::new(Shared { list, kept }))
    }
}

impl Registry for RefcountRcu {
    fn register(&self, entry: &Arc<Entry>) -> Box<dyn Registered> {
        let registration = self.0.list.register(Arc::downgrade(entry));
        Box::new(Counted { shared: Arc::clone(&self.0), registered: Some((registration, Arc::clone(entry))) })
    }

    fn walk(&self, visit: &mut dyn FnMut(&Entry)) -> Walk {
        self.0.list.for_each(|entry| entry.upgrade().iter().for_each(|entry| visit(entry)));
        Walk::Complete
    }
}

impl Registered for Counted {
    fn unregister(mut self: Box<Self>) {
        if let Some((registration, _)) = self.registered.take() {
            let unregistered = self.shared.list.unregister(registration);
            debug_assert!(unregistered.is_ok(), "K2");
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some((_, entry)) = self.registered.take() {
            self.shared.kept.lock().push(entry);
        }
    }
}

//! The form in use: a walk has a reference to the shrinker that it is at, and to no other.
//!
//! Nobody is kept from registering. Unregistering waits for scans of that very shrinker; what it takes apart is freed by a
//! callback. The list, and why it may be walked without a lock, is [`slackwater_sync::Registry`]; sem. 10.5.
//!
//! # Invariants
//! R1. Who registered an entry owns it, and the list refers to it. So what unregistering leaves to the callback is a link:
//!     the shrinker goes at once, on the thread that made it, with what it refers to. A volume's record would be freed by
//!     another thread otherwise, and each mount begin in cold memory.

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
    /// Those that nobody can unregister any more.
    kept: Mutex<Vec<Arc<Entry>>>,
}

struct Counted {
    shared: Arc<Shared>,
    /// `None` when it is unregistered.
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
        Walk::Whole
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

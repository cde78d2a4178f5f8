//! The form in use: a walk has a reference to the shrinker that it is at, and to no other.
//!
//! Nobody is kept from registering. Unregistering waits for scans of that very shrinker; what it takes apart is freed by a
//! callback. The list, and why it may be walked without a lock, is [`slackwater_sync::Registry`]; sem. 10.5.

use slackwater_sync::rcu::Domain;
use slackwater_sync::shim::Arc;
use slackwater_sync::{Registration, Registry as List};

use super::{Entry, Registered, Registry, Walk};

/// See the [module documentation](self).
pub(super) struct RefcountRcu(Arc<List<Entry>>);

struct Counted {
    list: Arc<List<Entry>>,
    registration: Registration<Entry>,
}

impl RefcountRcu {
    pub(super) fn new(rcu: &Arc<Domain>) -> Self {
        Self(Arc::new(List::new(Arc::clone(rcu))))
    }
}

impl Registry for RefcountRcu {
    fn register(&self, entry: Entry) -> Box<dyn Registered> {
        Box::new(Counted { list: Arc::clone(&self.0), registration: self.0.register(entry) })
    }

    fn walk(&self, visit: &mut dyn FnMut(&Entry)) -> Walk {
        self.0.for_each(visit);
        Walk::Whole
    }
}

impl Registered for Counted {
    fn unregister(self: Box<Self>) {
        let unregistered = self.list.unregister(self.registration);
        debug_assert!(unregistered.is_ok(), "K2");
    }
}

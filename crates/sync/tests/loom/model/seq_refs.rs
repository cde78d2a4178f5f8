//! `SeqLock` and `SeqRefs`: lookups in a tree of one object against its unmount.

use std::time::Duration;

use slackwater_sync::lock::Rank;
use slackwater_sync::rcu::{Domain, Options};
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU32, Ordering};
use slackwater_sync::shim::model::RaceCell;
use slackwater_sync::shim::{Arc, thread};
use slackwater_sync::{Put, SeqLock, SeqRefs};

use super::{BOTH, Scenario, start_with};

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "a_lookup_is_counted_or_fails",
        preemptions: Some(3),
        asym: BOTH,
        body: || {
            let tree = Arc::new(Tree::new());
            let reader = tree.start(|tree| tree.read());
            if tree.unmount() {
                assert!(tree.find().is_none(), "found after its unmount");
            }
            reader.join().unwrap();
            tree.check();
        },
    },
    Scenario {
        name: "either_the_user_or_the_lazy_unmount_puts_the_last_reference",
        preemptions: Some(3),
        asym: BOTH,
        body: || {
            let tree = Arc::new(Tree::new());
            tree.pin();
            let user = tree.start(|tree| {
                tree.value.get();
                tree.put();
            });
            tree.detach_lazily();
            user.join().unwrap();
            tree.check();
        },
    },
];

/// A tree of one object.
struct Tree {
    domain: Domain,
    lock: SeqLock<()>,
    refs: SeqRefs,
    /// Whether lookups find it.
    is_linked: AtomicBool,
    /// Read by holders of a reference, and written by the put of the last.
    value: RaceCell<u32>,
    /// How many puts were reported as the last.
    last: AtomicU32,
}

impl Tree {
    fn new() -> Self {
        let tree = Self {
            domain: Domain::with(Options { coalesce: Duration::ZERO, ..Options::default() }),
            lock: SeqLock::new(Rank::new(1, "mount_lock"), ()),
            refs: SeqRefs::new(),
            is_linked: AtomicBool::new(true),
            value: RaceCell::new(0),
            last: AtomicU32::new(0),
        };
        tree.refs.attach(&tree.lock.lock());
        tree
    }

    fn start(self: &Arc<Self>, work: fn(&Self)) -> thread::JoinHandle<()> {
        start_with(self, move |tree| work(tree))
    }

    /// Tries once. `None`: the object is not there, or the attempt would be repeated.
    fn find(&self) -> Option<()> {
        let seen = self.lock.begin();
        let section = self.domain.read_lock();
        let is_found = self.is_linked.load(Ordering::Relaxed) && self.refs.pin(&section, &self.lock, seen);
        is_found.then_some(())
    }

    fn pin(&self) {
        self.find().expect("nothing has changed");
    }

    fn read(&self) {
        if self.find().is_some() {
            assert_eq!(self.value.get(), 0, "used after its end");
            self.put();
        }
    }

    fn put(&self) {
        if self.refs.put(&self.domain, &self.lock) == Put::Last {
            self.clean_up();
        }
    }

    fn clean_up(&self) {
        self.value.set(self.value.get() + 1);
        self.last.fetch_add(1, Ordering::Relaxed);
    }

    /// False if it is in use.
    fn unmount(&self) -> bool {
        {
            let held = self.lock.lock();
            if self.refs.count(&held) != 1 {
                return false;
            }
            self.refs.detach(&held);
            self.is_linked.store(false, Ordering::Relaxed);
        }
        self.domain.synchronize_expedited();
        assert_eq!(self.refs.put_initial(&self.lock), Put::Last, "nobody had it");
        self.clean_up();
        true
    }

    fn detach_lazily(&self) {
        {
            let held = self.lock.lock();
            self.refs.detach(&held);
            self.is_linked.store(false, Ordering::Relaxed);
        }
        self.domain.synchronize_expedited();
        if self.refs.put_initial(&self.lock) == Put::Last {
            self.clean_up();
        }
    }

    /// If the object is detached, exactly one thread has cleaned up.
    fn check(&self) {
        let detached = u32::from(!self.refs.is_attached());
        assert_eq!(self.last.load(Ordering::Relaxed), detached);
    }
}

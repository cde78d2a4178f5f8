//! The conformance suite on a volume whose keys are in memory, and on one that reads each from its store.

use object_store::ObjectStore;
use object_store::memory::InMemory;
use slackwater::backend::{Backend, Call, Limits};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};
use slackwater_testkit::conformance_tests;
use tokio::runtime::Handle;

use crate::backend::Calls;
use crate::contents::{Reader, Writer};
use crate::names;
use crate::nodes::{self, OpenNodes};
use crate::runtime;
use crate::segments::Segments;
use crate::tree::{Place, Tree, TreeOptions};

conformance_tests!(in_memory, |rule| rule.check(Volume::new(Memory::Kept)));
conformance_tests!(from_the_store, |rule| rule.check(Volume::new(Memory::Forgotten)));

/// An empty volume on a store in memory.
struct Volume {
    calls: Calls,
    tree: Arc<Tree>,
    memory: Memory,
    submitted: AtomicU64,
    runtime: Handle,
}

/// The fate of the values in memory before each call.
#[derive(Copy, Clone, Eq, PartialEq)]
enum Memory {
    Kept,
    /// Everything is committed and forgotten, so that the call finds nothing in memory. After [`MANY`] calls only
    /// before some: a few rules make thousands.
    Forgotten,
}

const MANY: u64 = 500;

impl Volume {
    fn new(memory: Memory) -> Self {
        let runtime = runtime::handle().expect("threads");
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let place = Place::alone(Arc::clone(&store));
        let options = TreeOptions::by_hand();
        let tree = runtime.block_on(async {
            let (tree, _) = Tree::open(place, options).await.expect("opens");
            let made = tree.run(|view| {
                names::make_root(view, 0o755, (0, 0));
                Ok(())
            });
            made.await.expect("makes a root");
            tree
        });
        let (nodes, closed) = OpenNodes::new(9, false);
        runtime.spawn(nodes::reap(Arc::clone(&tree), Arc::downgrade(&nodes), closed));
        let segments = Segments::new(store);
        let writer = Writer::new(Arc::clone(&tree), segments.clone(), runtime.clone());
        let reader = Reader::new(Arc::clone(&tree), segments, runtime.clone());
        let calls = Calls::new(Arc::clone(&tree), nodes, reader, Some(writer), runtime.clone());
        Self { calls, tree, memory, submitted: AtomicU64::new(0), runtime }
    }
}

impl Backend for Volume {
    fn submit(&self, call: Call) {
        let number = self.submitted.fetch_add(1, Ordering::Relaxed);
        if self.memory == Memory::Forgotten && (number < MANY || number.is_multiple_of(16)) {
            self.runtime.block_on(self.tree.commit()).expect("commits");
            self.tree.forget();
        }
        self.calls.submit(call);
    }

    fn limits(&self) -> Limits {
        crate::backend::limits()
    }
}

//! Open nodes, and the end of those without a name.
//!
//! # Invariants
//! O1. A node is counted as open from the run of the call that found it, under the tree's mutex, until its last clone is
//!     dropped.
//! O2. A node without a name is freed only while it is not open. Nothing leads to it then, so it is not opened again.
//! O3. Those that an earlier process had open are found by their numbers until [`reap`] begins. It frees under the tree's
//!     mutex, as they are opened, so one that was found is open when `reap` comes to it (O1).
//!
//! # Locks
//! A shard of the counts is a leaf: it is taken under the tree's mutex, and nothing is taken or waited for under it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use slackwater::backend::{Node, NodeKind};
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};
use slackwater_sync::shim::{Arc, Weak};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::sleep;

use crate::format::Inode;
use crate::names;
use crate::tree::Tree;

/// So many that threads rarely meet.
const SHARDS: usize = 16;
/// Orphans that one call lists.
const ORPHANS_PER_CALL: usize = 256;
/// Time after which a failed attempt to free a node is repeated.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The open nodes of a volume.
pub(crate) struct OpenNodes {
    dev: u64,
    /// Whether a node without a name can be opened by its number (O3).
    finds_nameless: AtomicBool,
    counts: [Mutex<HashMap<u64, Openness>>; SHARDS],
    /// Where nodes go that were closed and may have no name.
    closed: UnboundedSender<u64>,
}

#[derive(Default)]
struct Openness {
    count: u32,
    may_be_nameless: bool,
}

/// The value of a [`Node`].
struct Opened {
    nodes: Arc<OpenNodes>,
    ino: u64,
    is_file: bool,
}

/// A node that stays open while a call runs.
pub(crate) struct Held {
    ino: u64,
    _node: Node,
}

impl Held {
    /// The node's number.
    pub(crate) fn ino(&self) -> u64 {
        self.ino
    }
}

impl OpenNodes {
    /// The open nodes of the volume `dev`, none yet. The receiver is for [`reap`]. With `finds_nameless`, nodes without
    /// a name are found until that begins.
    pub(crate) fn new(dev: u64, finds_nameless: bool) -> (Arc<Self>, UnboundedReceiver<u64>) {
        let (closed, receiver) = unbounded_channel();
        let finds_nameless = AtomicBool::new(finds_nameless);
        (Arc::new(Self { dev, finds_nameless, counts: Default::default(), closed }), receiver)
    }

    /// Whether a node without a name can be opened by its number, in a run of the tree (O3).
    pub(crate) fn finds_nameless(&self) -> bool {
        // The mutex of the tree orders it with the first run of `reap`.
        self.finds_nameless.load(Ordering::Relaxed)
    }

    /// The number of the volume.
    pub(crate) fn dev(&self) -> u64 {
        self.dev
    }

    /// Opens a node. The call that found it does so in its run (O1).
    pub(crate) fn open(self: &Arc<Self>, ino: u64, inode: &Inode) -> Node {
        let mut counts = self.shard(ino).lock();
        let openness = counts.entry(ino).or_default();
        openness.count += 1;
        openness.may_be_nameless |= inode.nlink == 0;
        drop(counts);
        let is_file = NodeKind::of_mode(inode.mode) == NodeKind::File;
        Node::new(names::id_of(self.dev, ino), Opened { nodes: Arc::clone(self), ino, is_file })
    }

    /// Keeps an open node open for a call.
    ///
    /// # Errors
    /// `Invalid` if another backend or volume opened it.
    pub(crate) fn hold(self: &Arc<Self>, node: Node) -> Result<Held, BackendError> {
        Ok(Held { ino: self.opened(&node)?.ino, _node: node })
    }

    /// The number of an open file.
    ///
    /// # Errors
    /// `Invalid` if another backend or volume opened it, or it is not a regular file.
    pub(crate) fn file(self: &Arc<Self>, node: &Node) -> Result<u64, BackendError> {
        let opened = self.opened(node)?;
        if opened.is_file { Ok(opened.ino) } else { Err(ErrorKind::Invalid.into()) }
    }

    fn opened<'a>(self: &Arc<Self>, node: &'a Node) -> Result<&'a Opened, BackendError> {
        let opened = node.get::<Opened>().filter(|opened| Arc::ptr_eq(&opened.nodes, self));
        opened.ok_or_else(|| ErrorKind::Invalid.into())
    }

    fn is_open(&self, ino: u64) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, Openness>> {
        &self.counts[ino as usize % SHARDS]
    }

    fn close(&self, ino: u64) {
        let mut counts = self.shard(ino).lock();
        let Entry::Occupied(mut entry) = counts.entry(ino) else { return };
        entry.get_mut().count -= 1;
        if entry.get().count == 0 && entry.remove().may_be_nameless {
            // Without a receiver the volume is closed, and the next process frees the node.
            let _ = self.closed.send(ino);
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.nodes.close(self.ino);
    }
}

/// Frees nodes without a name: those that earlier processes left, and then each that is closed. Ends with the volume.
pub(crate) async fn reap(tree: Arc<Tree>, nodes: Weak<OpenNodes>, mut closed: UnboundedReceiver<u64>) {
    if let Some(nodes) = nodes.upgrade() {
        nodes.finds_nameless.store(false, Ordering::Relaxed);
    }
    let mut waiting = VecDeque::new();
    let mut next = Some(0);
    loop {
        let found = match next {
            Some(first) => tree.run(move |view| names::orphans(view, first, ORPHANS_PER_CALL)).await,
            None => Ok(Vec::new()),
        };
        match found {
            Ok(found) => {
                next = found.last().and_then(|last| last.checked_add(1));
                waiting.extend(found);
            }
            Err(error) if is_closed(&error) => return,
            Err(error) => postpone("list nodes without a name", None, &error).await,
        }
        while let Ok(ino) = closed.try_recv() {
            waiting.push_back(ino);
        }
        let Some(ino) = waiting.pop_front() else {
            if next.is_none() {
                let Some(ino) = closed.recv().await else { return };
                waiting.push_back(ino);
            }
            continue;
        };
        match free(&tree, &nodes, ino).await {
            Ok(()) => {}
            Err(error) if is_closed(&error) => return,
            Err(error) => {
                waiting.push_back(ino);
                postpone("free a node without a name", Some(ino), &error).await;
            }
        }
    }
}

/// Frees a node if it has no name and is not open (O2).
async fn free(tree: &Arc<Tree>, nodes: &Weak<OpenNodes>, ino: u64) -> Result<(), BackendError> {
    loop {
        let nodes = Weak::clone(nodes);
        let is_done = tree.run(move |view| {
            let is_open = nodes.upgrade().is_some_and(|nodes| nodes.is_open(ino));
            if is_open { Ok(true) } else { names::free_step(view, ino) }
        });
        if is_done.await? {
            return Ok(());
        }
    }
}

/// Whether the tree will take no changes any more.
fn is_closed(error: &BackendError) -> bool {
    matches!(error.kind(), ErrorKind::NotMounted | ErrorKind::Stale)
}

async fn postpone(what: &str, ino: Option<u64>, error: &BackendError) {
    tracing::warn!(target: "slackwater::object", ino, %error, "cannot {what}; will try again");
    sleep(RETRY_AFTER).await;
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use slackwater::backend::Removal;

    use super::*;
    use crate::format::ROOT;
    use crate::runtime;
    use crate::tree::{Place, TreeOptions};

    /// A volume with the file `file`.
    struct Volume {
        tree: Arc<Tree>,
        ino: u64,
        inode: Inode,
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        runtime::handle().expect("threads").block_on(future)
    }

    impl Volume {
        async fn new() -> Self {
            let place = Place::alone(Arc::new(InMemory::new()));
            let (tree, _) = Tree::open(place, TreeOptions::by_hand()).await.expect("opens");
            let made = tree.run(|view| {
                names::make_root(view, 0o755, (0, 0));
                let what = slackwater::backend::NewNode::File;
                names::make(view, ROOT, "file".as_ref(), &what, 0o644, None)
            });
            let (ino, inode) = made.await.expect("nothing fails");
            Self { tree, ino, inode }
        }

        /// Removes the file, and returns its inode.
        async fn remove(&self) -> Inode {
            let removed = self.tree.run(|view| names::remove(view, ROOT, "file".as_ref(), Removal::File));
            removed.await.expect("nothing fails").1
        }

        async fn exists(&self) -> bool {
            self.tree.run(|view| names::inode(view, self.ino)).await.is_ok()
        }
    }

    #[test]
    fn a_removed_file_is_freed_when_it_is_closed() {
        block_on(async {
            let volume = Volume::new().await;
            let (nodes, closed) = OpenNodes::new(1, false);
            let node = nodes.open(volume.ino, &volume.inode);
            let removed = volume.remove().await;
            drop(nodes.open(volume.ino, &removed));
            let weak = Arc::downgrade(&nodes);
            free(&volume.tree, &weak, volume.ino).await.expect("nothing fails");
            assert!(volume.exists().await, "it is open (O2)");
            drop((node, nodes));
            reap(Arc::clone(&volume.tree), weak, closed).await;
            assert!(!volume.exists().await);
        });
    }

    #[test]
    fn a_node_without_a_name_is_found_by_its_number_until_they_are_freed() {
        block_on(async {
            let volume = Volume::new().await;
            volume.remove().await;
            let reopened = async |nodes: &Arc<OpenNodes>, nameless: bool| {
                let (ino, opening) = (volume.ino, Arc::clone(nodes));
                let found = volume.tree.run(move |view| {
                    let handle = slackwater::backend::FileHandle::from_number(ino);
                    let nameless = nameless && opening.finds_nameless();
                    let (ino, inode) = names::reopen(view, opening.dev(), &handle, None, nameless)?;
                    Ok(opening.open(ino, &inode))
                });
                found.await.map_err(|error| error.kind())
            };
            let (nodes, closed) = OpenNodes::new(1, true);
            assert_eq!(reopened(&nodes, false).await.err(), Some(ErrorKind::Stale));
            let node = reopened(&nodes, true).await.expect("an earlier process had it open");
            let reaping = tokio::spawn(reap(Arc::clone(&volume.tree), Arc::downgrade(&nodes), closed));
            while nodes.finds_nameless() {
                tokio::task::yield_now().await;
            }
            assert_eq!(reopened(&nodes, true).await.err(), Some(ErrorKind::Stale));
            assert!(volume.exists().await, "it is open (O2)");
            drop((node, nodes));
            reaping.await.expect("ends with the nodes");
            assert!(!volume.exists().await);
        });
    }

    #[test]
    fn a_file_with_a_name_outlives_its_last_node() {
        block_on(async {
            let volume = Volume::new().await;
            let (nodes, closed) = OpenNodes::new(1, false);
            let nameless = Inode { nlink: 0, ..volume.inode.clone() };
            drop(nodes.open(volume.ino, &nameless)); // as if it had got its name since
            let weak = Arc::downgrade(&nodes);
            drop(nodes);
            reap(Arc::clone(&volume.tree), weak, closed).await;
            assert!(volume.exists().await);
        });
    }

    #[test]
    fn what_earlier_processes_left_is_freed() {
        block_on(async {
            let volume = Volume::new().await;
            volume.remove().await;
            for _ in 0..2 * ORPHANS_PER_CALL {
                let made = volume.tree.run(|view| names::tmpfile(view, ROOT, 0o600, None)).await;
                made.expect("nothing fails");
            }
            let (nodes, closed) = OpenNodes::new(1, false);
            let weak = Arc::downgrade(&nodes);
            drop(nodes);
            reap(Arc::clone(&volume.tree), weak, closed).await;
            assert!(!volume.exists().await);
            assert_eq!(volume.tree.counters().inodes, 1, "the root");
        });
    }
}

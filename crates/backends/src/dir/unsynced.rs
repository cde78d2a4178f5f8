//! The nodes that have changed since the volume was last synced, on file systems where `syncfs` does not cover them.
//!
//! `syncfs` asks a file system to make everything durable. FUSE, 9p and SMB keep their data on a server, and pass on a
//! sync of a single file only. There, every file that was written or changed since the last sync is remembered, and
//! every directory whose names have changed, and a sync of the volume syncs each of them.
//!
//! # Invariants
//! U1. A node is listed from before its change is answered until a sync of it that began later has succeeded.
//! U2. One sync of the volume runs at a time; otherwise the second would answer while the first still holds its nodes.
//! U3. At most [`NODES_MAX`] nodes are kept, with their descriptors, and no further ones while descriptors are short: a
//!     change beyond that is synced at once.
//!
//! # Lock order
//! `syncing`, then `nodes`; `nodes` is not held across a system call.

use std::collections::HashMap;

use slackwater::backend::{Node, NodeSupply};
use slackwater::{BackendError, NodeId};
use slackwater_sync::lock::{Mutex, Rank};

/// Nodes that are kept open for the next sync.
const NODES_MAX: usize = 4096;

/// Held while files are synced: below every lock of the engine and of the backends.
const SYNCING: Rank = Rank::new(5, "volume sync");

/// See the [module documentation](self).
pub(super) struct Unsynced {
    syncing: Mutex<()>,
    nodes: Mutex<HashMap<NodeId, Node>>,
}

impl Unsynced {
    pub(super) fn new() -> Self {
        Self { syncing: Mutex::new(SYNCING, ()), nodes: Mutex::new(crate::BACKEND, HashMap::new()) }
    }

    /// Remembers that `node` has changed (U1). False if the list is full: the caller syncs it (U3).
    pub(super) fn note(&self, node: &Node, supply: NodeSupply) -> bool {
        let mut nodes = self.nodes.lock();
        let may_keep = (nodes.len() < NODES_MAX && supply == NodeSupply::Enough) || nodes.contains_key(&node.id());
        if may_keep {
            nodes.entry(node.id()).or_insert_with(|| node.clone());
        }
        may_keep
    }

    /// Calls `sync` for every node that has changed. Nodes whose sync fails are kept for the next time.
    ///
    /// # Errors
    /// The first error of `sync`.
    pub(super) fn sync_all(&self, sync: impl Fn(&Node) -> Result<(), BackendError>) -> Result<(), BackendError> {
        let _one = self.syncing.lock(); // U2
        let changed = std::mem::take(&mut *self.nodes.lock());
        let mut result = Ok(());
        for node in changed.into_values() {
            if let Err(error) = sync(&node) {
                result = result.and(Err(error));
                // Even beyond U3, since its sync failed and it must not be forgotten.
                self.nodes.lock().insert(node.id(), node);
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use slackwater::ErrorKind;

    use super::*;

    fn node(ino: u64) -> Node {
        Node::new(NodeId { dev: 1, ino, generation: 0 }, ())
    }

    #[test]
    fn each_change_is_synced_once_and_until_it_succeeds() {
        let unsynced = Unsynced::new();
        assert!([1, 2, 1].iter().all(|ino| unsynced.note(&node(*ino), NodeSupply::Enough)));
        let seen = RefCell::new(Vec::new());
        let sync = |fails: u64| {
            seen.borrow_mut().clear();
            let result = unsynced.sync_all(|node| {
                seen.borrow_mut().push(node.id().ino);
                if node.id().ino == fails { Err(ErrorKind::Io.into()) } else { Ok(()) }
            });
            seen.borrow_mut().sort_unstable();
            (seen.borrow().clone(), result.map_err(|error| error.kind()))
        };
        assert_eq!(sync(2), (vec![1, 2], Err(ErrorKind::Io)));
        assert_eq!(sync(0), (vec![2], Ok(())));
        assert_eq!(sync(0), (vec![], Ok(())));
    }

    #[test]
    fn a_change_beyond_the_limit_is_not_listed() {
        let unsynced = Unsynced::new();
        assert!((0..NODES_MAX as u64).all(|ino| unsynced.note(&node(ino), NodeSupply::Enough)));
        assert!(!unsynced.note(&node(u64::MAX), NodeSupply::Enough) && unsynced.note(&node(0), NodeSupply::Enough));
    }
}

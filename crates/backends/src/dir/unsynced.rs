//! The nodes that have changed and have not been synced since.
//!
//! A sync of the volume syncs each of them. FUSE, 9p and SMB keep their data on a server, and pass on a sync of a single
//! file only. A local file system has `syncfs`, but that also waits for everything that other programs have written
//! through the kernel's page cache: for seconds, beside one that writes all the time. It is used there if more than
//! [`FEW`] nodes have changed, since it takes less time than as many syncs, and for nodes that cannot be synced alone.
//!
//! # Invariants
//! U1. A node is listed from before its change is answered until a sync of it that began later has succeeded. Where
//!     `syncfs` covers everything, `is_partial` may stand for any number of nodes.
//! U2. One sync of the volume runs at a time; otherwise the second would answer while the first still holds its nodes.
//! U3. Where `syncfs` covers nothing, at most [`NODES_MAX`] nodes are kept, with their descriptors, and no further ones
//!     while descriptors are short: a change beyond that is synced at once.
//! U4. Changes that an earlier process has made may not be durable. Unless the caller knows that they are, the first sync
//!     of the volume calls `syncfs`.
//!
//! # Lock order
//! `syncing`, then `state`. `state` is held across no system call that may wait.

use std::collections::HashMap;

use slackwater::backend::{Node, NodeSupply};
use slackwater::{BackendError, NodeId};
use slackwater_sync::lock::{Mutex, Rank};

use super::file_system::Syncs;

/// Nodes that are synced one by one where `syncfs` is possible. Each takes about as long as a flush of the device.
const FEW: usize = 16;
/// Nodes that are kept open for the next sync where it is not.
const NODES_MAX: usize = 4096;

/// Held while files are synced: below every lock of the engine and of the backends.
const SYNCING: Rank = Rank::new(5, "volume sync");

/// See the [module documentation](self).
pub(super) struct Unsynced {
    syncs: Syncs,
    syncing: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nodes: HashMap<NodeId, Listed>,
    /// More has changed than is listed.
    is_partial: bool,
    /// The number of the last change that was noted.
    changes: u64,
}

/// A node that has changed.
struct Listed {
    node: Node,
    last_change: u64,
}

impl State {
    /// Notes a change of a node that is listed. Returns whether it is.
    fn note_again(&mut self, node: NodeId) -> bool {
        let Some(listed) = self.nodes.get_mut(&node) else { return false };
        self.changes += 1;
        listed.last_change = self.changes;
        true
    }

    fn list(&mut self, node: Node) {
        self.changes += 1;
        self.nodes.insert(node.id(), Listed { node, last_change: self.changes });
    }
}

impl Unsynced {
    pub(super) fn new(syncs: Syncs) -> Self {
        // U4.
        let state = State { is_partial: syncs != Syncs::Node, ..State::default() };
        Self { syncs, syncing: Mutex::new(SYNCING, ()), state: Mutex::new(crate::BACKEND, state) }
    }

    /// Earlier changes are durable (U4). Called before the first change.
    pub(super) fn assume_synced(&self) {
        self.state.lock().is_partial = false;
    }

    /// Remembers that `node` has changed (U1). False if the list is full: the caller syncs it (U3).
    pub(super) fn note(&self, node: &Node, supply: NodeSupply) -> bool {
        let mut state = self.state.lock();
        if state.is_partial || state.note_again(node.id()) {
            return true;
        }
        let nodes_max = match self.syncs {
            Syncs::Node => NODES_MAX,
            Syncs::NodeOrAll => FEW,
            Syncs::All => 0,
        };
        if state.nodes.len() < nodes_max && supply == NodeSupply::Enough {
            state.list(node.clone());
            return true;
        }
        if self.syncs == Syncs::Node {
            return false;
        }
        state.is_partial = true;
        let listed = std::mem::take(&mut state.nodes);
        drop(state);
        drop(listed); // closes descriptors
        true
    }

    /// Forgets listed nodes, whose open descriptors would keep the space of removed files. If a node gets a name again, it is
    /// noted after that, and the lock is held meanwhile: so the note comes second, or `is_nameless` sees the name.
    pub(super) fn forget(&self, is_nameless: impl Fn(&Node) -> bool) {
        if self.syncs != Syncs::NodeOrAll {
            return; // the list may be long, and a server slow
        }
        let mut state = self.state.lock();
        let forgotten: Vec<_> = state.nodes.extract_if(|_, listed| is_nameless(&listed.node)).collect();
        drop(state);
        drop(forgotten); // closes descriptors
    }

    /// Makes one node durable as a whole by `sync`. Then the next sync of the volume need not sync it again.
    ///
    /// # Errors
    /// That of `sync`: the node stays listed.
    ///
    /// # Blocking
    /// For `sync`.
    pub(super) fn sync_alone<E>(&self, node: NodeId, sync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let covered = self.state.lock().nodes.get(&node).map(|listed| listed.last_change);
        sync()?;
        let mut state = self.state.lock();
        // U1: a change that was noted meanwhile may have come too late for `sync`.
        let is_durable = state.nodes.get(&node).is_some_and(|listed| Some(listed.last_change) == covered);
        let durable = if is_durable { state.nodes.remove(&node) } else { None };
        drop(state);
        drop(durable); // closes descriptors
        Ok(())
    }

    /// Makes durable everything that has changed: calls `sync` for every node that is listed. It returns whether the node
    /// could be synced alone. Calls `sync_all` where that is not enough, and also where it covers nothing, since it then
    /// reports errors. Nodes whose sync fails are kept for the next time.
    ///
    /// # Errors
    /// The first error of `sync`, or else that of `sync_all`.
    ///
    /// # Blocking
    /// For both.
    pub(super) fn sync(
        &self,
        sync: impl Fn(&Node) -> Result<bool, BackendError>,
        sync_all: impl Fn() -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let _one = self.syncing.lock(); // U2
        let (nodes, is_partial) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.nodes), std::mem::take(&mut state.is_partial))
        };
        let mut needs_all = is_partial || self.syncs == Syncs::Node;
        let mut result = Ok(());
        // `sync_all` covers the listed nodes too.
        let alone = if needs_all && self.syncs != Syncs::Node { HashMap::new() } else { nodes };
        for Listed { node, .. } in alone.into_values() {
            match sync(&node) {
                Ok(is_synced) => needs_all |= !is_synced,
                Err(error) => {
                    result = result.and(Err(error));
                    // Even beyond U3, since its sync failed and it must not be forgotten.
                    self.state.lock().list(node);
                }
            }
        }
        if needs_all {
            let all = sync_all();
            self.state.lock().is_partial |= all.is_err() && self.syncs != Syncs::Node;
            result = result.and(all);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use slackwater::ErrorKind;

    use super::*;

    fn node(ino: u64) -> Node {
        Node::new(NodeId { dev: 1, ino, generation: 0 }, ())
    }

    /// A sync in which the node `fails` fails, and `lonely` cannot be synced alone. Returns the nodes that were synced,
    /// whether the whole file system was, and the outcome.
    fn sync(unsynced: &Unsynced, fails: u64, lonely: u64) -> (Vec<u64>, bool, Result<(), ErrorKind>) {
        let (seen, all) = (RefCell::new(Vec::new()), Cell::new(false));
        let one = |node: &Node| {
            seen.borrow_mut().push(node.id().ino);
            if node.id().ino == fails { Err(ErrorKind::Io.into()) } else { Ok(node.id().ino != lonely) }
        };
        let result = unsynced.sync(one, || {
            all.set(true);
            if fails == ALL { Err(ErrorKind::NoSpace.into()) } else { Ok(()) }
        });
        seen.borrow_mut().sort_unstable();
        (seen.into_inner(), all.get(), result.map_err(|error| error.kind()))
    }

    /// The value for changes of no node.
    const NONE: u64 = 0;
    const ALL: u64 = u64::MAX;

    fn note(unsynced: &Unsynced, numbers: impl IntoIterator<Item = u64>) -> bool {
        numbers.into_iter().all(|ino| unsynced.note(&node(ino), NodeSupply::Enough))
    }

    /// On a local file system, after a mount that made everything durable.
    fn local() -> Unsynced {
        let unsynced = Unsynced::new(Syncs::NodeOrAll);
        unsynced.assume_synced();
        unsynced
    }

    #[test]
    fn each_change_is_synced_once_and_until_it_succeeds() {
        let unsynced = Unsynced::new(Syncs::Node);
        assert!(note(&unsynced, [1, 2, 1]));
        assert_eq!(sync(&unsynced, 2, NONE), (vec![1, 2], true, Err(ErrorKind::Io)));
        assert_eq!(sync(&unsynced, NONE, 2), (vec![2], true, Ok(())));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![], true, Ok(())));
    }

    #[test]
    fn a_change_beyond_the_limit_is_not_listed() {
        let unsynced = Unsynced::new(Syncs::Node);
        assert!(note(&unsynced, 1..=NODES_MAX as u64));
        assert!(!note(&unsynced, [ALL]) && note(&unsynced, [1]));
    }

    #[test]
    fn a_few_changes_of_a_local_file_system_are_synced_alone() {
        let unsynced = local();
        assert!(note(&unsynced, 1..=FEW as u64));
        assert_eq!(sync(&unsynced, 3, NONE), ((1..=FEW as u64).collect(), false, Err(ErrorKind::Io)));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![3], false, Ok(())));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![], false, Ok(())));
    }

    #[test]
    fn a_node_that_was_synced_by_itself_is_not_synced_again() {
        let unsynced = local();
        let alone = |ino, meanwhile: &[u64], outcome: Result<(), ErrorKind>| {
            let synced = unsynced.sync_alone(node(ino).id(), || {
                assert!(note(&unsynced, meanwhile.iter().copied()));
                outcome
            });
            assert_eq!(synced, outcome);
        };
        assert!(note(&unsynced, [1, 2, 3, 4]));
        alone(1, &[], Ok(()));
        alone(2, &[2], Ok(()));
        alone(3, &[], Err(ErrorKind::Io));
        alone(5, &[5], Ok(()));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![2, 3, 4, 5], false, Ok(())));
        assert!(note(&unsynced, [1]));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![1], false, Ok(())), "a later change");
    }

    /// The sync of the volume takes the list and gives the node back, since its own attempt fails.
    #[test]
    fn a_node_that_was_synced_by_itself_before_a_change_stays_listed() {
        let unsynced = local();
        assert!(note(&unsynced, [1]));
        let synced = unsynced.sync_alone(node(1).id(), || {
            assert!(note(&unsynced, [1]));
            sync(&unsynced, 1, NONE).2.unwrap_err();
            Ok::<_, ErrorKind>(())
        });
        assert_eq!(synced, Ok(()));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![1], false, Ok(())));
    }

    #[test]
    fn a_removed_file_is_forgotten_and_listed_again_with_a_new_name() {
        let unsynced = local();
        assert!(note(&unsynced, [1, 2]));
        unsynced.forget(|node| node.id().ino == 1);
        assert!(note(&unsynced, [3]));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![2, 3], false, Ok(())));
        assert!(note(&unsynced, [1]));
        unsynced.forget(|_| true);
        assert!(note(&unsynced, [1]));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![1], false, Ok(())));
    }

    #[test]
    fn many_changes_are_synced_with_the_file_system_and_until_that_succeeds() {
        let unsynced = local();
        assert!(note(&unsynced, 1..=FEW as u64 + 1));
        assert_eq!(sync(&unsynced, ALL, NONE), (vec![], true, Err(ErrorKind::NoSpace)));
        assert!(note(&unsynced, [1]));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![], true, Ok(())));
        assert!(note(&unsynced, [1]));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![1], false, Ok(())));
        assert!(unsynced.note(&node(1), NodeSupply::Short));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![], true, Ok(())), "descriptors were short");
    }

    #[test]
    fn a_node_that_cannot_be_synced_alone_is_synced_with_the_file_system() {
        let unsynced = local();
        assert!(note(&unsynced, [1, 2]));
        assert_eq!(sync(&unsynced, NONE, 2), (vec![1, 2], true, Ok(())));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![], false, Ok(())));
        let all_only = Unsynced::new(Syncs::All);
        all_only.assume_synced();
        for _ in 0..2 {
            assert!(note(&all_only, [1]));
            assert_eq!(sync(&all_only, NONE, NONE), (vec![], true, Ok(())));
        }
    }

    /// U4.
    #[test]
    fn the_first_sync_covers_changes_of_an_earlier_process() {
        let unsynced = Unsynced::new(Syncs::NodeOrAll);
        assert!(note(&unsynced, [1]));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![], true, Ok(())));
        assert!(note(&unsynced, [1]));
        assert_eq!(sync(&unsynced, NONE, NONE), (vec![1], false, Ok(())));
    }
}

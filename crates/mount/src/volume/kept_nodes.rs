//! Nodes that a later process finds by descriptors, because the backend's handles mean nothing to it.
//!
//! # Invariants
//! N1. Before the kernel learns the number of a node, the keeper has been sent a descriptor of it. `is_kept` says so. The
//!     thread that resets it tells the keeper, when the kernel has forgotten the node.
//! N2. The keeper has at most [`nodes_max`](crate::takeover::Keeping) of them. Beyond that, it drops the oldest that are
//!     neither directories nor open. A later process answers for those that they are stale, until a program looks their
//!     names up again. A file that is opened is kept again.
//! N3. A FORGET that a process has read and not carried out is lost when it dies. The keeper then has a descriptor that
//!     nothing needs, until N2 drops it.

use std::collections::VecDeque;

use slackwater::InodeRef;
use slackwater_fuse::Forgets;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::takeover::Keeping;
use crate::volume::Volume;
use crate::volume::nodes::Node;

/// Divisor of the limit that gives the number of nodes dropped beyond the excess, when too many are kept.
const DROPPED_SHARE: usize = 16;

impl Volume {
    /// The node of an inode, with one more lookup that an answer tells the kernel of. `None` for the root.
    pub(super) fn know(&self, inode: InodeRef) -> Option<Arc<Node>> {
        let node = self.nodes.look_up(inode)?;
        self.keep_node(&node);
        Some(node)
    }

    /// Sends a descriptor of a node to the keeper, if the keeper does not have one and needs it (N1).
    ///
    /// # Blocking
    /// For the backend, if it has closed the node meanwhile.
    pub(super) fn keep_node(&self, node: &Node) {
        let Some(keeping) = self.keeping.as_ref().filter(|keeping| keeping.keeps_nodes()) else { return };
        if node.is_root() || node.is_kept.load(Ordering::Acquire) {
            return;
        }
        let descriptor = match self.sb.descriptor(&node.inode) {
            Ok(Some(descriptor)) => descriptor,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%error, node = node.id(), "a node would not outlive this process");
                return;
            }
        };
        // Another thread that finds the node waits here until it was sent.
        let mut kept = self.kept_nodes.lock();
        if !node.is_kept.load(Ordering::Acquire) {
            keeping.keeper.keep_node(node.id(), descriptor);
            node.is_kept.store(true, Ordering::Release);
            kept.push_back(node.id());
            self.bound_kept_nodes(keeping, &mut kept);
        }
    }

    /// N2.
    pub(super) fn bound_kept_nodes(&self, keeping: &Keeping, kept: &mut VecDeque<u64>) {
        if kept.len() <= keeping.nodes_max {
            return;
        }
        kept.retain(|number| self.nodes.is_kept(*number));
        let most = keeping.nodes_max - keeping.nodes_max / DROPPED_SHARE;
        let mut excess = kept.len().saturating_sub(most);
        let mut dropped = Vec::new();
        for unless_used in [true, false] {
            kept.retain(|number| {
                let is_dropped = excess > 0 && self.nodes.unkeep(*number, unless_used);
                if is_dropped {
                    excess -= 1;
                    dropped.push(*number);
                }
                !is_dropped
            });
            // Those in use are kept as long as there is space.
            excess = kept.len().saturating_sub(keeping.nodes_max);
        }
        keeping.keeper.release_nodes(&dropped);
    }

    /// FORGET of one node, whose lookups are not told to the kernel after all.
    pub(super) fn forget(&self, number: u64, lookups: u64) {
        if self.forget_node(number, lookups) {
            self.release_forgotten(&[number]);
        }
    }

    /// Returns whether the keeper has a descriptor that nothing needs any more.
    fn forget_node(&self, number: u64, lookups: u64) -> bool {
        let left = self.nodes.forget(number, lookups);
        if left.is_remembered {
            self.forget_remembered(number);
        }
        left.is_kept
    }

    /// Tells the keeper that nothing needs the descriptors of these nodes any more.
    fn release_forgotten(&self, numbers: &[u64]) {
        match &self.keeping {
            Some(keeping) if keeping.keeps_nodes() => keeping.keeper.release_nodes(numbers),
            Some(keeping) => numbers.iter().for_each(|number| keeping.keeper.release(*number)),
            None => {}
        }
    }

    /// FORGET and BATCH_FORGET.
    pub(super) fn forget_all(&self, forgets: Forgets<'_>) {
        let released: Vec<_> =
            forgets.filter(|(node, lookups)| self.forget_node(*node, *lookups)).map(|(node, _)| node).collect();
        if !released.is_empty() {
            self.release_forgotten(&released);
        }
    }
}

//! Idle backend nodes: a limited number stays open, and fewer while the backend is short of node space.
//!
//! A front end that serves names to a kernel holds a reference to each inode that the kernel knows, possibly all of a
//! volume, and a program may have any number of files open. Each open node costs descriptors. So the nodes of clean
//! inodes are released, least recently used first with a second chance, and reopened by handle when needed. Even an
//! open file's node may be released, unless the backend does not [reopen](crate::backend::Limits::reopens) nodes.
//!
//! # Invariants
//! I1. A clean inode with an open node is on the list once, except an open file on a backend that does not reopen
//!     nodes. Other inodes may be on it and are dropped when they reach its head; closing or cleaning them lists them
//!     again.
//! I2. The root's node is never released. Nor is that of a file without a name that is held open (O1 of
//!     [`openers`](crate::inode)), because it could not be found again. Other nodes of files without a name are
//!     released while nodes are short.
//! I3. A node is not released while its inode has a record in the arena: from before it is dirtied until it is clean. A
//!     caller that takes the record sets the inode's node under the same lock.
//! I4. The thread that releases a node of another volume counts as a flusher there, so an unmount waits until the node
//!     is closed (Q1 of [`quiesce`](super::quiesce)).
//!
//! # Lock order
//! The list is a leaf: no inode is examined under it.
//!
//! # Kernel counterpart
//! The dentry LRU with `d_lru`, shrunk by `shrink_dentry_list`.

use std::collections::VecDeque;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::NodeSupply;
use crate::engine::Shared;
use crate::inode::{IdleNode, Inode};
use crate::lock_order::LEAVES;
use crate::super_block::SuperBlock;
use crate::units::NodeId;

/// Inodes examined for each one listed, so that the list shrinks faster than it grows.
const SCANNED_PER_LISTED: usize = 8;
/// Nodes that a volume keeps however short its backend is, so that a node just opened is not released at once.
const KEPT_MIN: usize = 16;

/// How many releasable nodes a volume has left.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Left {
    /// The backend is short of node space, and only the nodes that the volume may keep are left.
    Few,
    /// More are left, or the backend is not short.
    Enough,
}

/// See the [module documentation](self).
pub(crate) struct IdleNodes(Mutex<VecDeque<NodeId>>);

impl IdleNodes {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LEAVES, VecDeque::new()))
    }

    fn pop_over(&self, max: usize) -> Option<NodeId> {
        let mut list = self.0.lock();
        if list.len() > max { list.pop_front() } else { None }
    }
}

impl SuperBlock {
    /// Lists `inode`, which has an open node and may be idle (I1).
    pub(crate) fn note_idle(&self, inode: &Inode) {
        let stays_open = !self.bdi.limits().reopens && inode.openers.load(Ordering::SeqCst) != 0;
        if stays_open || inode.users() == 0 || inode.id() == self.root_id() {
            return;
        }
        if !inode.idle_listed.swap(true, Ordering::AcqRel) {
            self.idle_nodes.0.lock().push_back(inode.id());
        }
        self.bound_idle_nodes();
    }

    /// Releases nodes above the limit. Called wherever a node is opened or gets more descriptors.
    pub(crate) fn bound_idle_nodes(&self) {
        if self.release_idle_nodes() == Left::Few {
            self.engine.release_idle_nodes_of_others(self);
        }
    }

    fn release_idle_nodes(&self) -> Left {
        let max = self.engine.tunables.idle_nodes as usize;
        for _ in 0..SCANNED_PER_LISTED {
            let supply = self.bdi.backend.node_supply();
            let is_short = supply != NodeSupply::Enough;
            match self.idle_nodes.pop_over(if is_short { KEPT_MIN.min(max) } else { max }) {
                Some(id) => self.release_node(id, supply),
                None if is_short => return Left::Few,
                None => return Left::Enough,
            }
        }
        Left::Enough
    }

    fn release_node(&self, id: NodeId, supply: NodeSupply) {
        let Some(inode) = self.find(id) else { return };
        // A second chance, unless node space is nearly exhausted.
        if inode.idle_used.swap(false, Ordering::Relaxed) && supply != NodeSupply::Scarce {
            self.idle_nodes.0.lock().push_back(id);
            return;
        }
        // Before it is examined: a thread that makes it idle meanwhile lists it again.
        inode.idle_listed.store(false, Ordering::Release);
        match inode.take_idle_node(supply != NodeSupply::Enough) {
            IdleNode::Released(node) => drop(node), // closing a descriptor may enter the kernel, so no lock is held
            IdleNode::InUse => {}
            IdleNode::Kept if inode.idle_listed.swap(true, Ordering::AcqRel) => {}
            IdleNode::Kept => self.idle_nodes.0.lock().push_back(id),
        }
    }
}

impl Shared {
    /// The backend of `short` is short of node space, and its own volume has no more to release: other volumes release
    /// nodes (I4).
    fn release_idle_nodes_of_others(&self, short: &SuperBlock) {
        for sb in self.super_blocks().iter().filter(|sb| !std::ptr::eq(Arc::as_ptr(sb), short)) {
            let Some(_at_work) = sb.enter_flusher() else { continue };
            if sb.release_idle_nodes() == Left::Enough {
                return;
            }
        }
    }
}

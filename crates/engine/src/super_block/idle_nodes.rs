//! Backend nodes of inodes that are known and not in use: at most a number of them stays open.
//!
//! Whoever serves names to a kernel holds a reference to each inode that the kernel knows, which may be all of
//! a volume; each open node costs a descriptor. So the nodes of those that are neither open nor dirty are let
//! go, longest unused first, by second chance, and opened again by handle when they are needed.
//!
//! # Invariants
//! I1. An inode with an open node, without openers, and with nothing dirty is on the list, once. Others may be,
//!     and leave it when they come up: closing or cleaning them lists them again.
//! I2. The node of a file without a name is never let go (nothing would find it again), nor that of the root.
//!
//! # Lock order
//! The list is a leaf: nothing is looked at under it.
//!
//! # Kernel counterpart
//! The dentry LRU with `d_lru`, shrunk by `shrink_dentry_list`.

use std::collections::VecDeque;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::atomic::Ordering;

use crate::inode::Inode;
use crate::lock_order::LEAVES;
use crate::super_block::SuperBlock;
use crate::units::NodeId;

/// Inodes looked at for each one that is listed: the list shrinks faster than it grows.
const LOOKS: usize = 8;

/// See the [module documentation](self).
pub(crate) struct IdleNodes(Mutex<VecDeque<NodeId>>);

impl IdleNodes {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LEAVES, VecDeque::new()))
    }
}

impl SuperBlock {
    /// `inode` has an open node, and may be idle (I1).
    pub(crate) fn note_idle(&self, inode: &Inode) {
        let in_use = inode.openers.load(Ordering::SeqCst) != 0 || inode.users() == 0;
        if in_use || inode.id() == self.root_id() || inode.idle_listed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.idle_nodes.0.lock().push_back(inode.id());
        for _ in 0..LOOKS {
            let id = {
                let mut list = self.idle_nodes.0.lock();
                let over = list.len() > self.engine.tunables.idle_nodes as usize;
                over.then(|| list.pop_front()).flatten()
            };
            let Some(id) = id else { return };
            self.let_go(id);
        }
    }

    fn let_go(&self, id: NodeId) {
        let Some(inode) = self.find(id) else { return };
        if inode.idle_used.swap(false, Ordering::Relaxed) {
            self.idle_nodes.0.lock().push_back(id);
            return;
        }
        // Before the look at it: who makes it idle meanwhile lists it again.
        inode.idle_listed.store(false, Ordering::Release);
        let node = inode.take_idle_node();
        drop(node); // closing a descriptor may enter the kernel: under no lock
    }
}

//! Backend nodes that nobody is using: at most a number of them stays open, and fewer while the backend is short of room.
//!
//! Whoever serves names to a kernel holds a reference to each inode that the kernel knows, which may be all of
//! a volume, and a program may have any number of files open; each open node costs descriptors. So the nodes of clean inodes are let
//! go, longest unused first, by second chance, and opened again by handle when they are needed. That the file is open is no
//! reason to keep its node, unless the backend does not [reopen](crate::backend::Limits::reopens) nodes.
//!
//! # Invariants
//! I1. An inode with an open node and with nothing dirty is on the list, once, but for an open file of a backend that does not
//!     reopen nodes. Others may be, and leave it when they come up: closing or cleaning them lists them again.
//! I2. The node of the root is never let go, nor that of a file without a name that somebody holds open (O1 of
//!     [`openers`](crate::inode)): nothing would find it again. Other nodes of files without a name go while nodes are short.
//! I3. Nor is that of an inode that has a record in the arena: from before it is dirtied until it is clean. Whoever takes the
//!     record gives the inode its node under the same lock.
//! I4. A node of another volume is let go as a flusher works there: an unmount waits until it is closed (Q1 of
//!     [`quiesce`](super::quiesce)).
//!
//! # Lock order
//! The list is a leaf: nothing is looked at under it.
//!
//! # Kernel counterpart
//! The dentry LRU with `d_lru`, shrunk by `shrink_dentry_list`.

use std::collections::VecDeque;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::NodeRoom;
use crate::engine::Shared;
use crate::inode::{Idle, Inode};
use crate::lock_order::LEAVES;
use crate::super_block::SuperBlock;
use crate::units::NodeId;

/// Inodes looked at for each one that is listed: the list shrinks faster than it grows.
const LOOKS: usize = 8;
/// A volume keeps so many however short of room its backend is: what is opened now is not let go at once.
const KEPT_MIN: usize = 16;

/// What a volume has left to let go.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Left {
    /// Its backend is short of room, and only those are left that it keeps.
    Few,
    /// More, or the backend has room.
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
    /// `inode` has an open node, and may be idle (I1).
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

    /// Lets nodes go if there are more than there may be. It is called wherever one gets open, or gets more descriptors.
    pub(crate) fn bound_idle_nodes(&self) {
        if self.let_idle_nodes_go() == Left::Few {
            self.engine.let_idle_nodes_go_beside(self);
        }
    }

    fn let_idle_nodes_go(&self) -> Left {
        let max = self.engine.tunables.idle_nodes as usize;
        for _ in 0..LOOKS {
            let room = self.bdi.backend.node_room();
            let is_short = room != NodeRoom::Enough;
            match self.idle_nodes.pop_over(if is_short { KEPT_MIN.min(max) } else { max }) {
                Some(id) => self.let_go(id, room),
                None if is_short => return Left::Few,
                None => return Left::Enough,
            }
        }
        Left::Enough
    }

    fn let_go(&self, id: NodeId, room: NodeRoom) {
        let Some(inode) = self.find(id) else { return };
        // A second chance, while there is time for one.
        if inode.idle_used.swap(false, Ordering::Relaxed) && room != NodeRoom::Scarce {
            self.idle_nodes.0.lock().push_back(id);
            return;
        }
        // Before the look at it: who makes it idle meanwhile lists it again.
        inode.idle_listed.store(false, Ordering::Release);
        match inode.take_idle_node(room != NodeRoom::Enough) {
            Idle::LetGo(node) => drop(node), // closing a descriptor may enter the kernel: under no lock
            Idle::InUse => {}
            Idle::Kept if inode.idle_listed.swap(true, Ordering::AcqRel) => {}
            Idle::Kept => self.idle_nodes.0.lock().push_back(id),
        }
    }
}

impl Shared {
    /// The backend of `short` is short of room, and it has done what it can: other volumes let nodes go (I4).
    fn let_idle_nodes_go_beside(&self, short: &SuperBlock) {
        for sb in self.super_blocks().iter().filter(|sb| !std::ptr::eq(Arc::as_ptr(sb), short)) {
            let Some(_at_work) = sb.begin_work() else { continue };
            if sb.let_idle_nodes_go() == Left::Enough {
                return;
            }
        }
    }
}

//! Files that lose their last name while they are open: the keeper gets a descriptor before that, so that the next
//! process finds them.
//!
//! # Invariants
//! R1. `is_kept` of a node says that the keeper has a descriptor of it. Whoever resets it tells the keeper. It is set
//!     before the last name is removed, and reset when the file is closed.

use std::ffi::OsStr;

use slackwater::InodeRef;
use slackwater::backend::NodeKind;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::takeover::Keeping;
use crate::volume::Volume;
use crate::volume::nodes::Node;

/// An open file that may be about to lose its last name.
pub(super) struct Victim {
    node: Arc<Node>,
    keeping: Arc<Keeping>,
}

impl Victim {
    /// The name was not removed after all.
    pub(super) fn stays(self) {
        self.node.release_kept(&self.keeping);
    }
}

impl Node {
    /// Tells the keeper that the file is closed or has a name, if the keeper has it (R1).
    pub(super) fn release_kept(&self, keeping: &Keeping) {
        if !keeping.is_handed_over.load(Ordering::Acquire) && self.is_kept.swap(false, Ordering::AcqRel) {
            keeping.keeper.release(self.id());
        }
    }
}

impl Volume {
    /// Gives the keeper the file that `name` leads to, if it is open and this is its last name. `None` otherwise, and
    /// if nobody keeps the mount.
    pub(super) fn keep_victim(&self, dir: &Node, name: &OsStr) -> Option<Victim> {
        let keeping = self.keeping.as_ref()?;
        let inode = self.sb.lookup_unchecked(&dir.inode, name).ok()?;
        if inode.kind() != NodeKind::File || inode.attr().nlink > 1 {
            return None;
        }
        let node = self.nodes.get(self.nodes.number_of(inode.id())?)?;
        let is_open = node.opened.load(Ordering::Acquire) > 0;
        (is_open && self.keep(&node)).then(|| Victim { node, keeping: Arc::clone(keeping) })
    }

    /// Gives the keeper a file without a name, or one that is about to have none. Returns whether it was not there
    /// before.
    pub(super) fn keep(&self, node: &Arc<Node>) -> bool {
        let Some(keeping) = &self.keeping else { return false };
        if node.is_kept.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Err(error) = self.give(keeping, node.id(), &node.inode) {
            tracing::warn!(%error, "a file without a name would not outlive this process");
            node.is_kept.store(false, Ordering::Release);
            return false;
        }
        if node.opened.load(Ordering::Acquire) == 0 {
            node.release_kept(keeping); // closed meanwhile
        }
        true
    }

    fn give(&self, keeping: &Keeping, number: u64, inode: &InodeRef) -> std::io::Result<()> {
        match self.sb.descriptor(inode).map_err(std::io::Error::other)? {
            Some(descriptor) => keeping.keeper.keep(number, descriptor),
            None => Ok(()),
        }
    }
}

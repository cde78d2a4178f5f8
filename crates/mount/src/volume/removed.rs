//! Files that lose their last name while they are open, and directories that lose their name: the keeper gets a
//! descriptor before that, so that the next process finds them. Whether a directory is the working directory of a program
//! is not known here, so it is kept until the kernel forgets it. If the keeper has a descriptor of each node anyway ([`kept_nodes`](crate::volume::kept_nodes)),
//! only the engine learns of the removal.
//!
//! # Invariants
//! R1. `is_kept` of a node says that the keeper has a descriptor of it. The thread that resets it tells the keeper. It is set
//!     before the last name is removed, and reset when the file is closed or the kernel has forgotten the directory.

use std::ffi::OsStr;

use slackwater::InodeRef;
use slackwater::backend::NodeKind;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::takeover::Keeping;
use crate::volume::Volume;
use crate::volume::nodes::Node;

/// A file or directory that may be about to lose its last name.
pub(super) struct Victim {
    inode: InodeRef,
    /// The node and the keeper, if the keeper got the file.
    kept: Option<(Arc<Node>, Arc<Keeping>)>,
}

impl Victim {
    /// The name was not removed after all.
    pub(super) fn stays(self) {
        self.inode.super_block().note_removal(&self.inode, false);
        if let Some((node, keeping)) = self.kept {
            node.release_kept(&keeping);
        }
    }
}

impl Node {
    /// Tells the keeper that the file is closed or has a name, if the keeper has it (R1).
    pub(super) fn release_kept(&self, keeping: &Keeping) {
        let is_needed = keeping.keeps_nodes() || keeping.is_handed_over.load(Ordering::Acquire);
        if !is_needed && self.is_kept.swap(false, Ordering::AcqRel) {
            keeping.keeper.release(self.id());
        }
    }
}

impl Volume {
    /// Prepares for the removal of `name`, if it is the last name of a file or directory: a process that takes over knows
    /// of it, and gets it if it is in use. `None` otherwise, and if the mount has no keeper.
    pub(super) fn keep_victim(&self, dir: &Node, name: &OsStr) -> Option<Victim> {
        let keeping = self.keeping.as_ref()?;
        let inode = self.sb.lookup_unchecked(&dir.inode, name).ok()?;
        let has_more_names = inode.kind() != NodeKind::Directory && inode.attr().nlink > 1;
        if !matches!(inode.kind(), NodeKind::File | NodeKind::Directory) || has_more_names {
            return None;
        }
        self.sb.note_removal(&inode, true);
        let node = self.nodes.number_of(inode.id()).and_then(|number| self.nodes.get(number));
        let used = node.filter(|node| node.is_used());
        let kept = used.filter(|node| self.keep(node)).map(|node| (node, Arc::clone(keeping)));
        Some(Victim { inode, kept })
    }

    /// Gives the keeper a node without a name, or one that is about to have none. Returns whether it was not there
    /// before.
    pub(super) fn keep(&self, node: &Arc<Node>) -> bool {
        let Some(keeping) = self.keeping.as_ref().filter(|keeping| !keeping.keeps_nodes()) else { return false };
        if node.is_kept.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Err(error) = self.give(keeping, node.id(), &node.inode) {
            tracing::warn!(%error, node = node.id(), "a removed file or directory would not outlive this process");
            node.is_kept.store(false, Ordering::Release);
            return false;
        }
        if !node.is_used() {
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

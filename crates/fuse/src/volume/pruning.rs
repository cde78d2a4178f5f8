//! Memory is short: the kernel is asked to give up nodes that nobody uses.
//!
//! An inode is here for as long as the kernel has a number for it, and the kernel lets go of a name that nobody uses only
//! when it is short of memory itself. Who looked at a million files once keeps a million inodes here, where they are not
//! the kernel's memory and no reason for it to hurry. So it is asked, and what it gives up comes back by FORGET, as ever.
//!
//! It is asked by PRUNE alone, which takes only what nobody uses. What older kernels have takes names whether they are in
//! use or not, and with a name whatever is mounted on it, in any namespace. There the kernel's own need has to do.
//!
//! # Kernel counterpart
//! `fuse_notify_prune`, `d_prune_aliases`.

use slackwater::NodeId;
use slackwater_sync::shim::Arc;

use crate::abi::ROOT_ID;
use crate::negotiate::Negotiated;
use crate::volume::Volume;

/// Linux 6.18.
const PRUNE_SINCE_MINOR: u32 = 45;

/// Whether the kernel has the notification.
pub(super) const fn has_prune(negotiated: &Negotiated) -> bool {
    negotiated.minor >= PRUNE_SINCE_MINOR
}

impl Volume {
    /// Has the engine ask here for inodes when memory is short, if the kernel can be asked.
    pub(crate) fn register_prune_hook(self: &Arc<Self>) {
        if self.pruner.get().is_some() {
            let volume = Arc::downgrade(self);
            let ask = move |inodes: &[NodeId]| volume.upgrade().map_or(0, |volume| volume.prune(inodes));
            self.sb.on_inode_pressure(Box::new(ask));
        }
    }

    /// Asks the kernel to give up what it knows of `inodes`. Returns of how many it was asked, of which it keeps those that
    /// are in use; the others are forgotten a little later.
    ///
    /// # Blocking
    /// Never: another thread asks.
    fn prune(&self, inodes: &[NodeId]) -> usize {
        let Some(notifier) = self.pruner.get() else { return 0 };
        let known = inodes.iter().filter_map(|inode| self.nodes.number_of(*inode));
        let nodes: Vec<_> = known.filter(|node| *node != ROOT_ID).collect();
        let count = nodes.len();
        if count != 0 && notifier.queue_prune(nodes) { count } else { 0 }
    }
}

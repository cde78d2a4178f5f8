//! Asking the kernel to drop unused nodes when memory is short.
//!
//! An inode stays in memory for as long as the kernel has a number for it, and the kernel drops an unused name only
//! when it is itself short of memory. A program that has looked at a million files leaves a million inodes here. They
//! are not kernel memory, so the kernel feels no pressure to drop them. The volume therefore asks for it. The kernel
//! sends FORGETs for the nodes that it drops, as usual.
//!
//! Only PRUNE is used, since it affects unused nodes alone. The notifications of older kernels also drop names that are
//! in use, together with everything mounted on them, in any namespace. On those kernels nodes are dropped only under
//! the kernel's own memory pressure.
//!
//! # Kernel counterpart
//! `fuse_notify_prune`, `d_prune_aliases`.

use slackwater::NodeId;
use slackwater_fuse::Negotiated;
use slackwater_fuse::abi::ROOT_ID;
use slackwater_sync::shim::Arc;

use crate::volume::Volume;

/// Linux 6.18.
const PRUNE_SINCE_MINOR: u32 = 45;

/// Whether the kernel supports the notification.
pub(super) const fn has_prune(negotiated: &Negotiated) -> bool {
    negotiated.minor >= PRUNE_SINCE_MINOR
}

impl Volume {
    /// Lets the engine ask for inodes when memory is short, if the kernel supports it.
    pub(crate) fn register_prune_hook(self: &Arc<Self>) {
        if self.pruner.get().is_some() {
            let volume = Arc::downgrade(self);
            let ask = move |inodes: &[NodeId]| volume.upgrade().map_or(0, |volume| volume.prune(inodes));
            self.sb.on_inode_pressure(Box::new(ask));
        }
    }

    /// Asks the kernel to drop what it knows of `inodes`. Returns the number of inodes it was asked for. The kernel
    /// keeps those that are in use; FORGETs for the others come a little later.
    ///
    /// # Blocking
    /// Never: another thread sends the notification.
    fn prune(&self, inodes: &[NodeId]) -> usize {
        let Some(notifier) = self.pruner.get() else { return 0 };
        let known = inodes.iter().filter_map(|inode| self.nodes.number_of(*inode));
        let nodes: Vec<_> = known.filter(|node| *node != ROOT_ID).collect();
        let count = nodes.len();
        if count != 0 && notifier.queue_prune(nodes) { count } else { 0 }
    }
}

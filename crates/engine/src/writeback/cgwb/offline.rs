//! Emptying a wb whose tenant has gone offline: its clean inodes go to the nearest tenant above that is online.
//!
//! Dirty inodes stay until they are written: moved up they would evade the tenant's limits. When the last of them becomes
//! clean, the wb is woken and comes here again.
//!
//! # Kernel counterpart
//! `cleanup_offline_cgwb`; sem. 5.7. Differs: a wb that has dirty inodes is looked at again when it has none, not when
//! the next tenant goes offline.

use slackwater_sync::shim::Arc;

use crate::super_block::SuperBlock;
use crate::writeback::BdiWriteback;
use crate::writeback::cgwb::switch::Switch;

/// Inodes that one context moves. Kernel: `WB_MAX_INODES_PER_ISW` of a 1024-byte allocation.
const INODES_PER_CONTEXT: usize = 126;

impl BdiWriteback {
    /// Has the clean inodes of a killed wb moved, once it has no others.
    pub(in crate::writeback) fn cleanup_offline(self: &Arc<Self>, sb: &Arc<SuperBlock>) {
        // All at once: those that are refused, because their last name is gone, are not to hide the others behind them.
        let mut inodes = {
            let lists = self.lists.lock();
            if lists.has_unclean() { Vec::new() } else { lists.attached() }
        };
        inodes.retain(|inode| !inode.is_switching());
        if inodes.is_empty() || !self.tryget() {
            return;
        }
        let parent = self.memcg.parent();
        while !inodes.is_empty() {
            let target = parent.map_or_else(|| Arc::clone(sb.root_wb()), |parent| sb.wb_get_create(parent));
            let some = inodes.split_off(inodes.len().saturating_sub(INODES_PER_CONTEXT));
            Switch::begin(sb, target).start(some);
        }
        self.put();
    }
}

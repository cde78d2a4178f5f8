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
    /// Has the clean inodes of a killed wb moved, a context's worth at a time. True if there may be more.
    pub(in crate::writeback) fn cleanup_offline(self: &Arc<Self>, sb: &Arc<SuperBlock>) -> bool {
        let inodes = {
            let lists = self.lists.lock();
            if lists.has_unclean() { Vec::new() } else { lists.attached(INODES_PER_CONTEXT) }
        };
        if inodes.is_empty() || !self.tryget() {
            return false;
        }
        let target = self.memcg.parent().map_or_else(|| Arc::clone(sb.root_wb()), |parent| sb.wb_get_create(parent));
        let found = inodes.len();
        let switch = Switch::begin(sb, target);
        let moved = switch.start(inodes);
        self.put();
        found == INODES_PER_CONTEXT && moved != 0
    }
}

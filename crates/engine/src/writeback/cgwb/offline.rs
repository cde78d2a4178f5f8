//! Empties a wb whose tenant has gone offline: its clean inodes move to the nearest ancestor that is online.
//!
//! Dirty inodes stay until they are written, since they would evade the tenant's limits if they moved up. When the last
//! of them becomes clean, the wb is woken and this runs again.
//!
//! # Kernel counterpart
//! `cleanup_offline_cgwb`. Differs: a wb with dirty inodes is revisited when it has none left, not when the
//! next tenant goes offline.

use slackwater_sync::shim::Arc;

use crate::super_block::SuperBlock;
use crate::writeback::BdiWriteback;
use crate::writeback::cgwb::switch::Switch;

/// Inodes moved by one context. Kernel: `WB_MAX_INODES_PER_ISW` for an allocation of 1024 bytes.
const INODES_PER_CONTEXT: usize = 126;

impl BdiWriteback {
    /// Moves the clean inodes of a killed wb away once it has no other inodes.
    pub(in crate::writeback) fn cleanup_offline(self: &Arc<Self>, sb: &Arc<SuperBlock>) {
        // All at once: inodes that are refused, because they are unlinked, must not hide those behind them.
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

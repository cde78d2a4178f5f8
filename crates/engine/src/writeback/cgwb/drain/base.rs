//! The incorrect form: it takes an empty queue as proof that no switch is in progress.
//!
//! A switch that is prepared but not yet queued is not covered by either wait. Its inode is referenced, so eviction
//! skips it, and the switch drops it on a volume that no longer exists.

use slackwater_sync::shim::Arc;

use super::{Drain, flush_queue, is_any_in_flight, wait_for_callbacks};
use crate::super_block::SuperBlock;

/// See the [module documentation](self).
pub(super) struct Base;

impl Drain for Base {
    fn drain(&self, sb: &Arc<SuperBlock>) {
        let engine = sb.engine();
        if is_any_in_flight(engine) {
            wait_for_callbacks(engine);
            flush_queue(engine);
        }
    }
}

//! The form that was wrong: an empty queue was taken for "no switch is under way".
//!
//! A switch that has been prepared and not yet queued is in neither place that is waited for. Its inode is referenced, so
//! eviction skips it, and the job lets go of it on a volume that is gone; sem. 6.2.

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

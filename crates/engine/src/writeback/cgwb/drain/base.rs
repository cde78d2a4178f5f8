//! The form that was wrong: an empty queue was taken for "no switch is under way".
//!
//! A switch that has been prepared and not yet queued is in neither place that is waited for. Its inode is referenced, so
//! eviction skips it, and the job lets go of it on a volume that is gone; sem. 6.2.

use slackwater_sync::rcu::{Domain, Guard};
use slackwater_sync::shim::{Arc, smp_mb};

use super::{Drain, count};
use crate::super_block::SuperBlock;

/// See the [module documentation](self).
pub(super) struct Base;

impl Drain for Base {
    fn pin(&self, _: &SuperBlock) -> bool {
        smp_mb();
        true
    }

    fn unpin(&self, _: &SuperBlock) {}

    fn section<'a>(&self, _: &'a Domain) -> Option<Guard<'a>> {
        None
    }

    fn drain(&self, sb: &Arc<SuperBlock>) {
        let engine = sb.engine();
        smp_mb();
        if engine.switches.in_flight() != 0 {
            count(&engine.switches.costs.barriers);
            engine.pool.rcu.barrier();
            count(&engine.switches.costs.flushes);
            engine.switches.flush(engine);
        }
    }
}

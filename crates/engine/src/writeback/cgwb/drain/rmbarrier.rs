//! As [`super::race`], without the barrier: since queuing is direct, a flush of the queue covers all that was queued.

use slackwater_sync::rcu::{Domain, Guard};
use slackwater_sync::shim::{Arc, smp_mb};

use super::{Drain, count};
use crate::super_block::SuperBlock;

/// See the [module documentation](self).
pub(super) struct RmBarrier;

impl Drain for RmBarrier {
    fn pin(&self, _: &SuperBlock) -> bool {
        smp_mb();
        true
    }

    fn unpin(&self, _: &SuperBlock) {}

    fn section<'a>(&self, domain: &'a Domain) -> Option<Guard<'a>> {
        Some(domain.read_lock())
    }

    fn drain(&self, sb: &Arc<SuperBlock>) {
        let engine = sb.engine();
        smp_mb();
        if engine.switches.in_flight() != 0 {
            count(&engine.switches.costs.grace_periods);
            engine.pool.rcu.synchronize();
            count(&engine.switches.costs.flushes);
            engine.switches.flush(engine);
        }
    }
}

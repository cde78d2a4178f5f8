//! The first form that is right: a switch is queued within the read section in which it looked at ACTIVE.
//!
//! A grace period that begins after ACTIVE was cleared ends after every switch that saw it set has queued itself. The
//! barrier made sure, when queuing went through a callback, that the callback had run; it is kept for what it costs.

use slackwater_sync::rcu::{Domain, Guard};
use slackwater_sync::shim::{Arc, smp_mb};

use super::{Drain, count};
use crate::super_block::SuperBlock;

/// See the [module documentation](self).
pub(super) struct Race;

impl Drain for Race {
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
            count(&engine.switches.costs.barriers);
            engine.pool.rcu.barrier();
            count(&engine.switches.costs.flushes);
            engine.switches.flush(engine);
        }
    }
}

//! Like [`super::race`], without the barrier: queuing is direct, so a flush of the queue covers all queued switches.

use slackwater_sync::rcu::{Domain, Guard};
use slackwater_sync::shim::Arc;

use super::{Drain, flush_queue, is_any_in_flight, wait_for_grace_period};
use crate::super_block::SuperBlock;

/// See the [module documentation](self).
pub(super) struct RmBarrier;

impl Drain for RmBarrier {
    fn section<'a>(&self, domain: &'a Domain) -> Option<Guard<'a>> {
        Some(domain.read_lock())
    }

    fn drain(&self, sb: &Arc<SuperBlock>) {
        let engine = sb.engine();
        if is_any_in_flight(engine) {
            wait_for_grace_period(engine);
            flush_queue(engine);
        }
    }
}

//! The first correct form: a switch is queued within the read section in which it checked ACTIVE.
//!
//! A grace period that begins after ACTIVE was cleared ends only after every switch that saw it set has queued itself.
//! The barrier dates from when queuing went through a callback, and ensured that the callback had run. It is kept to
//! measure its cost.

use slackwater_sync::rcu::{Domain, Guard};
use slackwater_sync::shim::Arc;

use super::{Drain, flush_queue, is_any_in_flight, wait_for_callbacks, wait_for_grace_period};
use crate::super_block::SuperBlock;

/// See the [module documentation](self).
pub(super) struct Race;

impl Drain for Race {
    fn section<'a>(&self, domain: &'a Domain) -> Option<Guard<'a>> {
        Some(domain.read_lock())
    }

    fn drain(&self, sb: &Arc<SuperBlock>) {
        let engine = sb.engine();
        if is_any_in_flight(engine) {
            wait_for_grace_period(engine);
            wait_for_callbacks(engine);
            flush_queue(engine);
        }
    }
}

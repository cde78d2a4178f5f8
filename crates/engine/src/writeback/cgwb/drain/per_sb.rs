//! The form in use: a count per super block, pinned before the look at ACTIVE and let go of after the inode.
//!
//! Either the unmount sees the pin and waits, or the switch sees that ACTIVE is clear and has touched nothing: the barrier
//! pair is that of [`slackwater_sync::InFlight`]. No grace period, no queue and no other volume is waited for; sem. 6.4,
//! 6.5.

use slackwater_sync::shim::{Arc, thread};

use super::{Drain, count};
use crate::super_block::SuperBlock;

/// See the [module documentation](self).
pub(super) struct PerSb;

impl Drain for PerSb {
    fn pin(&self, sb: &SuperBlock) -> bool {
        // Once seen clear it stays clear: no need to disturb the unmount. Seen set, it proves nothing.
        if sb.alive().is_err() {
            return false;
        }
        sb.switches_in_flight().pin();
        true
    }

    fn unpin(&self, sb: &SuperBlock) {
        sb.switches_in_flight().unpin();
    }

    fn drain(&self, sb: &Arc<SuperBlock>) {
        let engine = sb.engine();
        if sb.switches_in_flight().count() != 0 {
            count(&engine.switches.costs.waits);
        }
        while engine.tunables.flusher_threads == 0 && sb.switches_in_flight().count() != 0 {
            engine.run_by_hand();
            thread::yield_now();
        }
        sb.switches_in_flight().drain();
    }
}

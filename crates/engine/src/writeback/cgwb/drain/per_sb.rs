//! The default form: a count per super block, raised before the check of ACTIVE and dropped after the inode.
//!
//! Either the unmount sees the pin and waits, or the switch sees that ACTIVE is clear and has touched nothing. The
//! barrier pair is that of [`slackwater_sync::InFlight`]. It waits for no grace period, no queue and no other volume.
//!
//! Queued switches of the volume, which wait for a grace period and a flusher, are taken back: which wb owns the inodes
//! no longer matters. So the unmount waits only for switches that a thread is working on, between *prepare* and *queue*
//! or in their execution; Q2 of [`super::super::pending`].

use slackwater_sync::shim::Arc;

use super::{Drain, count};
use crate::super_block::SuperBlock;

/// See the [module documentation](self).
pub(super) struct PerSb;

impl Drain for PerSb {
    fn pin(&self, sb: &SuperBlock) -> bool {
        // Once clear, ACTIVE stays clear, so there is no need to disturb the unmount. If it is set, that proves nothing
        // yet.
        if sb.alive().is_err() {
            return false;
        }
        sb.switches_in_flight().pin();
        true
    }

    fn unpin(&self, sb: &SuperBlock) {
        sb.switches_in_flight().unpin();
    }

    fn may_queue(&self, sb: &SuperBlock) -> bool {
        sb.alive().is_ok()
    }

    fn drain(&self, sb: &Arc<SuperBlock>) {
        sb.switches_in_flight().drain_with(|| {
            count(&sb.engine().switches.costs.waits);
            sb.cancel_switches();
        });
    }
}

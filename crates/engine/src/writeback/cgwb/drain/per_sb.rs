//! The form in use: a count per super block, pinned before the look at ACTIVE and let go of after the inode.
//!
//! Either the unmount sees the pin and waits, or the switch sees that ACTIVE is clear and has touched nothing: the barrier
//! pair is that of [`slackwater_sync::InFlight`]. No grace period, no queue and no other volume is waited for; sem. 6.4,
//! 6.5.
//!
//! A volume's own switches, which wait for a grace period and for a flusher, are taken back: nobody needs to know any more
//! whose its inodes are. So the unmount waits for those alone that a thread is at, between *prepare* and *queue* or in its
//! job; Q2 of [`super::super::pending`].

use slackwater_sync::shim::Arc;

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

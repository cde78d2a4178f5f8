//! The writer itself: it takes the very pages that it wrote and submits them, and waits where every slot is taken.
//!
//! So each write pays for units of its own, however small, and for the device's queue. A page that is under write-back
//! already is left to the flusher's ordinary passes, for its age or because much is dirty.
//!
//! # Kernel counterpart
//! `filemap_flush_range` in `generic_write_sync` up to 7.1; sem. 7.1.

use std::ops::Range;

use slackwater_sync::shim::Arc;

use super::Start;
use crate::inode::Inode;
use crate::page_cache::Mark;
use crate::units::PageIndex;
use crate::writeback::writepages::{Limit, Stop, writepages};
use crate::writeback::{BdiWriteback, Round, UnitClass};

/// See the [module documentation](self).
pub(super) struct Inline;

impl Start for Inline {
    fn written(&self, inode: &Arc<Inode>, mut pages: Range<PageIndex>, may_wait: bool) {
        let sb = inode.super_block();
        let (bdi, clock) = (sb.bdi(), &*sb.engine().clock);
        let deadline = (!may_wait).then(|| clock.now());
        let limit = Limit { pages: u64::MAX, unit_bytes: bdi.limits().unit_bytes, class: &UnitClass::Sync };
        let mut round = Round::begin(inode);
        // With the slots of those who wait, one unit at a time.
        while pages.start < pages.end
            && bdi.slots.wait_for_sync(clock, deadline)
            && writepages(inode, Mark::Dirty, &mut pages, limit, &mut round).stop != Stop::End
        {}
        round.end(inode);
    }

    fn came_back(&self, _wb: &BdiWriteback) {}
}

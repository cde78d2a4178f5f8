//! The writer itself takes the pages it wrote and submits them; it waits while every slot is taken.
//!
//! Each write therefore pays for units of its own, however small, and for the device's queue. A page already under
//! write-back is left to the flusher's ordinary passes (periodic or background).
//!
//! # Kernel counterpart
//! `filemap_flush_range` in `generic_write_sync` up to 7.1.

use std::ops::Range;

use slackwater_sync::shim::Arc;

use super::StartWriteback;
use crate::inode::Inode;
use crate::page_cache::Mark;
use crate::units::PageIndex;
use crate::writeback::writepages::{Awaits, Limit, Stop, writepages};
use crate::writeback::{BdiWriteback, Round};

/// See the [module documentation](self).
pub(super) struct Inline;

impl StartWriteback for Inline {
    fn write_ended(&self, inode: &Arc<Inode>, mut pages: Range<PageIndex>, may_wait: bool) {
        let sb = inode.super_block();
        let (bdi, clock) = (sb.bdi(), &*sb.engine().clock);
        let deadline = (!may_wait).then(|| clock.now());
        let limit = Limit::of_sync(bdi, Awaits::Nothing);
        let mut round = Round::begin(inode);
        // Uses the slots of syncs, one unit at a time.
        while pages.start < pages.end
            && bdi.slots.wait_for_sync(clock, deadline)
            && writepages(inode, Mark::Dirty, &mut pages, limit, &mut round).stop != Stop::End
        {}
        round.end(inode);
    }

    fn inode_relisted(&self, _wb: &BdiWriteback) {}
}

//! Drops pages that will not be written: the file was truncated, or no process can read it again.
//!
//! A truncation first waits for units with pages beyond the new size. Pages of a doomed inode that are in a unit are
//! dropped by the unit's completion.
//!
//! # Kernel counterpart
//! `truncate_inode_pages_range`, `folio_account_cleaned`.

use std::ops::Range;

use slackwater_arena::FrameId;

use crate::cgroup::Uncharges;
use crate::inode::Inode;
use crate::page_cache::{Mark, Scan, range_bits, slots};
use crate::units::PageIndex;
use crate::writeback::Pages;

/// Drops the pages of `range`. A page that is being filled or is under write-back belongs to that operation and stays.
/// Returns the number of leaves that became empty.
pub(crate) fn cancel_pages(inode: &Inode, range: Range<PageIndex>) -> usize {
    let mut dropped = Dropped::default();
    let mut emptied = Vec::new();
    let arena = &inode.super_block().engine().arena;
    let mut uncharges = Uncharges::new(&inode.super_block().engine().owners);
    inode.mapping.scan(range.start, range.end, None, |base, leaf| {
        let bits = range_bits(range.start.0.saturating_sub(base.0), range.end.0.saturating_sub(base.0));
        for slot in slots(leaf.present() & leaf.bits(Mark::Uptodate) & !leaf.bits(Mark::Writeback) & bits) {
            let Some(frame) = leaf.frame(slot) else { continue };
            // A reader may be copying: it holds the frame, not the page. The frame is freed when the copy ends.
            dropped.delayed += u64::from(leaf.has(Mark::Delayed, slot));
            let unclean = leaf.unclean() >> slot & 1 != 0;
            dropped.dirty += i64::from(leaf.has(Mark::Dirty, slot));
            if leaf.has(Mark::Dropbehind, slot) {
                dropped.dontcache_dirty += i64::from(leaf.has(Mark::Dirty, slot));
                dropped.dropbehind_unstable += i64::from(leaf.has(Mark::Unstable, slot));
            }
            dropped.unstable += i64::from(leaf.has(Mark::Unstable, slot) || leaf.has(Mark::Committing, slot));
            dropped.unclean += i64::from(unclean);
            // Before the inode counts as clean and its record may be freed: no dirty frame may name a free record.
            arena.mark_clean(frame);
            if unclean {
                uncharges.add(frame);
            }
            inode.mapping.add_unclean(-i64::from(unclean));
            let _ = leaf.remove(slot);
            dropped.frames.push(frame);
        }
        if leaf.present() == 0 {
            emptied.push(base);
        }
        Scan::On
    });
    dropped.account(inode);
    drop(uncharges);
    for frame in dropped.frames {
        drop(arena.write(frame));
        arena.free(frame);
    }
    for leaf in &emptied {
        let _ = inode.mapping.remove_if_empty(*leaf); // fails if a page was added meanwhile
    }
    emptied.len()
}

#[derive(Default)]
struct Dropped {
    dirty: i64,
    unstable: i64,
    dontcache_dirty: i64,
    dropbehind_unstable: i64,
    unclean: i64,
    delayed: u64,
    frames: Vec<FrameId>,
}

impl Dropped {
    fn account(&self, inode: &Inode) {
        inode.mapping.add(Mark::Dirty, -self.dirty);
        inode.mapping.add(Mark::Unstable, -self.unstable);
        inode.account(Pages {
            reclaimable: -self.dirty,
            writeback: 0,
            unstable: -self.unstable,
            dontcache_dirty: -self.dontcache_dirty,
        });
        inode.super_block().bdi().add_dropbehind_unstable(-self.dropbehind_unstable);
        inode.super_block().bdi().unpin(self.unclean as u64);
        inode.super_block().space.release(self.delayed);
    }
}

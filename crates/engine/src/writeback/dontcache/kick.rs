//! The flusher is told: a bit, set by many writes, and one pass for all of them.
//!
//! # Memory ordering
//! O1. The kick is taken before the count is read ([`Kick`](slackwater_sync::Kick)).
//!
//! # Kernel counterpart
//! `filemap_dontcache_kick_writeback`, `wb_start_dontcache`; sem. 7.2, 7.3.

use std::ops::Range;

use slackwater_sync::shim::Arc;

use super::Start;
use crate::inode::Inode;
use crate::units::{PageIndex, Tick};
use crate::writeback::BdiWriteback;

/// See the [module documentation](self).
pub(super) struct Kicked;

impl Start for Kicked {
    /// The pages may be written already: then they were before they were counted, in the place of others that a pass was
    /// to write.
    fn written(&self, inode: &Arc<Inode>, _pages: Range<PageIndex>, _may_wait: bool) {
        // Outside the section: waking takes a lock. The reference keeps the wb one until then.
        let kicked = inode.with_owner(|wb| {
            wb.start_dontcache.kick().then(|| {
                wb.get();
                inode.wb()
            })
        });
        if let Some(wb) = kicked {
            wb.bdi.note_dontcache_kick();
            wb.wake();
            wb.put();
        }
    }

    fn came_back(&self, wb: &BdiWriteback) {
        let _ = wb.start_dontcache.kick(); // while it was on no list, a pass may have gone by
    }
}

/// A pass of a flusher for DONTCACHE writes.
pub(in crate::writeback) struct DontcachePass {
    /// Pages left to submit.
    left_pages: u64,
    /// Inodes dirtied up to here belong to it; the others' writers have kicked again.
    pub(in crate::writeback) begun: Tick,
}

impl DontcachePass {
    /// What is left of it after `pages`, if anything is.
    pub(in crate::writeback) fn less(self, pages: u64) -> Option<Self> {
        let left_pages = self.left_pages.checked_sub(pages).filter(|left| *left != 0)?;
        Some(Self { left_pages, ..self })
    }
}

impl BdiWriteback {
    /// An inode has been put on a list that the flusher looks at (D2).
    pub(in crate::writeback) fn note_listed(self: &Arc<Self>) {
        if self.start_dontcache.is_set() {
            self.wake();
        }
    }

    /// A pass, if one was asked for and there is something to write.
    pub(in crate::writeback) fn begin_dontcache(&self, now: Tick) -> Option<DontcachePass> {
        if !self.start_dontcache.take() {
            return None;
        }
        let left_pages = self.stat.dontcache_dirty.sum(); // O1
        if left_pages == 0 {
            return None;
        }
        self.bdi.note_dontcache_pass();
        Some(DontcachePass { left_pages, begun: now })
    }
}

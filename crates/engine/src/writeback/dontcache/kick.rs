//! The writer kicks the flusher: many writes set one bit, and one pass serves them all.
//!
//! # Memory ordering
//! O1. The pass takes the kick before it reads the count ([`Kick`](slackwater_sync::Kick)).
//!
//! # Kernel counterpart
//! `filemap_dontcache_kick_writeback`, `wb_start_dontcache`.

use std::ops::Range;

use slackwater_sync::shim::Arc;

use super::StartWriteback;
use crate::inode::Inode;
use crate::units::{PageIndex, Tick};
use crate::writeback::BdiWriteback;

/// See the [module documentation](self).
pub(super) struct Kicked;

impl StartWriteback for Kicked {
    /// The pages may be written back already. If so, a pass counted on other pages and wrote these instead of them.
    fn write_ended(&self, inode: &Arc<Inode>, _pages: Range<PageIndex>, _may_wait: bool) {
        // Outside the section, because waking takes a lock. The reference keeps the wb alive until then.
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

    fn inode_relisted(&self, wb: &BdiWriteback) {
        let _ = wb.start_dontcache.kick(); // while the inode was on no list, a pass may have missed it
    }
}

/// A flusher pass for DONTCACHE writes.
pub(in crate::writeback) struct DontcachePass {
    /// Pages left to submit.
    left_pages: u64,
    /// Inodes dirtied at or before this belong to the pass; writers of later ones have kicked again.
    pub(in crate::writeback) begun: Tick,
}

impl DontcachePass {
    /// The rest of the pass after `pages`, if any.
    pub(in crate::writeback) fn less(self, pages: u64) -> Option<Self> {
        let left_pages = self.left_pages.checked_sub(pages).filter(|left| *left != 0)?;
        Some(Self { left_pages, ..self })
    }
}

impl BdiWriteback {
    /// Called when an inode is put on a list that the flusher takes from (D2).
    pub(in crate::writeback) fn note_listed(self: &Arc<Self>) {
        if self.start_dontcache.is_set() {
            self.wake();
        }
    }

    /// Begins a pass if one is requested and there is something to write.
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

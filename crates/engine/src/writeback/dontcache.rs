//! DONTCACHE writes: the flusher is told at once, and what is durable leaves the cache.
//!
//! A page that such a write brings here is marked `DROPBEHIND`; an ordinary write to it takes the mark away. At its end the
//! write *kicks* the flusher of its file's wb, which writes back as many pages as are dirty with the mark, of the inodes
//! that have been dirty longest, whoever dirtied them: I/O stays in large pieces. Which pages those are nobody promises.
//!
//! # Invariants
//! D1. `WbStat::dontcache_dirty` counts the pages that are `DIRTY` and `DROPBEHIND`. Whoever changes one of the two marks of a
//!     page that has the other one accounts for it, in the same [`Inode::account`] as for the dirty pages.
//! D2. An inode whose I/O is in flight is on no list that a flusher takes from. So a kick is taken only when some inode is
//!     on one; until then it stays set, and whoever lists an inode wakes the flusher. And an inode that comes back with
//!     such pages kicks for them.
//! D3. The pages leave when a commit has made them durable, and not when they are written: until then they may be the only
//!     copy. By trying: one that somebody reads stays, without the mark.
//!
//! # Memory ordering
//! O1. The kick is taken before the count is read ([`Kick`](slackwater_sync::Kick)).
//!
//! # Kernel counterpart
//! `filemap_dontcache_kick_writeback`, `wb_start_dontcache`, `folio_end_dropbehind`; sem. 7. Differs: D3, and a read never
//! drops a page.

use slackwater_arena::{Arena, FrameId};
use slackwater_sync::shim::Arc;

use crate::inode::Inode;
use crate::page_cache::{LeafState, Mark, slots};
use crate::units::{PageIndex, Tick};
use crate::writeback::BdiWriteback;

/// A pass of a flusher for DONTCACHE writes.
pub(super) struct DontcachePass {
    /// Pages left to submit.
    pub(super) left_pages: u64,
    /// Inodes dirtied up to here belong to it; the others' writers have kicked again.
    pub(super) begun: Tick,
}

impl DontcachePass {
    /// What is left of it after `pages`, if anything is.
    pub(super) fn less(self, pages: u64) -> Option<Self> {
        let left_pages = self.left_pages.checked_sub(pages).filter(|left| *left != 0)?;
        Some(Self { left_pages, ..self })
    }
}

impl Inode {
    /// A DONTCACHE write to it has ended. Its pages may be written already: then they were before they were counted, in the
    /// place of others that a pass was to write.
    pub(crate) fn kick_dontcache(&self) {
        // Outside the section: waking takes a lock. The reference keeps the wb one until then.
        let kicked = self.with_owner(|wb| {
            wb.start_dontcache.kick().then(|| {
                wb.get();
                self.wb()
            })
        });
        if let Some(wb) = kicked {
            wb.wake();
            wb.put();
        }
    }
}

impl BdiWriteback {
    /// An inode has been put on a list that the flusher looks at (D2).
    pub(super) fn note_listed(self: &Arc<Self>) {
        if self.start_dontcache.is_set() {
            self.wake();
        }
    }

    /// A pass, if one was asked for and there is something to write.
    pub(super) fn begin_dontcache(&self, now: Tick) -> Option<DontcachePass> {
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

/// Pages that left the cache when a commit had made them durable.
#[derive(Default)]
pub(super) struct DroppedBehind {
    frames: Vec<FrameId>,
    /// First pages of the leaves that are empty now.
    emptied: Vec<PageIndex>,
}

impl DroppedBehind {
    /// Takes those of the pages `clean`, of the leaf that begins at `base`, that are to leave (D3).
    pub(super) fn take(&mut self, arena: &Arena, base: PageIndex, leaf: &mut LeafState, clean: u64) {
        let leaving = clean & leaf.bits(Mark::Dropbehind);
        if leaving == 0 {
            return;
        }
        leaf.clear_bits(Mark::Dropbehind, leaving);
        for slot in slots(leaving) {
            if leaf.frame(slot).is_some_and(|frame| arena.try_write(frame).is_some()) {
                // Whoever finds the frame later looks at the page again; nobody does once it is out.
                self.frames.extend(leaf.remove(slot));
            }
        }
        if leaf.present() == 0 {
            self.emptied.push(base);
        }
    }

    /// Gives back what they had.
    pub(super) fn free(self, inode: &Inode) {
        let arena = &inode.super_block().engine().arena;
        self.frames.iter().for_each(|frame| arena.free(*frame));
        for leaf in self.emptied {
            let _ = inode.mapping.remove_if_empty(leaf); // or somebody has put a page there meanwhile
        }
    }
}

//! Pages being dropped behind from the cache.

use slackwater_arena::{Arena, FrameId};

use crate::inode::Inode;
use crate::page_cache::{LeafState, Mark, slots};
use crate::units::PageIndex;

/// Pages that have left the cache, after a commit made them durable or a DONTCACHE read copied them.
#[derive(Default)]
pub(crate) struct DroppedBehind {
    frames: Vec<FrameId>,
    /// First pages of the leaves that are now empty.
    emptied: Vec<PageIndex>,
}

impl DroppedBehind {
    /// Takes the drop-behind pages among `clean`, in the leaf that begins at `base` (D3).
    pub(crate) fn take(&mut self, arena: &Arena, base: PageIndex, leaf: &mut LeafState, clean: u64) {
        let leaving = clean & leaf.bits(Mark::Dropbehind);
        if leaving == 0 {
            return;
        }
        leaf.clear_bits(Mark::Dropbehind, leaving);
        self.remove(arena, base, leaf, leaving);
    }

    /// Takes the pages among `pages` that a DONTCACHE read brought in, in the leaf that begins at `base`. A page that
    /// another reader holds keeps its mark.
    pub(crate) fn take_read(&mut self, arena: &Arena, base: PageIndex, leaf: &mut LeafState, pages: u64) {
        let leaving = pages & leaf.bits(Mark::Dropbehind) & leaf.clean();
        if leaving != 0 {
            self.remove(arena, base, leaf, leaving);
        }
    }

    fn remove(&mut self, arena: &Arena, base: PageIndex, leaf: &mut LeafState, leaving: u64) {
        self.frames.extend(slots(leaving).filter_map(|slot| leaf.take_out(arena, slot)));
        if leaf.present() == 0 {
            self.emptied.push(base);
        }
    }

    /// Frees their frames and empty leaves.
    pub(crate) fn free(self, inode: &Inode) {
        let arena = &inode.super_block().engine().arena;
        self.frames.iter().for_each(|frame| arena.free(*frame));
        for leaf in self.emptied {
            let _ = inode.mapping.remove_if_empty(leaf); // fails if a page was added meanwhile
        }
    }
}

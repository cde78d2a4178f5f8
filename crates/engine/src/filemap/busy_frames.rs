//! Frames that are being filled or copied to, and waiting for them.

use slackwater_arena::FrameId;

use crate::inode::Inode;
use crate::page_cache::{LeafState, Mark};
use crate::units::PageIndex;

/// Whether the page's frame is being filled from the backend.
pub(super) fn is_being_filled(inode: &Inode, index: PageIndex, frame: FrameId) -> bool {
    let filling =
        |leaf: &mut LeafState, slot: usize| leaf.frame(slot) == Some(frame) && !leaf.has(Mark::Uptodate, slot);
    inode.mapping.with_page(index, filling).unwrap_or(false)
}

/// Waits until the page's frame is neither being filled nor copied to.
pub(super) fn wait_for_frame(inode: &Inode, index: PageIndex, frame: FrameId) {
    let engine = inode.super_block().engine();
    let filled = || (!is_being_filled(inode, index, frame)).then_some(());
    let _ = engine.waits.wait(inode.id(), None, filled);
    inode.wait_for_copy(index, frame);
}

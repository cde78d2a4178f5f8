//! Where frames come from when none is free: clean pages are dropped, by second chance.
//!
//! Each volume keeps a queue of the leaves that hold its pages. A leaf that comes up has the pages dropped
//! that were not used since it last came up, and goes to the end. Volumes take turns.
//!
//! # Lock order
//! A volume's queue is a leaf lock and is not held while a leaf is examined. A frame is taken by trying.
//!
//! # Kernel counterpart
//! `shrink_folio_list`, in its simplest form; a scan-resistant policy is to replace it.

use slackwater_arena::{FrameId, Pool};
use slackwater_sync::shim::Arc;

use crate::engine::Shared;
use crate::inode::Inode;
use crate::page_cache::{Mark, slots};
use crate::super_block::{LeafRef, SuperBlock};

/// Frames freed at a time: enough that allocation is seldom interrupted.
const BATCH: usize = 128;
/// Leaves examined at most for it, per volume.
const SCAN_MAX: usize = 512;

/// A frame, for which clean pages are dropped if none is free. `None`: every page is pinned.
///
/// # Blocking
/// Never.
pub(crate) fn alloc_frame(engine: &Arc<Shared>, pool: Pool) -> Option<FrameId> {
    loop {
        if let Some(frame) = engine.arena.alloc(pool) {
            return Some(frame);
        }
        if evict(engine, BATCH) == 0 {
            return engine.arena.alloc(pool);
        }
    }
}

/// Drops clean pages until `target` frames are freed or every volume has been looked through.
pub(crate) fn evict(engine: &Arc<Shared>, target: usize) -> usize {
    let mut freed = 0;
    let volumes = engine.super_blocks();
    for sb in &volumes {
        // Twice: the first look takes the second chance from what was used.
        let leaves = sb.lru.lock().len();
        for _ in 0..(2 * leaves).min(SCAN_MAX.max(leaves)) {
            if freed >= target {
                return freed;
            }
            let Some(leaf) = sb.lru.lock().pop_front() else { break };
            freed += evict_leaf(sb, leaf);
        }
    }
    freed
}

fn evict_leaf(sb: &Arc<SuperBlock>, leaf: LeafRef) -> usize {
    let Some(inode) = leaf.inode.upgrade() else { return 0 };
    let mut frames = [None; 64];
    let mut count = 0;
    let left = inode.mapping.with_page(leaf.first, |state, _| {
        let arena = &sb.engine().arena;
        let used = state.bits(Mark::Referenced);
        state.clear_bits(Mark::Referenced, u64::MAX);
        for slot in slots(state.clean() & !used) {
            let Some(frame) = state.frame(slot) else { continue };
            if arena.try_write(frame).is_some() {
                // Whoever finds the frame later looks at the page again; nobody does once it is out.
                frames[count] = state.remove(slot);
                count += 1;
            }
        }
        state.present() != 0
    });
    for frame in frames.iter().flatten() {
        sb.engine().arena.free(*frame);
    }
    match left {
        Some(true) => sb.lru.lock().push_back(leaf),
        Some(false) => drop_leaf(sb, &inode),
        None => {}
    }
    count
}

/// The inode's tree has an empty leaf, which is not on the queue any more.
fn drop_leaf(sb: &Arc<SuperBlock>, inode: &Arc<Inode>) {
    inode.mapping.prune();
    if inode.users() == 0 && inode.mapping.is_empty() {
        sb.forget_if_unused(inode);
    }
}

impl SuperBlock {
    /// A writer found no room: every volume that has something to give writes back and commits.
    pub(crate) fn make_room(&self) {
        for sb in self.engine().super_blocks() {
            if sb.bdi().pinned_frames() != 0 && sb.bdi().ask_for_room() {
                sb.root_wb().wake();
            }
        }
    }
}

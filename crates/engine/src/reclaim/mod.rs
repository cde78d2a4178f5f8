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

use std::collections::HashSet;

use slackwater_arena::{FrameId, Pool};
use slackwater_sync::shim::atomic::Ordering;
use slackwater_sync::shim::{Arc, thread};

use crate::engine::Shared;
use crate::page_cache::{Mark, slots};
use crate::super_block::{LeafRef, SuperBlock};

/// Frames freed at a time: this part of the arena, within bounds. What is freed a little at a time is taken in as small
/// pieces by whoever comes next, and nothing joins them again: after a hundred times the arena's size a unit of write-back
/// was in eighty pieces.
const BATCH_PART: usize = 64;
const BATCH_MIN: usize = 128;
/// The writer that finds none free does it for all.
const BATCH_MAX: usize = 4096;

fn batch(engine: &Shared) -> usize {
    (engine.arena.frames() as usize / BATCH_PART).clamp(BATCH_MIN, BATCH_MAX)
}
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
        if evict(engine, batch(engine)) == 0 {
            return engine.arena.alloc(pool);
        }
    }
}

/// Takes up to `count` frames, in runs where possible, and adds them to `out`. Clean pages are dropped for them if
/// need be; fewer, if every page is pinned.
///
/// # Blocking
/// Never.
pub(crate) fn alloc_frames(engine: &Arc<Shared>, pool: Pool, count: usize, out: &mut Vec<FrameId>) {
    let full = out.len() + count;
    loop {
        engine.arena.alloc_many(pool, full - out.len(), out);
        if out.len() == full || evict(engine, batch(engine).max(full - out.len())) == 0 {
            return;
        }
    }
}

/// Drops clean pages until `target` frames are freed or every volume has been looked through.
pub(crate) fn evict(engine: &Arc<Shared>, target: usize) -> usize {
    let mut freed = 0;
    let volumes = engine.super_blocks();
    for sb in &volumes {
        while sb.lru_sweeping.load(Ordering::Acquire) {
            thread::yield_now(); // its queue is out for a moment
        }
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
        // Somebody may have put a page there meanwhile, without a new entry, since the leaf was still there.
        Some(false) if !inode.mapping.remove_if_empty(leaf.first) => sb.lru.lock().push_back(leaf),
        Some(false) if inode.users() == 0 && inode.mapping.is_empty() => sb.forget_if_unused(&inode),
        Some(false) => sb.note_unused(&inode),
        None => {}
    }
    count
}

/// Entries that a queue may have beyond twice what was alive at the last sweep.
const SWEEP_SLACK: usize = 1024;

/// Takes entries out of the queue whose inode or leaf is gone, and repeated ones: files that come and go would
/// make it grow for ever where nothing has to be evicted. Each sweep is paid for by as many additions.
pub(crate) fn sweep_if_long(sb: &SuperBlock, length: usize) {
    let limit = SWEEP_SLACK + 2 * sb.lru_swept.load(Ordering::Relaxed);
    if length <= limit || sb.lru_sweeping.swap(true, Ordering::AcqRel) {
        return;
    }
    let mut queue = std::mem::take(&mut *sb.lru.lock());
    let mut seen = HashSet::new();
    queue.retain(|leaf| {
        let Some(inode) = leaf.inode.upgrade() else { return false };
        let present = inode.mapping.with_page(leaf.first, |state, _| state.present() != 0);
        present == Some(true) && seen.insert((inode.id(), leaf.first))
    });
    let mut lru = sb.lru.lock();
    queue.append(&mut lru);
    sb.lru_swept.store(queue.len(), Ordering::Relaxed);
    *lru = queue;
    drop(lru);
    sb.lru_sweeping.store(false, Ordering::Release);
}

impl SuperBlock {
    /// A writer found no room: every volume that has something to give writes back and commits.
    pub(crate) fn make_room(&self) {
        for sb in self.engine().super_blocks() {
            if sb.bdi().pinned_frames() != 0 && sb.bdi().ask_for_room() {
                sb.wake_wbs();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use slackwater_arena::{Arena, ArenaConfig};

    use super::*;
    use crate::backend::{MemBackend, NewNode};
    use crate::clock::ManualClock;
    use crate::engine::Engine;
    use crate::file::File;
    use crate::tunables::Tunables;
    use crate::units::Timestamp;

    #[test]
    fn files_that_come_and_go_leave_no_trace_in_the_queue() {
        let arena = Arena::create(&ArenaConfig::memfd(16 << 20)).unwrap();
        let tunables = Tunables { flusher_threads: 0, ..Tunables::default() };
        let engine = Engine::new(arena, Arc::new(ManualClock::new(Timestamp(0))), tunables);
        let sb = engine.mount("a", Arc::new(MemBackend::new())).unwrap();
        let kept = File::open(&sb.make(&sb.root().unwrap(), "kept", NewNode::File, 0o644).unwrap()).unwrap();
        kept.write_at(0, b"kept").unwrap();
        for _ in 0..5000 {
            let file = File::open(&sb.make(&sb.root().unwrap(), "x", NewNode::File, 0o644).unwrap()).unwrap();
            file.write_at(0, b"x").unwrap();
            sb.remove(&sb.root().unwrap(), "x", crate::backend::Removal::File).unwrap();
        }
        let length = sb.lru.lock().len();
        assert!(length <= SWEEP_SLACK + 2, "{length} entries for one file");
    }
}

//! A page of a write: it is found or gets a fresh frame, and is marked dirty.
//!
//! This file implements R1, R2 and R4 of [`super::write`].
//!
//! # Lock order
//! The leaf, under which the frame is only try-locked.

use slackwater_arena::{FRAME_BYTES, FrameId, FrameRead, FrameWrite, copy_bytes};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::error::FileError;
use crate::filemap::busy_frames::{is_being_filled, wait_for_frame};
use crate::filemap::read::Fetched;
use crate::filemap::write_terms::Terms;
use crate::inode::Inode;
use crate::page_cache::{LeafState, Mark};
use crate::units::{PAGE_BYTES, PageIndex};
use crate::writeback::Pages;

/// The state of a page for a write, found under the leaf's lock.
enum WriteBegin<'a> {
    /// The page is cached, its frame is locked and its mark is set: copy. Also the change of the dirty counts.
    InPlace(FrameWrite<'a>, Pages),
    /// The page is under write-back: copy into a fresh frame, together with these bytes of the page.
    Rewrite(FrameId, FrameRead<'a>),
    /// The page is not cached.
    Absent,
    /// The frame is being filled or copied to: look again afterwards.
    Wait(FrameId),
    /// The volume's share is used up.
    NoFrames,
    /// The backend's space is used up.
    NoSpace,
}

/// The outcome of a write to one page, or to several.
pub(super) enum Outcome {
    Taken {
        bytes: usize,
        /// The change of the dirty counts.
        newly: Pages,
    },
    NoFrames,
    NoSpace,
}

/// The part of a page that a write covers.
#[derive(Copy, Clone)]
pub(super) struct Span {
    pub(super) index: PageIndex,
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Span {
    /// The part of its first page that a write of `len` bytes at `offset_bytes` covers.
    pub(super) fn first_of(offset_bytes: u64, len: usize) -> Self {
        let from = (offset_bytes % PAGE_BYTES) as usize;
        Self { index: PageIndex::of(offset_bytes), from, to: (from + len).min(FRAME_BYTES) }
    }

    pub(super) fn len(self) -> usize {
        self.to - self.from
    }

    /// R4: grows the file to the end of the span.
    pub(super) fn grow(self, inode: &Inode) {
        let end = self.index.offset_bytes() + self.to as u64;
        if end > inode.size_bytes() {
            inode.set_size(end);
        }
    }
}

/// Writes to one page or a part of it.
pub(super) fn write_page(inode: &Arc<Inode>, span: Span, bytes: &[u8], terms: Terms<'_>) -> Result<Outcome, FileError> {
    let mut brought = false;
    loop {
        let engine = inode.super_block().engine();
        let ask = |frame| {
            engine.arena.prefetch(frame);
            engine.owners.prefetch(frame);
        };
        let begun = inode
            .mapping
            .with_page_and_bytes(span.index, ask, |leaf, slot| {
                write_begin(inode, leaf, slot, span.index, brought, terms)
            })
            .unwrap_or(WriteBegin::Absent);
        match begun {
            WriteBegin::InPlace(mut frame, newly) => {
                copy_bytes(&mut frame[span.from..span.to], bytes);
                span.grow(inode);
                return Ok(Outcome::Taken { bytes: bytes.len(), newly });
            }
            WriteBegin::NoFrames => return Ok(Outcome::NoFrames),
            WriteBegin::NoSpace => return Ok(Outcome::NoSpace),
            WriteBegin::Wait(frame) => {
                if !terms.may_wait && is_being_filled(inode, span.index, frame) {
                    return Err(FileError::WouldBlock);
                }
                wait_for_frame(inode, span.index, frame);
            }
            WriteBegin::Rewrite(old, earlier) => {
                let Some(fresh) = take_frame(inode, terms) else { return Ok(Outcome::NoFrames) };
                fill_frame(inode, fresh, span, bytes, Some(&earlier));
                if let Some(newly) = install(inode, span, fresh, Some(old), false, terms) {
                    return Ok(Outcome::Taken { bytes: bytes.len(), newly });
                }
            }
            WriteBegin::Absent => {
                if needs_read(inode, span) {
                    if !terms.may_wait {
                        return Err(FileError::WouldBlock);
                    }
                    match super::read::read_page(inode, span.index, terms.memcg)? {
                        Fetched::Read(_) => brought = true,
                        Fetched::Changed => {}
                        Fetched::NoFrame => return Ok(Outcome::NoFrames),
                    }
                    continue;
                }
                let space = &inode.super_block().space;
                let delayed = inode.needs_space(span.index);
                if delayed && !terms.reserve(space) {
                    return Ok(Outcome::NoSpace);
                }
                let Some(fresh) = take_frame(inode, terms) else {
                    space.release(u64::from(delayed));
                    return Ok(Outcome::NoFrames);
                };
                fill_frame(inode, fresh, span, bytes, None);
                if let Some(newly) = install(inode, span, fresh, None, delayed, terms) {
                    return Ok(Outcome::Taken { bytes: bytes.len(), newly });
                }
            }
        }
        // Another thread changed the page meanwhile: look again.
    }
}

/// Locks the page's frame for writing and marks the page dirty, under the leaf's lock. `brought` says that this write
/// had the page read.
fn write_begin<'a>(
    inode: &'a Inode,
    leaf: &mut LeafState,
    slot: usize,
    index: PageIndex,
    brought: bool,
    terms: Terms<'_>,
) -> WriteBegin<'a> {
    let sb = inode.super_block();
    let arena = &sb.engine().arena;
    let Some(frame) = leaf.frame(slot) else { return WriteBegin::Absent };
    if !leaf.has(Mark::Uptodate, slot) {
        return WriteBegin::Wait(frame);
    }
    if leaf.has(Mark::Writeback, slot) && !leaf.has(Mark::Dirty, slot) {
        return arena.try_read(frame).map_or(WriteBegin::Wait(frame), |earlier| WriteBegin::Rewrite(frame, earlier));
    }
    let owners = &sb.engine().owners;
    let Some(guard) = arena.try_write(frame) else { return WriteBegin::Wait(frame) };
    let unclean = leaf.unclean() >> slot & 1 != 0;
    if unclean {
        owners.take_over(frame, frame, terms.memcg);
    } else {
        if !sb.bdi().try_pin() {
            return WriteBegin::NoFrames;
        }
        if inode.needs_space(index) {
            if !terms.reserve(&sb.space) {
                sb.bdi().unpin(1);
                return WriteBegin::NoSpace;
            }
            leaf.set(Mark::Delayed, slot);
        }
        inode.mapping.add_unclean(1);
        owners.charge(frame, terms.memcg);
        let Some(record) = inode.slot() else { unreachable!("N2: taken by begin_dirtying") };
        arena.publish_dirty(frame, record, index.0, arena.version(frame));
    }
    let newly = mark_written(inode, leaf, slot, brought && !unclean, terms);
    inode.mapping.add(Mark::Dirty, newly.reclaimable);
    WriteBegin::InPlace(guard, newly)
}

/// Marks a page dirty that is written to. It is marked for drop-behind if the write is DONTCACHE and either brought the
/// page in (`brings`) or found that mark on it. Writing to a page that is not clean continues the same use of it.
/// Returns the change of the dirty counts. Kernel: `folio_clear_dropbehind` in `filemap_get_folio`.
pub(super) fn mark_written(inode: &Inode, leaf: &mut LeafState, slot: usize, brings: bool, terms: Terms<'_>) -> Pages {
    if leaf.unclean() >> slot & 1 == 0 {
        leaf.touch(slot);
    }
    let (was_dirty, was_to_leave) = (leaf.has(Mark::Dirty, slot), leaf.has(Mark::Dropbehind, slot));
    let leaves = terms.is_dontcache() && (brings || was_to_leave);
    if leaves && !was_to_leave {
        leaf.set(Mark::Dropbehind, slot);
    } else if was_to_leave && !leaves {
        let unstable = leaf.has(Mark::Unstable, slot);
        leaf.clear(Mark::Dropbehind, slot);
        inode.super_block().bdi().add_dropbehind_unstable(-i64::from(unstable));
    }
    leaf.set(Mark::Dirty, slot);
    Pages {
        reclaimable: i64::from(!was_dirty),
        dontcache_dirty: i64::from(leaves) - i64::from(was_dirty && was_to_leave),
        ..Pages::default()
    }
}

/// Whether the page's earlier bytes matter and are in the backend.
fn needs_read(inode: &Inode, span: Span) -> bool {
    let start = span.index.offset_bytes();
    if start >= inode.backing_bytes.load(Ordering::Acquire) {
        return false;
    }
    let covers_rest = start + span.to as u64 >= inode.size_bytes();
    !(span.from == 0 && (span.to == FRAME_BYTES || covers_rest))
}

/// A frame for a page that becomes dirty. It is pinned; clean pages are evicted for it if necessary.
fn take_frame(inode: &Inode, terms: Terms<'_>) -> Option<FrameId> {
    let sb = inode.super_block();
    if !sb.bdi().try_pin() {
        return None;
    }
    let frame = sb.engine().reclaim.alloc_frame(terms.pool());
    if frame.is_none() {
        sb.bdi().unpin(1);
    }
    frame
}

/// R2. No other thread knows the frame yet.
fn fill_frame(inode: &Inode, fresh: FrameId, span: Span, bytes: &[u8], earlier: Option<&FrameRead<'_>>) {
    let mut frame = inode.super_block().engine().arena.write(fresh);
    match earlier {
        Some(earlier) => {
            frame[..span.from].copy_from_slice(&earlier[..span.from]);
            frame[span.to..].copy_from_slice(&earlier[span.to..]);
        }
        None => {
            frame[..span.from].fill(0);
            frame[span.to..].fill(0);
        }
    }
    copy_bytes(&mut frame[span.from..span.to], bytes);
}

/// Publishes a filled frame as the page's frame in place of `old`, unless the page has changed meanwhile. `delayed`
/// says that space is reserved for it. Returns the change of the dirty counts.
fn install(
    inode: &Arc<Inode>,
    span: Span,
    fresh: FrameId,
    old: Option<FrameId>,
    delayed: bool,
    terms: Terms<'_>,
) -> Option<Pages> {
    let sb = inode.super_block();
    let arena = &sb.engine().arena;
    let Some(record) = inode.slot() else { unreachable!("N2: taken by begin_dirtying") };
    let index = span.index;
    let installed = inode.mapping.with_page_or_new(index, |leaf, slot| {
        if leaf.frame(slot) != old {
            return None;
        }
        match old {
            // Another write made the page, and it was written back and evicted meanwhile: its bytes are in the backend.
            None if needs_read(inode, span) => return None,
            None => {
                arena.publish_dirty(fresh, record, index.0, 0);
                leaf.insert(slot, fresh);
                leaf.set(Mark::Uptodate, slot);
                if delayed {
                    leaf.set(Mark::Delayed, slot);
                }
                inode.mapping.add_unclean(1);
            }
            // The old frame is locked, so it still belongs to this page. Its unit may have ended.
            Some(old) if leaf.has(Mark::Writeback, slot) => {
                arena.publish_dirty(fresh, record, index.0, arena.version(old) + 1);
                let _ = leaf.replace(slot, fresh);
            }
            Some(_) => return None,
        }
        sb.engine().owners.charge(fresh, terms.memcg);
        let newly = mark_written(inode, leaf, slot, old.is_none(), terms);
        inode.mapping.add(Mark::Dirty, newly.reclaimable);
        span.grow(inode);
        Some(newly)
    });
    if installed.is_none() {
        arena.free(fresh);
        sb.bdi().unpin(1);
        sb.space.release(u64::from(delayed));
    }
    installed
}

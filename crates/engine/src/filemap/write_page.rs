//! One page of a write: found, or given a fresh frame, and marked dirty.
//!
//! R1, R2 and R4 of [`super::write`] are kept here.
//!
//! # Lock order
//! The leaf, under which the frame is taken by trying.

use slackwater_arena::{FRAME_BYTES, FrameId, FrameRead, FrameWrite, copy_bytes};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::error::FileError;
use crate::filemap::busy_frames::{is_being_filled, wait_for_frame};
use crate::filemap::read::Fetched;
use crate::filemap::write_terms::Terms;
use crate::inode::Inode;
use crate::page_cache::{LeafState, Mark};
use crate::reclaim;
use crate::units::{PAGE_BYTES, PageIndex};
use crate::writeback::Pages;

/// What a page is to the write that wants it; found under the leaf's lock.
enum Grip<'a> {
    /// The frame is here and locked, its mark is set: copy. With what is dirty now and was not.
    InPlace(FrameWrite<'a>, Pages),
    /// Under write-back: copy into a fresh frame; these are the page's bytes.
    Rewrite(FrameId, FrameRead<'a>),
    /// Nothing is here.
    Absent,
    /// Being filled, or somebody copies: look again when that is over.
    Wait(FrameId),
    /// The share is used up.
    NoFrames,
    /// The backend's space is.
    NoSpace,
}

/// What became of one page of a write, or of some.
pub(super) enum Outcome {
    Taken {
        bytes: usize,
        /// What is dirty now and was not before.
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
    /// What a write of `len` bytes at `offset_bytes` covers of its first page.
    pub(super) fn first_of(offset_bytes: u64, len: usize) -> Self {
        let from = (offset_bytes % PAGE_BYTES) as usize;
        Self { index: PageIndex::of(offset_bytes), from, to: (from + len).min(FRAME_BYTES) }
    }

    pub(super) fn len(self) -> usize {
        self.to - self.from
    }

    /// R4: the file reaches at least to the end of the span.
    pub(super) fn grow(self, inode: &Inode) {
        let end = self.index.offset_bytes() + self.to as u64;
        if end > inode.size_bytes() {
            inode.set_size(end);
        }
    }
}

/// Writes one page or part of it.
pub(super) fn write_page(inode: &Arc<Inode>, span: Span, bytes: &[u8], terms: Terms<'_>) -> Result<Outcome, FileError> {
    let mut brought = false;
    loop {
        let engine = inode.super_block().engine();
        let ask = |frame| {
            engine.arena.prefetch(frame);
            engine.owners.prefetch(frame);
        };
        let grip = inode
            .mapping
            .with_page_and_bytes(span.index, ask, |leaf, slot| grip(inode, leaf, slot, span.index, brought, terms))
            .unwrap_or(Grip::Absent);
        match grip {
            Grip::InPlace(mut frame, newly) => {
                copy_bytes(&mut frame[span.from..span.to], bytes);
                span.grow(inode);
                return Ok(Outcome::Taken { bytes: bytes.len(), newly });
            }
            Grip::NoFrames => return Ok(Outcome::NoFrames),
            Grip::NoSpace => return Ok(Outcome::NoSpace),
            Grip::Wait(frame) => {
                if !terms.may_wait && is_being_filled(inode, span.index, frame) {
                    return Err(FileError::WouldBlock);
                }
                wait_for_frame(inode, span.index, frame);
            }
            Grip::Rewrite(old, earlier) => {
                let Some(fresh) = take_frame(inode, terms) else { return Ok(Outcome::NoFrames) };
                fill_frame(inode, fresh, span, bytes, Some(&earlier));
                if let Some(newly) = install(inode, span, fresh, Some(old), false, terms) {
                    return Ok(Outcome::Taken { bytes: bytes.len(), newly });
                }
            }
            Grip::Absent => {
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
        // Somebody else changed the page meanwhile: look again.
    }
}

/// Takes hold of the page for writing, under the leaf's lock. A page that is not dirty becomes so here. `brought`: this
/// write had it read.
fn grip<'a>(
    inode: &'a Inode,
    leaf: &mut LeafState,
    slot: usize,
    index: PageIndex,
    brought: bool,
    terms: Terms<'_>,
) -> Grip<'a> {
    let sb = inode.super_block();
    let arena = &sb.engine().arena;
    let Some(frame) = leaf.frame(slot) else { return Grip::Absent };
    if !leaf.has(Mark::Uptodate, slot) {
        return Grip::Wait(frame);
    }
    if leaf.has(Mark::Writeback, slot) && !leaf.has(Mark::Dirty, slot) {
        return arena.try_read(frame).map_or(Grip::Wait(frame), |earlier| Grip::Rewrite(frame, earlier));
    }
    let owners = &sb.engine().owners;
    let Some(guard) = arena.try_write(frame) else { return Grip::Wait(frame) };
    let unclean = leaf.unclean() >> slot & 1 != 0;
    if unclean {
        owners.take_over(frame, frame, terms.memcg);
    } else {
        if !sb.bdi().try_pin() {
            return Grip::NoFrames;
        }
        if inode.needs_space(index) {
            if !terms.reserve(&sb.space) {
                sb.bdi().unpin(1);
                return Grip::NoSpace;
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
    Grip::InPlace(guard, newly)
}

/// Marks a page dirty that is written to: one that leaves once it is clean, if `terms` say so and the write `brings` it here,
/// or an earlier one of the kind has. To write to what is unclean already is still the same use of it. Returns what that
/// changes. Kernel: `folio_clear_dropbehind` in `filemap_get_folio`; sem. 7.6.
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

/// Whether the page's earlier bytes matter and are on the backend.
fn needs_read(inode: &Inode, span: Span) -> bool {
    let start = span.index.offset_bytes();
    if start >= inode.backing_bytes.load(Ordering::Acquire) {
        return false;
    }
    let covers_rest = start + span.to as u64 >= inode.size_bytes();
    !(span.from == 0 && (span.to == FRAME_BYTES || covers_rest))
}

/// A frame for a page that becomes dirty: pinned, evicting clean pages for it if need be.
fn take_frame(inode: &Inode, terms: Terms<'_>) -> Option<FrameId> {
    let sb = inode.super_block();
    if !sb.bdi().try_pin() {
        return None;
    }
    let frame = reclaim::alloc_frame(sb.engine(), terms.pool());
    if frame.is_none() {
        sb.bdi().unpin(1);
    }
    frame
}

/// R2. Nobody else knows the frame yet.
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

/// Publishes a filled frame as the page's, in the place of `old`, unless the page has changed meanwhile. `delayed`:
/// space is reserved for it. Returns what is dirty now and was not.
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
            // Written by another, written back and evicted since we looked: its bytes are on the backend.
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
            // The old frame's lock is held, so it is the same page still; its unit may have ended.
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

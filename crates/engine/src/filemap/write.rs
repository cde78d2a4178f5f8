//! Writing to a file: bytes into frames, frames marked dirty.
//!
//! # Invariants
//! R1. A page's bytes change only under its frame's exclusive lock, in a frame that no unit reads. A page
//!     under write-back gets a fresh frame instead, so a write never waits for the device.
//! R2. A fresh frame carries the page's earlier bytes or zeroes wherever the payload does not cover it, before
//!     it is published to the arena or to readers. No byte of another file is ever visible.
//! R3. The mtime is set before the first page is touched, so whoever flushes the page carries it.
//! R4. The size grows page by page, before the page can be taken for a unit: with the frame locked, or with
//!     the leaf locked under which a fresh frame appears. A unit that ends at the size misses no byte.
//! R5. When write returns, every byte is in a frame whose record says dirty, in a file whose record has the
//!     size: a killed process loses nothing (P9).
//!
//! # Lock order
//! `rwsem`, for reading while the write stays inside the file and for writing when it extends it; then per
//! page the leaf, under which the frame is taken by trying.
//!
//! # Kernel counterpart
//! `generic_perform_write`, `__folio_mark_dirty`; sem. 2.1.

use slackwater_arena::{FRAME_BYTES, FrameId, FrameRead, FrameWrite, copy_bytes};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::error::{BackendError, ErrorKind, FileError};
use crate::file::File;
use crate::filemap::busy_frames::{is_being_filled, wait_for_frame};
use crate::filemap::check_range;
use crate::filemap::read::Fetched;
use crate::filemap::write_terms::Terms;
use crate::inode::{Inode, meta};
use crate::page_cache::{LEAF_PAGES, LeafState, Mark};
use crate::reclaim;
use crate::super_block::{LeafRef, Left};
use crate::units::{PAGE_BYTES, PageIndex, Tick};

/// What became of a write.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub enum Written {
    /// This many bytes were taken; fewer than given when room ran out on the way.
    Bytes(usize),
    /// Nothing was taken: no frame is free, or the volume has used up its share. Write-back has been
    /// started; try again when it got on, or let [`File::write_at`] wait.
    NoRoom,
    /// Nothing was taken: what the backend has free is used up by what is dirty already.
    NoSpace,
}

/// What a page is to the write that wants it; found under the leaf's lock.
enum Grip<'a> {
    /// The frame is here and locked, its mark is set: copy.
    InPlace(FrameWrite<'a>),
    /// Under write-back: copy into a fresh frame; these are the page's bytes.
    Rewrite(FrameId, FrameRead<'a>),
    /// Nothing is here.
    Absent,
    /// Being filled, or somebody copies: look again when that is over.
    Wait(FrameId),
    /// The share is used up.
    NoRoom,
    /// The backend's space is.
    NoSpace,
}

/// What became of one page of a write.
enum Outcome {
    Taken {
        /// It was not dirty before.
        newly: bool,
    },
    NoRoom,
    NoSpace,
}

/// The part of a page that a write covers.
#[derive(Copy, Clone)]
struct Span {
    index: PageIndex,
    from: usize,
    to: usize,
}

impl Span {
    /// R4: the file reaches at least to the end of the span.
    fn grow(self, inode: &Inode) {
        let end = self.index.offset_bytes() + self.to as u64;
        if end > inode.size_bytes() {
            inode.set_size(end);
        }
    }
}

impl File {
    /// Writes `bytes` at `offset_bytes` without ever waiting for room.
    ///
    /// # Errors
    /// The range is beyond what the backend can hold, or the volume is frozen or gone; nothing was written.
    /// A backend error when a page that is covered in part could not be read.
    ///
    /// # Blocking
    /// For the backend, if a page outside the cache is covered in part; for other writers and truncates of
    /// this file. Never for write-back.
    pub fn try_write_at(&self, offset_bytes: u64, bytes: &[u8]) -> Result<Written, FileError> {
        self.write_on(offset_bytes, bytes, Terms::Patient)
    }

    pub(super) fn write_on(&self, offset_bytes: u64, bytes: &[u8], terms: Terms) -> Result<Written, FileError> {
        let inode = self.inode.arc();
        let end = check_range(inode, offset_bytes, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(Written::Bytes(0));
        }
        {
            let _shared = inode.rwsem.read();
            if end <= inode.size_bytes() {
                return write_locked(inode, offset_bytes, bytes, terms);
            }
        }
        let _exclusive = inode.rwsem.write();
        write_locked(inode, offset_bytes, bytes, terms)
    }

    /// Writes all of `bytes` at the end of the file, without ever waiting for room. Returns where they went.
    ///
    /// # Errors
    /// As [`File::try_write_at`].
    ///
    /// # Blocking
    /// As [`File::try_write_at`].
    pub fn try_append(&self, bytes: &[u8]) -> Result<(u64, Written), FileError> {
        let inode = self.inode.arc();
        let _exclusive = inode.rwsem.write();
        let offset_bytes = inode.size_bytes();
        check_range(inode, offset_bytes, bytes.len() as u64)?;
        Ok((offset_bytes, write_locked(inode, offset_bytes, bytes, Terms::Patient)?))
    }

    /// Writes all of `bytes` at `offset_bytes`, waiting for room as long as it takes.
    ///
    /// # Errors
    /// As [`File::try_write_at`], or `NoSpace`; what came before the error was written.
    ///
    /// # Blocking
    /// Until write-back has made room, which is for ever on a dead backend.
    pub fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), FileError> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.write_at_until(offset_bytes + done as u64, &bytes[done..], None)?;
        }
        Ok(())
    }

    /// Writes `bytes` at `offset_bytes`, waiting for room until `deadline`. Returns how many were written.
    ///
    /// # Errors
    /// As [`File::try_write_at`]; [`FileError::NoRoom`] when nothing was written by the deadline, and `NoSpace`
    /// when nothing was because the backend is full.
    ///
    /// # Blocking
    /// Until write-back has made room, or `deadline`.
    pub fn write_at_until(&self, offset_bytes: u64, bytes: &[u8], deadline: Option<Tick>) -> Result<usize, FileError> {
        let engine = self.inode.super_block().engine();
        let mut done = 0;
        // What had been given before the attempt that is waited for. Read only once there was no room: it takes
        // a lock that all volumes share.
        let mut seen = None;
        while done < bytes.len() {
            match (self.try_write_at(offset_bytes + done as u64, &bytes[done..])?, seen.take()) {
                (Written::Bytes(taken), _) => done += taken,
                (Written::NoSpace, _) if done == 0 => return Err(BackendError::from(ErrorKind::NoSpace).into()),
                (Written::NoSpace, _) => return Ok(done),
                (Written::NoRoom, None) => seen = Some(engine.room.given()),
                (Written::NoRoom, Some(given)) => {
                    engine.run_by_hand();
                    if !engine.room.wait(given, &*engine.clock, deadline) {
                        return if done == 0 { Err(FileError::NoRoom) } else { Ok(done) };
                    }
                }
            }
        }
        Ok(done)
    }
}

/// The write itself; the caller holds `rwsem` as the range requires. Whether there is really no space is asked
/// before it is said.
pub(super) fn write_locked(
    inode: &Arc<Inode>,
    offset_bytes: u64,
    bytes: &[u8],
    terms: Terms,
) -> Result<Written, FileError> {
    loop {
        let written = write_pages(inode, offset_bytes, bytes, terms)?;
        if written != Written::NoSpace {
            return Ok(written);
        }
        if terms.must_not_wait() {
            return Err(FileError::WouldBlock);
        }
        match inode.super_block().confirm_space()? {
            Left::Enough => {}
            Left::Unsure => return Ok(Written::NoRoom),
            Left::Nothing => return Ok(Written::NoSpace),
        }
    }
}

fn write_pages(inode: &Arc<Inode>, offset_bytes: u64, bytes: &[u8], terms: Terms) -> Result<Written, FileError> {
    let sb = inode.super_block();
    sb.writable()?;
    if inode.slot().is_none() && !begin_dirtying(inode, terms)? {
        return Ok(Written::NoRoom);
    }
    inode.set_mtime(sb.engine().clock.wall()); // R3
    let size_before = inode.size_bytes();
    let mut done = 0;
    let mut dirtied = 0;
    let mut failed = None;
    let mut space = true;
    while done < bytes.len() {
        let at = offset_bytes + done as u64;
        let from = (at % PAGE_BYTES) as usize;
        let to = (from + bytes.len() - done).min(FRAME_BYTES);
        let span = Span { index: PageIndex::of(at), from, to };
        match write_page(inode, span, &bytes[done..done + to - from], terms) {
            Ok(Outcome::Taken { newly }) => dirtied += i64::from(newly),
            Ok(Outcome::NoRoom) => break,
            Ok(Outcome::NoSpace) => {
                space = false;
                break;
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
        done += to - from;
    }
    let grew = inode.size_bytes() > size_before;
    if dirtied != 0 || grew {
        account(inode, dirtied, grew);
    }
    match failed {
        Some(error) if done == 0 => Err(error),
        None if done == 0 && !space => Ok(Written::NoSpace),
        None if done == 0 => {
            sb.make_room();
            Ok(Written::NoRoom)
        }
        Some(_) | None => Ok(Written::Bytes(done)),
    }
}

/// N2: takes the record and the node that a dirty inode holds. False when there is no room for either.
fn begin_dirtying(inode: &Arc<Inode>, terms: Terms) -> Result<bool, FileError> {
    if terms.must_not_wait() && inode.state.lock().node.is_none() {
        return Err(FileError::WouldBlock);
    }
    inode.node()?;
    let bdi = inode.super_block().bdi();
    if terms.takes_all() {
        bdi.pin_adopted_node();
    } else if !bdi.try_pin_node() {
        inode.super_block().make_room();
        return Ok(false);
    }
    match inode.ensure_slot() {
        Some(true) => {}
        // Somebody else was first, with a pin of his own.
        Some(false) => bdi.node_unpinned(),
        None => {
            bdi.node_unpinned();
            inode.super_block().make_room();
            return Ok(false);
        }
    }
    Ok(true)
}

fn account(inode: &Arc<Inode>, dirtied: i64, grew: bool) {
    let wb = inode.wb();
    if dirtied != 0 {
        wb.stat.reclaimable.add(dirtied);
        wb.pool.nr_dirty.add(dirtied);
    }
    wb.mark_inode_dirty(inode, if grew { meta::DIRTY_SYNC | meta::DIRTY_DATASYNC } else { meta::DIRTY_SYNC });
    if wb.pool.over_background() || wb.bdi.nodes_are_short() {
        wb.start_background();
    }
}

/// Writes one page or part of it.
fn write_page(inode: &Arc<Inode>, span: Span, bytes: &[u8], terms: Terms) -> Result<Outcome, FileError> {
    loop {
        let mut newly = false;
        let grip = inode
            .mapping
            .with_page(span.index, |leaf, slot| grip(inode, leaf, slot, span.index, terms, &mut newly))
            .unwrap_or(Grip::Absent);
        match grip {
            Grip::InPlace(mut frame) => {
                copy_bytes(&mut frame[span.from..span.to], bytes);
                span.grow(inode);
                return Ok(Outcome::Taken { newly });
            }
            Grip::NoRoom => return Ok(Outcome::NoRoom),
            Grip::NoSpace => return Ok(Outcome::NoSpace),
            Grip::Wait(frame) => {
                if terms.must_not_wait() && is_being_filled(inode, span.index, frame) {
                    return Err(FileError::WouldBlock);
                }
                wait_for_frame(inode, span.index, frame);
            }
            Grip::Rewrite(old, earlier) => {
                let Some(fresh) = take_frame(inode, terms) else { return Ok(Outcome::NoRoom) };
                fill_frame(inode, fresh, span, bytes, Some(&earlier));
                if install(inode, span, fresh, Some(old), false) {
                    return Ok(Outcome::Taken { newly: true });
                }
            }
            Grip::Absent => {
                if needs_read(inode, span) {
                    if terms.must_not_wait() {
                        return Err(FileError::WouldBlock);
                    }
                    match super::read::read_page(inode, span.index)? {
                        Fetched::Tried => continue,
                        Fetched::NoFrame => return Ok(Outcome::NoRoom),
                    }
                }
                let space = &inode.super_block().space;
                let delayed = inode.needs_space(span.index);
                if delayed && !terms.reserve(space) {
                    return Ok(Outcome::NoSpace);
                }
                let Some(fresh) = take_frame(inode, terms) else {
                    space.release(u64::from(delayed));
                    return Ok(Outcome::NoRoom);
                };
                fill_frame(inode, fresh, span, bytes, None);
                if install(inode, span, fresh, None, delayed) {
                    return Ok(Outcome::Taken { newly: true });
                }
            }
        }
        // Somebody else changed the page meanwhile: look again.
    }
}

/// Takes hold of the page for writing, under the leaf's lock. A page that is not dirty becomes so here.
fn grip<'a>(
    inode: &'a Inode,
    leaf: &mut LeafState,
    slot: usize,
    index: PageIndex,
    terms: Terms,
    newly: &mut bool,
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
    let Some(guard) = arena.try_write(frame) else { return Grip::Wait(frame) };
    if !leaf.has(Mark::Dirty, slot) {
        let unclean = leaf.unclean() >> slot & 1 != 0;
        if !unclean {
            if !terms.pin(sb.bdi()) {
                return Grip::NoRoom;
            }
            if inode.needs_space(index) {
                if !terms.reserve(&sb.space) {
                    sb.bdi().unpin(1);
                    return Grip::NoSpace;
                }
                leaf.set(Mark::Delayed, slot);
            }
            inode.mapping.add_unclean(1);
            let Some(record) = inode.slot() else { unreachable!("N2: taken by begin_dirtying") };
            arena.publish_dirty(frame, record, index.0, arena.version(frame));
        }
        leaf.set(Mark::Dirty, slot);
        inode.mapping.add(Mark::Dirty, 1);
        *newly = true;
    }
    Grip::InPlace(guard)
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
fn take_frame(inode: &Inode, terms: Terms) -> Option<FrameId> {
    let sb = inode.super_block();
    if !terms.pin(sb.bdi()) {
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
/// space is reserved for it.
fn install(inode: &Arc<Inode>, span: Span, fresh: FrameId, old: Option<FrameId>, delayed: bool) -> bool {
    let sb = inode.super_block();
    let arena = &sb.engine().arena;
    let Some(record) = inode.slot() else { unreachable!("N2: taken by begin_dirtying") };
    let index = span.index;
    let (installed, new_leaf) = inode.mapping.with_page_or_new(index, |leaf, slot| {
        if leaf.frame(slot) != old {
            return false;
        }
        match old {
            // Written by another, written back and evicted since we looked: its bytes are on the backend.
            None if needs_read(inode, span) => return false,
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
            Some(_) => return false,
        }
        leaf.set(Mark::Dirty, slot);
        inode.mapping.add(Mark::Dirty, 1);
        span.grow(inode);
        true
    });
    if !installed {
        arena.free(fresh);
        sb.bdi().unpin(1);
        sb.space.release(u64::from(delayed));
    }
    if new_leaf {
        list_leaf(inode, index);
    }
    installed
}

/// Puts a new leaf on the volume's eviction list.
pub(crate) fn list_leaf(inode: &Arc<Inode>, index: PageIndex) {
    let first = PageIndex(index.0 / LEAF_PAGES * LEAF_PAGES);
    let sb = inode.super_block();
    let length = {
        let mut lru = sb.lru.lock();
        lru.push_back(LeafRef { inode: Arc::downgrade(inode), first });
        lru.len()
    };
    reclaim::sweep_if_long(sb, length);
}

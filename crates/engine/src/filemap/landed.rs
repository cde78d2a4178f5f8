//! Payloads received directly into frames of the arena. A write exchanges these frames with those of its pages.
//!
//! # Invariants
//! E1. The frames of a [`LandingFrames`] belong to it alone: they are locked exclusively, no page has them, and their
//!     records are FREE. A frame enters or leaves only by an exchange under the leaf's lock. So no thread finds a page
//!     without a frame, or a frame in two places.
//! E2. The landed frame is published, with a version above that of the page's old frame, before the old frame's record
//!     is cleared. A killed process is recovered with one or the other (F4 of the arena).
//! E3. The old frame is taken in exchange only if no thread holds it and no unit has it. A frame under write-back stays
//!     with its unit, and a fresh frame is taken instead, as for a page that is not cached.
//! E4. Landing frames of all volumes are at most one [`PART`]th of the arena. They are not pinned, because they belong
//!     to no page.
//!
//! # Lock order
//! As [`super::write`]. The landed frame is unlocked under the leaf's lock.
//!
//! # Kernel counterpart
//! `fuse_try_move_folio`, `splice` with `SPLICE_F_MOVE`.

use std::fmt;
use std::ops::Range;

use slackwater_arena::{FRAME_BYTES, FrameId, Pool, Scatter};
use slackwater_sync::shim::Arc;

use crate::engine::Shared;
use crate::error::{BackendError, ErrorKind, FileError};
use crate::file::File;
use crate::filemap::request::{WaitFor, WriteRequest};
use crate::filemap::write::{Source, Written};
use crate::filemap::write_page::{Outcome, Span, mark_written, write_page};
use crate::filemap::write_terms::Terms;
use crate::inode::Inode;
use crate::page_cache::{LeafState, Mark, range_bits};
use crate::super_block::SuperBlock;
use crate::units::{PAGE_BYTES, PageIndex};
use crate::writeback::Pages;

/// Landing frames are at most one in this many frames of the arena.
const PART: usize = 16;

/// Frames of the arena that receive a payload, for [`File::write_landed`]. Dropping it returns them for the next
/// payload.
pub struct LandingFrames {
    frames: Scatter,
    /// Fresh frames to be taken in place of landed ones; empty between two calls.
    fresh: Vec<FrameId>,
    engine: Arc<Shared>,
}

impl LandingFrames {
    fn new(engine: &Arc<Shared>, count: usize) -> Option<Self> {
        let stock = &engine.landing;
        if !stock.try_add(count, engine.arena.frames() as usize / PART) {
            return None;
        }
        let mut list = Vec::with_capacity(count);
        engine.reclaim.alloc_frames(Pool::Normal, count, &mut list);
        let mut frames = Scatter::new(Arc::clone(&engine.arena), count);
        list.retain(|frame| !frames.push(*frame));
        list.iter().for_each(|frame| engine.arena.free(*frame));
        if frames.frames().len() < count {
            stock.sub(count - frames.frames().len());
            stock.free(frames);
            return None;
        }
        list.clear();
        Some(Self { frames, fresh: list, engine: Arc::clone(engine) })
    }

    /// The number of bytes that can be received.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.frames.frames().len() * FRAME_BYTES
    }

    /// The memory to receive into: all frames, in as few slices as their order allows.
    pub fn slices_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let len_bytes = self.len_bytes();
        self.frames.slices_mut(len_bytes)
    }

    /// Copies `to.len()` bytes from offset `from` of the payload.
    ///
    /// # Panics
    /// If the frames hold fewer bytes.
    pub fn copy_to(&self, from: usize, to: &mut [u8]) {
        let (mut skip, mut copied) = (from, 0);
        for slice in self.frames.slices(from + to.len()) {
            let part = &slice[skip.min(slice.len())..];
            skip -= slice.len() - part.len();
            to[copied..copied + part.len()].copy_from_slice(part);
            copied += part.len();
        }
    }

    fn give_back_fresh(&mut self) {
        self.fresh.drain(..).for_each(|frame| self.engine.arena.free(frame));
    }
}

impl Drop for LandingFrames {
    fn drop(&mut self) {
        self.give_back_fresh();
        let frames = std::mem::replace(&mut self.frames, Scatter::new(Arc::clone(&self.engine.arena), 0));
        self.engine.landing.keep(frames, std::mem::take(&mut self.fresh));
    }
}

impl fmt::Debug for LandingFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LandingFrames").field("len_bytes", &self.len_bytes()).finish_non_exhaustive()
    }
}

impl SuperBlock {
    /// Lends frames for payloads of up to `len_bytes`. `None` if no frames are free, or the maximum is in use.
    ///
    /// # Blocking
    /// Never.
    pub fn landing_frames(&self, len_bytes: usize) -> Option<LandingFrames> {
        let (engine, count) = (self.engine(), len_bytes.div_ceil(FRAME_BYTES));
        match engine.landing.take() {
            Some((frames, fresh)) if frames.frames().len() == count => {
                Some(LandingFrames { frames, fresh, engine: Arc::clone(engine) })
            }
            other => {
                other.into_iter().for_each(|(frames, _)| engine.landing.free(frames));
                LandingFrames::new(engine, count)
            }
        }
    }
}

impl File {
    /// Writes the bytes `range` of what has landed, as `request` says. Whole pages are taken with their frames: what
    /// `landed` holds in their place afterwards is arbitrary. Bytes that were not taken are still there. Waits for
    /// nothing, whatever the request allows.
    ///
    /// # Errors
    /// As a [`File::write`] that may wait for nothing. `Invalid` if `offset_bytes` or the start of `range` is
    /// not at a page, `range` is not within `landed`, or `landed` belongs to another engine.
    ///
    /// # Blocking
    /// As [`WaitFor::Nothing`] says.
    pub fn write_landed(
        &self,
        request: WriteRequest<'_>,
        landed: &mut LandingFrames,
        range: Range<usize>,
    ) -> Result<Written, FileError> {
        let is_at_page = (request.offset_bytes | range.start as u64).is_multiple_of(PAGE_BYTES);
        let is_ours = Arc::ptr_eq(&landed.engine, self.inode().super_block().engine());
        if !is_ours || !is_at_page || range.start > range.end || range.end > landed.len_bytes() {
            return Err(BackendError::from(ErrorKind::Invalid).into());
        }
        let written = self.write_once(request.wait(WaitFor::Nothing), Landed { landed, range });
        landed.give_back_fresh();
        written
    }
}

struct Landed<'a> {
    landed: &'a mut LandingFrames,
    range: Range<usize>,
}

impl Source for Landed<'_> {
    fn len(&self) -> usize {
        self.range.len()
    }

    fn put(
        &mut self,
        inode: &Arc<Inode>,
        offset_bytes: u64,
        done: usize,
        terms: Terms<'_>,
    ) -> Result<Outcome, FileError> {
        let left = self.len() - done;
        let nth = (self.range.start + done) / FRAME_BYTES;
        if left >= FRAME_BYTES
            && let Some(outcome) = self.exchange(inode, PageIndex::of(offset_bytes), nth, left / FRAME_BYTES, terms)
        {
            return Ok(outcome);
        }
        let span = Span::first_of(offset_bytes, left);
        write_page(inode, span, &self.landed.frames.frame_bytes(nth)[..span.len()], terms)
    }
}

impl Landed<'_> {
    /// Exchanges up to `count` frames from the `nth` on with those of the pages of one leaf from `index` on. `None` if
    /// the first page has to be copied instead.
    fn exchange(
        &mut self,
        inode: &Arc<Inode>,
        index: PageIndex,
        nth: usize,
        count: usize,
        terms: Terms<'_>,
    ) -> Option<Outcome> {
        loop {
            let exchanged = inode.mapping.with_page_or_new(index, |leaf, slot| {
                let (landed, newly) = (&mut *self.landed, Pages::default());
                let mut exchange = Exchange { inode, landed, terms, index, nth, count, pages: 0, newly, unclean: 0 };
                let stop = exchange.pages(leaf, slot);
                (exchange.pages, exchange.newly, stop)
            });
            match exchanged {
                (pages @ 1.., newly, _) => return Some(Outcome::Taken { bytes: pages * FRAME_BYTES, newly }),
                (0, _, Some(Stop::Fresh(missing))) => {
                    self.landed.engine.reclaim.alloc_frames(terms.pool(), missing, &mut self.landed.fresh);
                    if self.landed.fresh.is_empty() {
                        return Some(Outcome::NoFrames);
                    }
                    // They are popped from the end.
                    self.landed.fresh.reverse();
                }
                (0, _, Some(Stop::NoFrames)) => return Some(Outcome::NoFrames),
                (0, _, Some(Stop::NoSpace)) => return Some(Outcome::NoSpace),
                (0, _, Some(Stop::Busy) | None) => return None,
            }
        }
    }
}

/// Why the exchange stops within a leaf.
enum Stop {
    /// This many fresh frames are needed to go on.
    Fresh(usize),
    /// Another thread holds the page's frame.
    Busy,
    /// The volume's share is used up.
    NoFrames,
    /// The backend's space is used up.
    NoSpace,
}

/// An exchange of landed frames with those of one leaf, whose lock is held.
struct Exchange<'a> {
    inode: &'a Arc<Inode>,
    landed: &'a mut LandingFrames,
    terms: Terms<'a>,
    /// The first page, and the number of its frame.
    index: PageIndex,
    nth: usize,
    /// Pages to exchange, in this leaf and those after it.
    count: usize,
    /// Pages exchanged so far, and the resulting change of the dirty counts.
    pages: usize,
    newly: Pages,
    /// How many of them were clean or absent.
    unclean: i64,
}

impl Exchange<'_> {
    /// Exchanges the pages of the leaf from slot `first` on.
    fn pages(&mut self, leaf: &mut LeafState, first: usize) -> Option<Stop> {
        let end = (first + self.count).min(leaf.capacity());
        let stop = (first..end).find_map(|slot| self.page(leaf, slot, end).err());
        self.inode.mapping.add_unclean(self.unclean);
        self.inode.mapping.add(Mark::Dirty, self.newly.reclaimable);
        if self.pages > 0 {
            let last = self.index.plus(self.pages as u64 - 1);
            Span { index: last, from: 0, to: FRAME_BYTES }.grow(self.inode); // R4
        }
        stop
    }

    fn page(&mut self, leaf: &mut LeafState, slot: usize, end: usize) -> Result<(), Stop> {
        let inode = self.inode;
        let arena = &inode.super_block().engine().arena;
        let index = self.index.plus(self.pages as u64);
        let nth = self.nth + self.pages;
        let old = leaf.frame(slot);
        let is_dirty = leaf.has(Mark::Dirty, slot);
        let is_sent = leaf.has(Mark::Writeback, slot) && !is_dirty;
        let is_unclean = leaf.unclean() >> slot & 1 != 0;
        // E3
        let taken = match old {
            Some(_) if !leaf.has(Mark::Uptodate, slot) => return Err(Stop::Busy),
            Some(old) if !is_sent => old,
            Some(_) | None => *self.landed.fresh.last().ok_or_else(|| Stop::Fresh(self.missing(leaf, slot, end)))?,
        };
        let hold = arena.try_write(taken).ok_or(Stop::Busy)?;
        let delayed = !is_unclean && inode.needs_space(index);
        self.charge(is_sent || !is_unclean, delayed)?;

        let Some(record) = inode.slot() else { unreachable!("N2: taken by begin_dirtying") };
        let landed = self.landed.frames.frames()[nth];
        let owners = &inode.super_block().engine().owners;
        if is_unclean && !is_sent {
            owners.take_over(taken, landed, self.terms.memcg); // the old frame leaves the page
        } else {
            owners.charge(landed, self.terms.memcg);
        }
        arena.publish_dirty(landed, record, index.0, old.map_or(0, |old| arena.version(old) + 1));
        if old.is_some() {
            let _ = leaf.replace(slot, landed);
        } else {
            leaf.insert(slot, landed);
            leaf.set(Mark::Uptodate, slot);
        }
        if delayed {
            leaf.set(Mark::Delayed, slot);
        }
        self.newly = self.newly.plus(mark_written(inode, leaf, slot, old.is_none(), self.terms));
        self.unclean += i64::from(!is_unclean);
        if old == Some(taken) {
            arena.forget(taken); // E2
        } else {
            let _ = self.landed.fresh.pop();
        }
        let _ = self.landed.frames.exchange(nth, hold);
        self.pages += 1;
        Ok(())
    }

    /// The number of pages from `slot` on that need a fresh frame. If all pages left in the leaf do, those of the
    /// following leaves are assumed to need one too: frames allocated together stay adjacent.
    fn missing(&self, leaf: &LeafState, slot: usize, end: usize) -> usize {
        let sent = leaf.bits(Mark::Writeback) & !leaf.bits(Mark::Dirty);
        let missing = ((!leaf.present() | sent) & range_bits(slot as u64, end as u64)).count_ones() as usize;
        if missing == end - slot { self.count - self.pages } else { missing }
    }

    fn charge(&self, frame: bool, space: bool) -> Result<(), Stop> {
        let sb = self.inode.super_block();
        if frame && !sb.bdi().try_pin() {
            return Err(Stop::NoFrames);
        }
        if space && !self.terms.reserve(&sb.space) {
            sb.bdi().unpin(u64::from(frame));
            return Err(Stop::NoSpace);
        }
        Ok(())
    }
}

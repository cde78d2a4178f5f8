//! Reading from a file: bytes out of frames, frames filled from the backend.
//!
//! # Invariants
//! D1. A page is read under its frame's shared lock, so never half of a write.
//! D2. A page that is being filled is present without `UPTODATE`, its frame locked by the unit. If the fill
//!     fails the page is taken out again before the lock is let go.
//! D3. A page that is not cached and lies at or beyond the end of the backing file is zeroes: nothing was
//!     ever written back there.
//!
//! # Kernel counterpart
//! `filemap_read`, `filemap_get_pages`.

use std::ops::Range;

use slackwater_arena::{FRAME_BYTES, FrameId, FrameRead, Pool, Scatter};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::{Call, Done, Node, ReadUnit};
use crate::error::{BackendError, FileError};
use crate::file::File;
use crate::filemap::write::{list_leaf, wait_for_frame};
use crate::inode::Inode;
use crate::page_cache::{LeafState, Mark, Scan, range_bits, slots};
use crate::reclaim;
use crate::units::{PAGE_BYTES, PageIndex};

/// What a page is to a reader; found under the leaf's lock.
enum Look<'a> {
    Cached(FrameRead<'a>),
    Absent,
    Wait(FrameId),
}

impl File {
    /// Reads into `buffer` from `offset_bytes`; fewer bytes than asked only at the end of the file.
    ///
    /// # Errors
    /// The volume is gone, or the backend could not be read; the bytes before the failing page are lost to
    /// the caller, a later read gets them.
    ///
    /// # Blocking
    /// For the backend, if a page is not cached, and then for a frame to put it in.
    pub fn read_at(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        let inode = self.inode.arc();
        inode.super_block().alive()?;
        let size_bytes = inode.size_bytes();
        let len = (buffer.len() as u64).min(size_bytes.saturating_sub(offset_bytes)) as usize;
        if len == 0 {
            return Ok(0);
        }
        let pages = PageIndex::of(offset_bytes)..PageIndex::end_of(offset_bytes + len as u64);
        let sequential = self.readahead.begin(&pages);
        let mut done = 0;
        let mut fetched = None;
        while done < len {
            let at = offset_bytes + done as u64;
            let index = PageIndex::of(at);
            let from = (at % PAGE_BYTES) as usize;
            let to = (from + len - done).min(FRAME_BYTES);
            let target = &mut buffer[done..done + to - from];
            match look(inode, index) {
                Look::Cached(frame) => target.copy_from_slice(&frame[from..to]),
                Look::Wait(frame) => {
                    wait_for_frame(inode, index, frame);
                    continue;
                }
                Look::Absent if index.offset_bytes() >= inode.backing_bytes.load(Ordering::Acquire) => {
                    target.fill(0); // D3
                }
                Look::Absent => {
                    // Fetched before and gone again: frames are that short, so it is fetched alone.
                    let alone = fetched.replace(index) == Some(index);
                    let ahead = if alone { index..index.plus(1) } else { self.ahead(index, pages.end, sequential) };
                    fetch_and_wait(inode, index, ahead)?;
                    continue;
                }
            }
            done += to - from;
        }
        if fetched.is_none() {
            let max_pages = u64::from(inode.super_block().engine().tunables.readahead_pages);
            if let Some(ahead) = self.readahead.hit(&pages, max_pages)
                && let Ok(node) = inode.node()
            {
                fetch(inode, &node, ahead, |_| None);
            }
        }
        Ok(len)
    }

    /// What to fetch with the missing page at `index` of a read that ends at `end`.
    fn ahead(&self, index: PageIndex, end: PageIndex, sequential: bool) -> Range<PageIndex> {
        let max_pages = u64::from(self.inode.super_block().engine().tunables.readahead_pages);
        self.readahead.miss(index, end, sequential, max_pages)
    }
}

fn look<'a>(inode: &'a Inode, index: PageIndex) -> Look<'a> {
    let arena = &inode.super_block().engine().arena;
    let look = |leaf: &mut LeafState, slot: usize| {
        let Some(frame) = leaf.frame(slot) else { return Look::Absent };
        if !leaf.has(Mark::Uptodate, slot) {
            return Look::Wait(frame);
        }
        match arena.try_read(frame) {
            Some(guard) => {
                leaf.set(Mark::Referenced, slot);
                Look::Cached(guard)
            }
            None => Look::Wait(frame),
        }
    };
    inode.mapping.with_page(index, look).unwrap_or(Look::Absent)
}

/// Brings one page into the cache.
///
/// # Errors
/// The backend's.
///
/// # Blocking
/// For the backend, and for a frame.
pub(crate) fn read_page(inode: &Arc<Inode>, index: PageIndex) -> Result<(), FileError> {
    fetch_and_wait(inode, index, index..index.plus(1))
}

fn fetch_and_wait(inode: &Arc<Inode>, index: PageIndex, ahead: Range<PageIndex>) -> Result<(), FileError> {
    let sb = inode.super_block();
    let engine = sb.engine();
    let node = inode.node()?;
    let seen = engine.room.given();
    let answer = Arc::new(slackwater_sync::lock::Mutex::new(crate::lock_order::LEAVES, None));
    let mut taken = false;
    let started = fetch(inode, &node, ahead, |unit| {
        let wanted = unit.start <= index && index < unit.end;
        taken |= wanted;
        let answer = Arc::clone(&answer);
        wanted.then(|| Done::new(move |result: Result<(), BackendError>| *answer.lock() = Some(result)))
    });
    if taken {
        let answered = || answer.lock().take();
        let result = engine.waits.wait(inode.id(), &*engine.clock, None, answered);
        return Ok(result.unwrap_or(Ok(()))?);
    }
    if !started && matches!(look(inode, index), Look::Absent) {
        // No frame for it: everything is pinned. Write-back makes room.
        sb.make_room();
        engine.run_by_hand();
        engine.room.wait(seen, &*engine.clock, None);
    }
    Ok(())
}

/// Starts reading the pages of `range` that are missing and that the backing file has. `wants` says for each
/// unit who is to be told. Returns whether anything was started.
fn fetch(
    inode: &Arc<Inode>,
    node: &Node,
    range: Range<PageIndex>,
    mut wants: impl FnMut(&Range<PageIndex>) -> Option<Done<()>>,
) -> bool {
    let sb = inode.super_block();
    let backed = PageIndex::end_of(inode.backing_bytes.load(Ordering::Acquire).min(inode.size_bytes()));
    let unit_pages = u64::from(sb.bdi().limits().unit_bytes) / PAGE_BYTES;
    let end = range.end.min(backed);
    let mut at = range.start;
    let mut started = false;
    while at < end {
        let Some(unit) = claim(inode, at, end, unit_pages) else { break };
        let pages = unit.first..unit.first.plus(unit.frames.frames().len() as u64);
        at = pages.end;
        let done = wants(&pages);
        let short = unit.short;
        submit(inode, node, unit, done);
        started = true;
        if short {
            break; // going on would evict what has just been fetched
        }
    }
    started
}

/// Missing pages with frames put in their place, to be filled by one unit (D2).
struct Claim {
    first: PageIndex,
    frames: Scatter,
    /// It ended because no more frames were to be had.
    short: bool,
}

/// Claims the next run of missing pages from `at` on.
fn claim(inode: &Arc<Inode>, at: PageIndex, end: PageIndex, max_pages: u64) -> Option<Claim> {
    let mut claim: Option<Claim> = None;
    let mut index = at;
    while index < end {
        let length = claim.as_ref().map_or(0, |claim| claim.frames.frames().len() as u64);
        if length == max_pages {
            break;
        }
        let present = inode.mapping.with_page(index, |leaf, slot| leaf.frame(slot).is_some()).unwrap_or(false);
        let inserted = !present && insert_for_fill(inode, index, &mut claim, max_pages)?;
        match (&claim, inserted) {
            (Some(_), false) => break,
            (_, true) | (None, false) => index = index.plus(1),
        }
    }
    claim
}

/// Puts a locked frame in the page's place. `None`: no frame is to be had (and nothing is claimed yet).
fn insert_for_fill(inode: &Arc<Inode>, index: PageIndex, claim: &mut Option<Claim>, max_pages: u64) -> Option<bool> {
    let engine = inode.super_block().engine();
    let Some(frame) = reclaim::alloc_frame(engine, Pool::Normal) else {
        let claim = claim.as_mut()?;
        claim.short = true;
        return Some(false);
    };
    let unit = claim.get_or_insert_with(|| Claim {
        first: index,
        frames: Scatter::new(Arc::clone(&engine.arena), max_pages as usize),
        short: false,
    });
    let (inserted, new_leaf) = inode.mapping.with_page_or_new(index, |leaf, slot| {
        if leaf.frame(slot).is_some() || !unit.frames.push(frame) {
            return false;
        }
        leaf.insert(slot, frame);
        true
    });
    if !inserted {
        engine.arena.free(frame);
        if unit.frames.frames().is_empty() {
            *claim = None;
        }
    }
    if new_leaf {
        list_leaf(inode, index);
    }
    Some(inserted)
}

fn submit(inode: &Arc<Inode>, node: &Node, claim: Claim, done: Option<Done<()>>) {
    let sb = inode.super_block();
    let Claim { first, frames, .. } = claim;
    let len_bytes = frames.frames().len() * FRAME_BYTES;
    sb.pin();
    let owner = Arc::clone(inode);
    let finish = move |frames: Scatter, read: Result<usize, BackendError>| {
        let sb = Arc::clone(owner.super_block());
        let result = end_fill(&owner, first, frames, read);
        if owner.state.lock().doomed {
            sb.drop_pages(&owner); // nobody else will
        }
        if let Some(done) = done {
            done.complete(result);
        }
        sb.engine().waits.wake(owner.id());
        sb.note_progress();
        drop(owner);
        sb.unpin();
    };
    let unit = ReadUnit::new(node.clone(), first.offset_bytes(), len_bytes, frames, Box::new(finish));
    sb.bdi().backend.submit(Call::Read(unit));
}

/// A fill came back: its pages are up to date, or gone.
fn end_fill(
    inode: &Inode,
    first: PageIndex,
    mut frames: Scatter,
    read: Result<usize, BackendError>,
) -> Result<(), BackendError> {
    let arena = Arc::clone(frames.arena());
    let end = first.plus(frames.frames().len() as u64);
    let result = read.map(|bytes| frames.zero_from(bytes));
    let mut dropped = Vec::new();
    inode.mapping.scan(first, end, None, |base, leaf| {
        let bits = range_bits(first.0.saturating_sub(base.0), end.0.saturating_sub(base.0));
        for slot in slots(leaf.present() & bits) {
            let nth = (base.0 + slot as u64 - first.0) as usize;
            if leaf.frame(slot) != Some(frames.frames()[nth]) {
                continue;
            }
            if result.is_ok() {
                leaf.set(Mark::Uptodate, slot);
                // Eviction passes it by once, so that whoever waits for it gets it.
                leaf.set(Mark::Referenced, slot);
            } else {
                dropped.extend(leaf.remove(slot));
            }
        }
        Scan::On
    });
    drop(frames);
    dropped.into_iter().for_each(|frame| arena.free(frame));
    result
}

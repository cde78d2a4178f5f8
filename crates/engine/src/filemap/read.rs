//! Reading from a file: copying bytes from frames, and filling frames from the backend.
//!
//! # Invariants
//! D1. A page is read under its frame's shared lock, so never in the middle of a write.
//! D2. A page that is being filled is present without `UPTODATE`, and its unit holds the frame's lock. If the fill
//!     fails, the page is removed before the lock is released.
//! D3. A page that is not cached and lies at or beyond the end of the backing file is zeroes, because nothing was ever
//!     written back there.
//!
//! # Kernel counterpart
//! `filemap_read`, `filemap_get_pages`.

use std::ops::Range;

use slackwater_arena::{FRAME_BYTES, FrameId, FrameRead, Pool, Scatter, copy_bytes};
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::{Call, Done, Node, ReadUnit};
use crate::cgroup::Memcg;
use crate::error::{BackendError, FileError};
use crate::file::File;
use crate::filemap::busy_frames::wait_for_frame;
use crate::filemap::drop_read::{drop_read, finished_pages};
use crate::filemap::request::{ReadFlags, ReadRequest};
use crate::inode::Inode;
use crate::lock_order::LEAVES;
use crate::page_cache::{LeafState, Mark, Scan, range_bits, slots};
use crate::units::{PAGE_BYTES, PageIndex};

/// The state of a page for a reader, found under the leaf's lock.
pub(super) enum Look<'a> {
    Cached(FrameRead<'a>),
    Absent,
    Wait(FrameId),
}

impl File {
    /// Reads into `buffer` from `offset_bytes` on. Returns how many bytes it read: fewer than asked only at the end of
    /// the file.
    ///
    /// # Errors
    /// As [`File::read`].
    ///
    /// # Blocking
    /// As [`File::read`].
    #[inline]
    pub fn read_at(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        self.read(ReadRequest::at(offset_bytes), buffer)
    }

    /// Reads into `buffer` as `request` says. Returns how many bytes it read: fewer than asked only at the end of the
    /// file.
    ///
    /// # Errors
    /// The volume is unmounted, or the backend could not be read. The bytes before the failing page are lost to the
    /// caller, but a later read can get them.
    ///
    /// # Blocking
    /// Waits for the backend if a page is not cached, and before that for a frame to put it in.
    pub fn read(&self, request: ReadRequest<'_>, buffer: &mut [u8]) -> Result<usize, FileError> {
        let ReadRequest { offset_bytes, memcg, flags } = request;
        let payer = memcg.unwrap_or_else(|| self.memcg());
        let inode = self.inode.arc();
        inode.super_block().alive()?;
        let size_bytes = inode.size_bytes();
        let len = (buffer.len() as u64).min(size_bytes.saturating_sub(offset_bytes)) as usize;
        if len == 0 {
            return Ok(0);
        }
        let pages = PageIndex::of(offset_bytes)..PageIndex::end_of(offset_bytes + len as u64);
        let (continues_page, sequential) = (self.continues_page(offset_bytes), self.readahead.begin(&pages));
        let read =
            self.read_pages(payer, offset_bytes, &mut buffer[..len], Reading { continues_page, sequential, flags });
        if flags.contains(ReadFlags::DONTCACHE) {
            drop_read(inode, finished_pages(offset_bytes, len, size_bytes, sequential));
        }
        read.map(|()| len)
    }

    /// Fills `buffer`, which lies before the end of the file.
    fn read_pages(
        &self,
        payer: &Arc<Memcg>,
        offset_bytes: u64,
        buffer: &mut [u8],
        reading: Reading,
    ) -> Result<(), FileError> {
        let Reading { continues_page, sequential, flags } = reading;
        let (inode, len) = (self.inode.arc(), buffer.len());
        let pages = PageIndex::of(offset_bytes)..PageIndex::end_of(offset_bytes + len as u64);
        let engine = inode.super_block().engine();
        let (mut done, mut missed) = (0, 0);
        let mut fetched = None;
        while done < len {
            let at = offset_bytes + done as u64;
            let index = PageIndex::of(at);
            let from = (at % PAGE_BYTES) as usize;
            let to = (from + len - done).min(FRAME_BYTES);
            let target = &mut buffer[done..done + to - from];
            let usage = match fetched {
                Some(page) if page == index => Usage::First,
                _ if continues_page && done == 0 => Usage::Same,
                Some(_) | None => Usage::Other,
            };
            match look(inode, index, Access { hint: !sequential, usage }) {
                Look::Cached(frame) => copy_bytes(target, &frame[from..to]),
                Look::Wait(frame) => {
                    wait_for_frame(inode, index, frame);
                    continue;
                }
                Look::Absent if index.offset_bytes() >= inode.backing_bytes.load(Ordering::Acquire) => {
                    target.fill(0); // D3
                }
                Look::Absent => {
                    // Fetched before and evicted again: frames are so short that this page is fetched alone.
                    let alone = fetched.replace(index) == Some(index);
                    let ahead = if alone { index..index.plus(1) } else { self.ahead(index, pages.end, sequential) };
                    let seen = engine.progress.count();
                    self.set_reader(payer);
                    match fetch_and_wait(inode, index..pages.end, ahead, payer, flags)? {
                        Fetched::Read(wanted) => missed += wanted,
                        Fetched::Changed => {}
                        Fetched::NoFrame => {
                            inode.super_block().wakeup_flushers();
                            engine.run_by_hand();
                            engine.progress.wait(seen, None);
                        }
                    }
                    continue;
                }
            }
            done += to - from;
        }
        self.note_read(pages.end.0 - pages.start.0, missed);
        if fetched.is_none() {
            self.read_ahead_of(&pages, flags);
        }
        Ok(())
    }

    /// Whether a read at `offset_bytes` starts inside the page where the last one ended.
    pub(super) fn continues_page(&self, offset_bytes: u64) -> bool {
        !offset_bytes.is_multiple_of(PAGE_BYTES) && self.readahead.ended_in(PageIndex::of(offset_bytes))
    }

    /// Starts the next readahead if a reader that found all of `pages` in the cache has reached its trigger.
    pub(super) fn read_ahead_of(&self, pages: &Range<PageIndex>, flags: ReadFlags) {
        let inode = self.inode.arc();
        // A reader with only hits does not wait for the backend. If the node is not open, the next miss opens it.
        if let Some(ahead) = self.readahead.hit(pages)
            && let Some(node) = inode.open_node()
        {
            fetch(inode, &node, ahead, &self.reader(), flags, |_| None);
        }
    }

    /// The range to fetch for the missing page at `index` of a read that ends at `end`.
    fn ahead(&self, index: PageIndex, end: PageIndex, sequential: bool) -> Range<PageIndex> {
        self.readahead.miss(index, end, sequential)
    }
}

/// How a read relates to the previous one, and its flags.
#[derive(Copy, Clone)]
struct Reading {
    /// Whether it starts inside the page where the previous read ended.
    continues_page: bool,
    /// Whether it starts where the previous read ended.
    sequential: bool,
    flags: ReadFlags,
}

/// How a page is accessed.
#[derive(Copy, Clone)]
pub(super) struct Access {
    /// The bytes are needed at once, at an address that the processor cannot predict.
    pub(super) hint: bool,
    pub(super) usage: Usage,
}

/// How an access counts for the page's referenced mark.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Usage {
    /// The access continues the previous use.
    Same,
    /// The access is the use for which this call brought the page in.
    First,
    /// The access is another use.
    Other,
}

#[inline]
pub(super) fn look<'a>(inode: &'a Inode, index: PageIndex, access: Access) -> Look<'a> {
    let arena = &inode.super_block().engine().arena;
    let look = |leaf: &mut LeafState, slot: usize| {
        let Some(frame) = leaf.frame(slot) else { return Look::Absent };
        if !leaf.has(Mark::Uptodate, slot) {
            return Look::Wait(frame);
        }
        match arena.try_read(frame) {
            Some(guard) => {
                // A page that is active on arrival was cached not long ago; this read is the reason it came back.
                let counts = match access.usage {
                    Usage::Same => false,
                    Usage::First => !leaf.has(Mark::Active, slot),
                    Usage::Other => true,
                };
                if counts {
                    leaf.touch(slot);
                }
                Look::Cached(guard)
            }
            None => Look::Wait(frame),
        }
    };
    let mapping = &inode.mapping;
    let found = if access.hint {
        mapping.with_page_and_bytes(index, |frame| arena.prefetch(frame), look)
    } else {
        mapping.with_page(index, look)
    };
    found.unwrap_or(Look::Absent)
}

/// The outcome of an attempt to bring a page into the cache.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Fetched {
    /// This call had the page read, and so many wanted pages in total. Look again.
    Read(u64),
    /// The page changed meanwhile. Look again.
    Changed,
    /// There is no frame for it.
    NoFrame,
}

/// Brings one page into the cache, charged to `payer`.
///
/// # Errors
/// The backend's.
///
/// # Blocking
/// Waits for the backend, but not for a frame.
pub(crate) fn read_page(inode: &Arc<Inode>, index: PageIndex, payer: &Arc<Memcg>) -> Result<Fetched, FileError> {
    fetch_and_wait(inode, index..index.plus(1), index..index.plus(1), payer, ReadFlags::NONE)
}

/// Submits reads for the missing pages of `ahead`, and waits for the first of `wanted`.
fn fetch_and_wait(
    inode: &Arc<Inode>,
    wanted: Range<PageIndex>,
    ahead: Range<PageIndex>,
    payer: &Arc<Memcg>,
    flags: ReadFlags,
) -> Result<Fetched, FileError> {
    let engine = inode.super_block().engine();
    let node = inode.node()?;
    let answer = Arc::new(Mutex::new(LEAVES, None));
    let (mut taken, mut pages) = (false, 0);
    let fetched = fetch(inode, &node, ahead, payer, flags, |unit| {
        let has_first = unit.contains(&wanted.start);
        taken |= has_first;
        pages += unit.end.min(wanted.end).0.saturating_sub(unit.start.max(wanted.start).0);
        let answer = Arc::clone(&answer);
        has_first.then(|| Done::new(move |result: Result<(), BackendError>| *answer.lock() = Some(result)))
    });
    if taken {
        let answered = || answer.lock().take();
        let result = engine.waits.wait(inode.id(), None, answered);
        result.unwrap_or(Ok(()))?;
        return Ok(Fetched::Read(pages));
    }
    Ok(fetched)
}

/// Submits reads for the missing pages of `range` that the backing file has. `wants` returns the completion of each
/// unit, if any. Returns `NoFrame` if there was none for the first missing page.
fn fetch(
    inode: &Arc<Inode>,
    node: &Node,
    range: Range<PageIndex>,
    payer: &Arc<Memcg>,
    flags: ReadFlags,
    mut wants: impl FnMut(&Range<PageIndex>) -> Option<Done<()>>,
) -> Fetched {
    let sb = inode.super_block();
    let backed = PageIndex::end_of(inode.backing_bytes.load(Ordering::Acquire).min(inode.size_bytes()));
    let unit_pages = u64::from(sb.bdi().limits().unit_bytes) / PAGE_BYTES;
    let end = range.end.min(backed);
    let mut at = range.start;
    let mut fetched = Fetched::Changed;
    while at < end {
        let unit = match claim(inode, at..end, unit_pages, flags) {
            Claimed::Pages(unit) => unit,
            Claimed::Nothing => break,
            Claimed::NoFrame => {
                if at == range.start {
                    fetched = Fetched::NoFrame;
                }
                break;
            }
        };
        let pages = unit.first..unit.first.plus(unit.frames.frames().len() as u64);
        at = pages.end;
        let done = wants(&pages);
        let short = unit.short;
        submit(inode, node, unit, payer, done);
        if short {
            break; // fetching more would evict what was just fetched
        }
    }
    fetched
}

enum Claimed {
    Pages(Claim),
    /// All pages are present, or another thread was first.
    Nothing,
    NoFrame,
}

/// Missing pages with frames in their places, to be filled by one unit (D2).
struct Claim {
    first: PageIndex,
    frames: Scatter,
    /// Whether the run ended because there were no more frames.
    short: bool,
}

/// Claims the next run of missing pages in `range`.
fn claim(inode: &Arc<Inode>, range: Range<PageIndex>, max_pages: u64, flags: ReadFlags) -> Claimed {
    let mut claim: Option<Claim> = None;
    let mut index = range.start;
    while index < range.end {
        let length = claim.as_ref().map_or(0, |claim| claim.frames.frames().len() as u64);
        if length == max_pages {
            break;
        }
        let present = inode.mapping.with_page(index, |leaf, slot| leaf.frame(slot).is_some()).unwrap_or(false);
        let inserted = !present && {
            let Some(frame) = inode.super_block().engine().reclaim.alloc_frame(Pool::Normal) else {
                let Some(mut claim) = claim else { return Claimed::NoFrame };
                claim.short = true;
                return Claimed::Pages(claim);
            };
            insert_for_fill(inode, index, frame, &mut claim, max_pages, flags)
        };
        match (&claim, inserted) {
            (Some(_), false) => break,
            (_, true) | (None, false) => index = index.plus(1),
        }
    }
    claim.map_or(Claimed::Nothing, Claimed::Pages)
}

/// Installs `frame`, locked for the unit, as the page's frame. Frees it if another thread was first.
fn insert_for_fill(
    inode: &Arc<Inode>,
    index: PageIndex,
    frame: FrameId,
    claim: &mut Option<Claim>,
    max_pages: u64,
    flags: ReadFlags,
) -> bool {
    let arena = &inode.super_block().engine().arena;
    let unit = claim.get_or_insert_with(|| Claim {
        first: index,
        frames: Scatter::new(Arc::clone(arena), max_pages as usize),
        short: false,
    });
    let inserted = inode.mapping.with_page_or_new(index, |leaf, slot| {
        if leaf.frame(slot).is_some() || !unit.frames.push(frame) {
            return false;
        }
        leaf.insert(slot, frame);
        if flags.contains(ReadFlags::DONTCACHE) {
            leaf.set(Mark::Dropbehind, slot);
        }
        true
    });
    if !inserted {
        arena.free(frame);
        if unit.frames.frames().is_empty() {
            *claim = None;
        }
    }
    inserted
}

fn submit(inode: &Arc<Inode>, node: &Node, claim: Claim, payer: &Arc<Memcg>, done: Option<Done<()>>) {
    let sb = inode.super_block();
    let Claim { first, frames, .. } = claim;
    let len_bytes = frames.frames().len() * FRAME_BYTES;
    sb.pin();
    let (owner, payer) = (Arc::clone(inode), Arc::clone(payer));
    let finish = move |frames: Scatter, read: Result<usize, BackendError>| {
        let sb = Arc::clone(owner.super_block());
        let result = end_fill(&owner, &payer, first, frames, read);
        if owner.state.lock().doomed {
            sb.drop_pages(&owner); // no other thread will
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

/// Ends a fill: its pages become up to date and are listed for `payer`, or are removed.
fn end_fill(
    inode: &Arc<Inode>,
    payer: &Memcg,
    first: PageIndex,
    mut frames: Scatter,
    read: Result<usize, BackendError>,
) -> Result<(), BackendError> {
    let arena = Arc::clone(frames.arena());
    let end = first.plus(frames.frames().len() as u64);
    let result = read.map(|bytes| frames.zero_from(bytes));
    let (mut dropped, mut emptied) = (Vec::new(), Vec::new());
    let mut filled_pages = 0;
    inode.mapping.scan(first, end, None, |base, leaf| {
        let bits = range_bits(first.0.saturating_sub(base.0), end.0.saturating_sub(base.0));
        let mut filled = 0_u64;
        for slot in slots(leaf.present() & bits) {
            let nth = (base.0 + slot as u64 - first.0) as usize;
            if leaf.frame(slot) != Some(frames.frames()[nth]) {
                continue;
            }
            if result.is_ok() {
                filled |= 1 << slot;
            } else {
                dropped.extend(leaf.remove(slot));
            }
        }
        filled_pages += u64::from(filled.count_ones());
        leaf.set_bits(Mark::Uptodate, filled);
        inode.super_block().engine().reclaim.list(inode, payer, base, leaf, filled);
        if leaf.present() == 0 {
            emptied.push(base);
        }
        Scan::On
    });
    drop(frames);
    dropped.into_iter().for_each(|frame| arena.free(frame));
    let sb = inode.super_block();
    sb.reads.note_filled(filled_pages);
    if result.is_ok() {
        sb.engine().reclaim.note_listed(payer);
    } else {
        for leaf in emptied {
            let _ = inode.mapping.remove_if_empty(leaf); // fails if a page was added meanwhile
        }
        sb.forget_if_unused(inode);
    }
    result
}

//! Allocating space for a range, punching holes, and finding them.
//!
//! # Order of a punch
//! 1. From the range's first page on, no page is taken for write-back until the punch is over, and units in flight are
//!    waited for. None may bring back what the backend clears.
//! 2. If the file is to end inside the range, the backend gets the size first, because no unit will carry it.
//! 3. The backend clears the range, to the byte. If it refuses, nothing is lost.
//! 4. Pages wholly inside the range are dropped, dirty or not. In cached pages that are partly inside, that part is
//!    zeroed. Such a page keeps its marks, because the rest of it may still have to be written or written again.
//!
//! `rwsem` is held for writing throughout.
//!
//! # Kernel counterpart
//! `vfs_fallocate`, `truncate_pagecache_range`; `iomap_seek_data` and `iomap_seek_hole`.

use std::ops::Range;

use slackwater_arena::FRAME_BYTES;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::{Attr, AttrChange, Call, FallocateMode, Node, SeekWhence};
use crate::error::{BackendError, ErrorKind, FileError};
use crate::file::File;
use crate::filemap::check_range;
use crate::filemap::truncate::{drop_pages, zero_in_page};
use crate::inode::{Inode, NO_TRUNCATE};
use crate::page_cache::{LeafState, Mark, Scan, range_bits, slots};
use crate::super_block::pages_of;
use crate::units::{PAGE_BYTES, PageIndex};
use crate::writeback::SetattrTurn;
use crate::writeback::sync::wait_for_last_units;
use crate::writeback::write_inode::settle_now;

impl File {
    /// Allocates space for a range, punches a hole or zeroes it, according to `mode`.
    ///
    /// # Errors
    /// The range is empty or beyond what the backend can hold, the volume is frozen or unmounted, or the backend
    /// refuses. The file is unchanged.
    ///
    /// # Blocking
    /// Waits for the backend, including units of this file in flight.
    pub fn fallocate(&self, mode: FallocateMode, offset_bytes: u64, len_bytes: u64) -> Result<(), FileError> {
        let inode = self.inode().arc();
        let end = check_range(inode, offset_bytes, len_bytes)?;
        if len_bytes == 0 {
            return Err(BackendError::from(ErrorKind::Invalid).into());
        }
        let pages = match mode {
            FallocateMode::PunchHole => 0,
            FallocateMode::Allocate
            | FallocateMode::AllocateKeepSize
            | FallocateMode::Zero
            | FallocateMode::ZeroKeepSize => pages_of(len_bytes),
        };
        inode.super_block().claim_space(pages, || allocate(inode, mode, offset_bytes..end))
    }

    /// The start of the next data or the next hole at or after `offset_bytes`. The end of the file is a hole. `None`
    /// if there is none before the end, or if `offset_bytes` is at or beyond the end. Data not yet written back
    /// counts as data.
    ///
    /// # Errors
    /// The volume is unmounted, or the backend fails.
    ///
    /// # Blocking
    /// Waits for the backend.
    pub fn seek(&self, offset_bytes: u64, whence: SeekWhence) -> Result<Option<u64>, FileError> {
        let inode = self.inode().arc();
        inode.super_block().alive()?;
        let size_bytes = inode.size_bytes();
        if offset_bytes >= size_bytes {
            return Ok(None);
        }
        let found = match whence {
            SeekWhence::Data => next_data(inode, offset_bytes)?.filter(|at| *at < size_bytes),
            SeekWhence::Hole => Some(next_hole(inode, offset_bytes, size_bytes)?),
        };
        Ok(found)
    }
}

/// Lets the backend change `bytes` according to `mode`, and updates the inode accordingly.
fn allocate(inode: &Arc<Inode>, mode: FallocateMode, bytes: Range<u64>) -> Result<(), FileError> {
    let sb = inode.super_block();
    let node = inode.node()?;
    let _exclusive = inode.rwsem.write();
    sb.writable()?;
    let (asked, offset_bytes, len_bytes) = (node.clone(), bytes.start, bytes.end - bytes.start);
    let call = || {
        inode.change_with(|| sb.call(None, |done| Call::Fallocate { node: asked, mode, offset_bytes, len_bytes, done }))
    };
    let attr = match mode {
        FallocateMode::Allocate | FallocateMode::AllocateKeepSize => call()?,
        FallocateMode::PunchHole | FallocateMode::Zero | FallocateMode::ZeroKeepSize => {
            clear(inode, &node, bytes.clone(), call)?
        }
    };
    if matches!(mode, FallocateMode::Allocate | FallocateMode::Zero) {
        if bytes.end > inode.size_bytes() {
            inode.set_size(bytes.end);
        }
        inode.backing_bytes.fetch_max(bytes.end, Ordering::AcqRel);
    }
    match mode {
        FallocateMode::Allocate | FallocateMode::AllocateKeepSize => {
            take_space(inode, PageIndex::of(bytes.start)..PageIndex::end_of(bytes.end));
        }
        FallocateMode::Zero | FallocateMode::ZeroKeepSize | FallocateMode::PunchHole => {}
    }
    let clean = inode.is_clean(&inode.state.lock());
    inode.set_mtime(if clean { attr.mtime } else { sb.engine().clock.wall() });
    sb.space.mark_stale();
    sb.note_progress();
    Ok(())
}

/// Releases the space reserved for `range`, because the backend has allocated it now.
fn take_space(inode: &Inode, range: Range<PageIndex>) {
    let mut pages = 0;
    inode.mapping.scan(range.start, range.end, None, |base, leaf| {
        let range = range_bits(range.start.0.saturating_sub(base.0), range.end.0.saturating_sub(base.0));
        // The reservations of pages under write-back are released when their unit ends.
        let bits = leaf.bits(Mark::Delayed) & !leaf.bits(Mark::Writeback) & range;
        leaf.clear_bits(Mark::Delayed, bits);
        pages += u64::from(bits.count_ones());
        Scan::On
    });
    inode.super_block().space.release(pages);
    inode.allocated_to.fetch_max(range.end.offset_bytes(), Ordering::AcqRel);
}

/// Steps 1 to 4 of the [module documentation](self).
fn clear(
    inode: &Arc<Inode>,
    node: &Node,
    bytes: Range<u64>,
    call: impl FnOnce() -> Result<Attr, BackendError>,
) -> Result<Attr, BackendError> {
    let first = PageIndex::of(bytes.start);
    let held = WritebackHold::new(inode, first);
    wait_for_last_units(inode);
    let size_bytes = inode.size_bytes();
    let backing_bytes = inode.backing_bytes.load(Ordering::Acquire);
    if backing_bytes < size_bytes && backing_bytes < bytes.end {
        let change = AttrChange { size_bytes: Some(size_bytes), ..AttrChange::default() };
        SetattrTurn::wait(inode).send(node.clone(), change)?;
        inode.backing_bytes.fetch_max(size_bytes, Ordering::AcqRel);
    }
    let attr = call()?;
    let whole = PageIndex::end_of(bytes.start)..PageIndex::of(bytes.end);
    if whole.start < whole.end {
        drop_pages(inode, whole.clone());
    }
    let last = PageIndex::of(bytes.end);
    let within = |index: PageIndex| {
        let from = bytes.start.saturating_sub(index.offset_bytes()).min(PAGE_BYTES) as usize;
        let to = bytes.end.saturating_sub(index.offset_bytes()).min(PAGE_BYTES) as usize;
        from..to
    };
    for index in [first, last].into_iter().take(if first == last { 1 } else { 2 }) {
        let part = within(index);
        if !part.is_empty() && part != (0..FRAME_BYTES) {
            zero_in_page(inode, index, part);
        }
    }
    drop(held);
    Ok(attr)
}

/// While it exists, no page from `first` on is taken for write-back.
struct WritebackHold<'a>(&'a Arc<Inode>);

impl<'a> WritebackHold<'a> {
    fn new(inode: &'a Arc<Inode>, first: PageIndex) -> Self {
        inode.truncate_from.store(first.0, Ordering::Release);
        Self(inode)
    }
}

impl Drop for WritebackHold<'_> {
    fn drop(&mut self) {
        self.0.truncate_from.store(NO_TRUNCATE, Ordering::Release);
        settle_now(self.0, false);
    }
}

/// Checks the cache before it asks the backend: pages written back in between are data there by then.
fn next_data(inode: &Inode, from: u64) -> Result<Option<u64>, BackendError> {
    let cached = next_unclean(inode, PageIndex::of(from)).map(|index| index.offset_bytes().max(from));
    let stored = ask(inode, from, SeekWhence::Data)?;
    Ok([cached, stored].into_iter().flatten().min())
}

fn next_hole(inode: &Inode, from: u64, size_bytes: u64) -> Result<u64, BackendError> {
    let mut at = from;
    while at < size_bytes {
        let index = PageIndex::of(at);
        let unclean = |leaf: &mut LeafState, slot: usize| leaf.unclean() >> slot & 1 != 0;
        if inode.mapping.with_page(index, unclean).unwrap_or(false) {
            at = index.plus(1).offset_bytes();
            continue;
        }
        match ask(inode, at, SeekWhence::Hole)? {
            Some(hole) if hole > at => at = hole,
            Some(_) | None => return Ok(at),
        }
    }
    Ok(size_bytes)
}

fn next_unclean(inode: &Inode, from: PageIndex) -> Option<PageIndex> {
    let mut found = None;
    inode.mapping.scan(from, PageIndex(u64::MAX), None, |base, leaf| {
        let bits = leaf.unclean() & range_bits(from.0.saturating_sub(base.0), u64::MAX);
        found = slots(bits).next().map(|slot| base.plus(slot as u64));
        if found.is_some() { Scan::Stop } else { Scan::On }
    });
    found
}

/// A backend without this call counts as having data everywhere.
fn ask(inode: &Inode, offset_bytes: u64, whence: SeekWhence) -> Result<Option<u64>, BackendError> {
    let node = inode.node()?;
    let answer = inode.super_block().call(None, |done| Call::Seek { node, offset_bytes, whence, done });
    match (answer, whence) {
        (Err(error), _) if error.kind() != ErrorKind::Unsupported => Err(error),
        (Err(_), SeekWhence::Data) => {
            Ok((offset_bytes < inode.backing_bytes.load(Ordering::Acquire)).then_some(offset_bytes))
        }
        (Err(_), SeekWhence::Hole) => {
            let backing_bytes = inode.backing_bytes.load(Ordering::Acquire);
            Ok((offset_bytes < backing_bytes).then_some(backing_bytes))
        }
        (Ok(found), _) => Ok(found),
    }
}

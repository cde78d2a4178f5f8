//! Changing a file's size, and dropping pages.
//!
//! # Order of a truncation
//! 1. The arena gets the new size. A killed process is recovered with the file truncated, never with a hole where
//!    acknowledged bytes were.
//! 2. From the page of the new end on, no page is taken for write-back until the truncation is over. The backend must
//!    not extend the file afterwards, and if the truncation is refused, its bytes must still be dirty.
//! 3. Units in flight from that page on are waited for, and so is a call in flight that carries older times.
//! 4. The backend truncates the file. If it refuses, the old size is restored in the arena and nothing is lost.
//! 5. The inode gets the new size. Pages beyond are dropped, dirty or not, and the rest of the last page is zeroed.
//!
//! `rwsem` is held for writing throughout. Extending also sends the size to the backend at once, so that its limits and
//! its free space are checked here and not by a flush that no caller waits for.
//!
//! # Kernel counterpart
//! `truncate_setsize`, `truncate_inode_pages_range`.

use std::ops::Range;

use slackwater_arena::FRAME_BYTES;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::AttrChange;
use crate::error::FileError;
use crate::file::File;
use crate::filemap::check_range;
use crate::inode::{Inode, NO_TRUNCATE};
use crate::page_cache::{Mark, Scan, range_bits, slots};
use crate::units::{PAGE_BYTES, PageIndex};
use crate::writeback::sync::wait_for_last_units;
use crate::writeback::write_inode::settle_now;
use crate::writeback::{SetattrTurn, cancel_pages};

impl File {
    /// Sets the size: truncates the file, or extends it with zeroes.
    ///
    /// # Errors
    /// The size is beyond what the backend can hold, the volume is frozen or unmounted, or the backend refuses. The
    /// file is unchanged.
    ///
    /// # Blocking
    /// Waits for the backend, including units of this file in flight.
    pub fn set_len(&self, size_bytes: u64) -> Result<(), FileError> {
        truncate(self.inode.arc(), size_bytes)
    }
}

/// See the [module documentation](self).
pub(crate) fn truncate(inode: &Arc<Inode>, size_bytes: u64) -> Result<(), FileError> {
    check_range(inode, 0, size_bytes)?;
    let sb = inode.super_block();
    let node = inode.node()?;
    let _exclusive = inode.rwsem.write();
    sb.writable()?;
    let old_bytes = inode.size_bytes();
    let now = sb.engine().clock.wall();
    let change = AttrChange { size_bytes: Some(size_bytes), mtime: Some(now), ..AttrChange::default() };
    let turn;
    if size_bytes < old_bytes {
        let cut = Cut::begin(inode, size_bytes);
        wait_for_last_units(inode);
        turn = SetattrTurn::wait(inode);
        turn.send(node, change)?;
        cut.made();
        sb.space.mark_stale();
    } else {
        turn = SetattrTurn::wait(inode);
        turn.send(node, change)?;
        inode.set_size(size_bytes);
    }
    inode.emptied.store(size_bytes == 0, Ordering::Release);
    inode.backing_bytes.store(size_bytes, Ordering::Release);
    inode.allocated_to.fetch_min(size_bytes, Ordering::AcqRel);
    inode.set_mtime(now);
    drop(turn); // after the new mtime is set, for the next holder of the turn
    sb.note_progress();
    Ok(())
}

/// A truncation in progress. Dropping it restores the old state, unless the backend has truncated the file.
struct Cut<'a> {
    inode: &'a Arc<Inode>,
    size_bytes: u64,
}

impl<'a> Cut<'a> {
    fn begin(inode: &'a Arc<Inode>, size_bytes: u64) -> Self {
        inode.record_size(size_bytes);
        inode.truncate_from.store(PageIndex::of(size_bytes).0, Ordering::Release);
        Self { inode, size_bytes }
    }

    /// The backend has truncated the file.
    fn made(&self) {
        self.inode.set_size(self.size_bytes);
        drop_pages(self.inode, PageIndex::end_of(self.size_bytes)..PageIndex(u64::MAX));
        zero_tail(self.inode, self.size_bytes);
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        let inode = self.inode;
        inode.record_size(inode.size_bytes());
        inode.truncate_from.store(NO_TRUNCATE, Ordering::Release);
        settle_now(inode, false);
    }
}

/// Drops the pages of `range`. Waits for those that are being filled with bytes from before the change; a later fill
/// reads the changed file.
pub(super) fn drop_pages(inode: &Inode, range: Range<PageIndex>) {
    loop {
        cancel_pages(inode, range.clone());
        let mut filling = None;
        inode.mapping.scan(range.start, range.end, None, |base, leaf| {
            let bits = range_bits(range.start.0.saturating_sub(base.0), range.end.0.saturating_sub(base.0));
            filling = slots(leaf.present() & bits).find_map(|slot| Some((base.plus(slot as u64), leaf.frame(slot)?)));
            if filling.is_some() { Scan::Stop } else { Scan::On }
        });
        let Some((index, frame)) = filling else { return };
        super::busy_frames::wait_for_frame(inode, index, frame);
    }
}

/// Zeroes the cached bytes of the last page after `size_bytes`. They are beyond the end of the file, so the page needs
/// no mark for it.
pub(crate) fn zero_tail(inode: &Inode, size_bytes: u64) {
    let from = (size_bytes % PAGE_BYTES) as usize;
    if from != 0 {
        zero_in_page(inode, PageIndex::of(size_bytes), from..FRAME_BYTES);
    }
}

/// Zeroes a part of a page, if the page is cached. The backend's bytes there are zeroes too, or are beyond the end, so
/// the page needs no mark for it. No unit has the page, and none can take it.
pub(super) fn zero_in_page(inode: &Inode, index: PageIndex, bytes: Range<usize>) {
    loop {
        let arena = &inode.super_block().engine().arena;
        // Only tried, under the leaf's lock: eviction may take a clean page, and its frame may then be locked for long.
        let held = inode.mapping.with_page(index, |leaf, slot| {
            let frame = leaf.frame(slot)?;
            let settled = leaf.has(Mark::Uptodate, slot) && !leaf.has(Mark::Writeback, slot);
            Some((frame, if settled { arena.try_write(frame) } else { None }))
        });
        match held.flatten() {
            Some((_, Some(mut page))) => {
                page[bytes].fill(0);
                return;
            }
            Some((frame, None)) => super::busy_frames::wait_for_frame(inode, index, frame),
            None => return,
        }
    }
}

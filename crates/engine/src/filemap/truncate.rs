//! Changing a file's size, and dropping pages.
//!
//! # Order of a cut
//! 1. The new size is set, in the arena too: from now on no unit takes a page beyond it, and a killed
//!    process is recovered with the cut made, never with a hole where acknowledged bytes were.
//! 2. Units in flight with bytes beyond it are waited for: the backend must not extend the file afterwards.
//! 3. The backend cuts the file. If it refuses, the old size is put back and nothing is lost.
//! 4. Pages beyond are dropped, dirty or not, and the rest of the last page is zeroed.
//!
//! `rwsem` is held for writing throughout. Extending sends the size to the backend at once as well, so that
//! its limits and its space answer here and not at a flush that nobody waits for.
//!
//! # Kernel counterpart
//! `truncate_setsize`, `truncate_inode_pages_range`.

use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::{AttrChange, Call};
use crate::error::FileError;
use crate::file::File;
use crate::filemap::check_range;
use crate::inode::Inode;
use crate::page_cache::{LEAF_PAGES, Mark, Scan, range_bits, slots};
use crate::units::{PAGE_BYTES, PageIndex};
use crate::writeback::cancel_pages;
use crate::writeback::sync::wait_for_writeback;

impl File {
    /// Sets the size: cuts the file, or extends it with zeroes.
    ///
    /// # Errors
    /// The size is beyond what the backend can hold, the volume is frozen or gone, or the backend refuses;
    /// the file is as before.
    ///
    /// # Blocking
    /// For the backend, units of this file in flight among others.
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
    let cut = PageIndex::of(size_bytes)..PageIndex(u64::MAX);
    if size_bytes < old_bytes {
        inode.set_size(size_bytes);
        wait_for_writeback(inode, cut, None)?;
        // The last page may hold bytes beyond the old end of the backing file: its unit must see the new
        // end, hence the wait from its own index on.
    }
    let now = sb.engine().clock.wall();
    let change = AttrChange { size_bytes: Some(size_bytes), mtime: Some(now), ..AttrChange::default() };
    let attr = match sb.call(None, |done| Call::Setattr { node, change, done }) {
        Ok(attr) => attr,
        Err(error) => {
            inode.set_size(old_bytes);
            return Err(error.into());
        }
    };
    inode.set_mtime(now);
    inode.refresh(&attr);
    if size_bytes < old_bytes {
        drop_pages_from(inode, PageIndex::end_of(size_bytes));
        zero_tail(inode, size_bytes);
    }
    inode.backing_bytes.store(size_bytes, Ordering::Release);
    if size_bytes > old_bytes {
        inode.set_size(size_bytes);
    }
    sb.note_progress();
    Ok(())
}

/// Drops the pages from `from` on, waiting for those that are being filled with bytes from before the cut. A
/// fill that begins later meets the cut file and brings zeroes.
fn drop_pages_from(inode: &Inode, from: PageIndex) {
    loop {
        cancel_pages(inode, from);
        let mut filling = None;
        inode.mapping.scan(from, PageIndex(u64::MAX), None, |base, leaf| {
            let left = leaf.present() & range_bits(from.0.saturating_sub(base.0), LEAF_PAGES);
            filling = slots(left).find_map(|slot| Some((base.plus(slot as u64), leaf.frame(slot)?)));
            if filling.is_some() { Scan::Stop } else { Scan::On }
        });
        let Some((index, frame)) = filling else { return };
        super::write::wait_for_frame(inode, index, frame);
    }
}

/// Zeroes the cached bytes of the last page behind `size_bytes`. They are beyond the end of the file, so the
/// page needs no mark for it.
pub(crate) fn zero_tail(inode: &Inode, size_bytes: u64) {
    let from = (size_bytes % PAGE_BYTES) as usize;
    if from == 0 {
        return;
    }
    let index = PageIndex::of(size_bytes);
    loop {
        let frame = inode.mapping.with_page(index, |leaf, slot| {
            leaf.frame(slot).filter(|_| leaf.has(Mark::Uptodate, slot) && !leaf.has(Mark::Writeback, slot))
        });
        let Some(frame) = frame.flatten() else {
            let present = inode.mapping.with_page(index, |leaf, slot| leaf.frame(slot));
            match present.flatten() {
                Some(frame) => super::write::wait_for_frame(inode, index, frame),
                None => return,
            }
            continue;
        };
        // `rwsem` keeps writers out, but eviction may take a clean page: check again with the lock held.
        let mut bytes = inode.super_block().engine().arena.write(frame);
        let same = inode.mapping.with_page(index, |leaf, slot| leaf.frame(slot) == Some(frame));
        if same == Some(true) {
            bytes[from..].fill(0);
            return;
        }
    }
}

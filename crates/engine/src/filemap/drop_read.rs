//! DONTCACHE reads: pages that such a read brought into the cache are dropped after it.
//!
//! The pages, including those read ahead, get the mark `DROPBEHIND` when they are claimed for the fill. After the copy,
//! the reader removes those of its pages that have the mark and are clean. It only tries to lock each frame: a page
//! that another thread reads at that moment keeps its mark, for that reader or the next DONTCACHE reader. A page that a
//! DONTCACHE write has dirtied meanwhile is dropped by the commit. An ordinary write clears the mark.
//!
//! # Kernel counterpart
//! `filemap_end_dropbehind_read`. Differs: a plain read does not drop pages that it did
//! not bring in. A reader that stops in the middle of a page keeps that page until it has read the rest.

use std::ops::Range;

use crate::inode::Inode;
use crate::page_cache::{Scan, range_bits};
use crate::units::{PAGE_BYTES, PageIndex};
use crate::writeback::DroppedBehind;

/// The pages that a read of `len` bytes at `offset_bytes` has finished with, in a file of `size_bytes`. The page in
/// whose middle a sequential read stopped is not one of them.
pub(super) fn finished_pages(offset_bytes: u64, len: usize, size_bytes: u64, sequential: bool) -> Range<PageIndex> {
    let end_bytes = offset_bytes + len as u64;
    let end = if sequential && end_bytes < size_bytes {
        PageIndex(end_bytes / PAGE_BYTES)
    } else {
        PageIndex::end_of(end_bytes)
    };
    PageIndex::of(offset_bytes)..end
}

/// Drops those of `pages` that DONTCACHE reads brought in.
pub(super) fn drop_read(inode: &Inode, pages: Range<PageIndex>) {
    let arena = &inode.super_block().engine().arena;
    let mut dropped = DroppedBehind::default();
    inode.mapping.scan(pages.start, pages.end, None, |base, leaf| {
        let bits = range_bits(pages.start.0.saturating_sub(base.0), pages.end.0.saturating_sub(base.0));
        dropped.take_read(arena, base, leaf, bits);
        Scan::On
    });
    dropped.free(inode);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_that_a_sequential_read_stops_in_is_not_finished() {
        let done = |offset, len, size, sequential| {
            let Range { start, end } = finished_pages(offset, len, size, sequential);
            (start.0, end.0)
        };
        assert_eq!(done(0, 8192, 9000, true), (0, 2));
        assert_eq!((done(0, 5000, 9000, true), done(0, 5000, 9000, false)), ((0, 1), (0, 2)));
        assert_eq!(done(8192, 808, 9000, true), (2, 3), "the end of the file");
        assert_eq!(done(100, 50, 9000, true), (0, 0));
    }
}

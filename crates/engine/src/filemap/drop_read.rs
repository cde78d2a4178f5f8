//! DONTCACHE reads: what such a read has brought here leaves when it has been read.
//!
//! The pages carry `DROPBEHIND` from when they are claimed for the fill, those that are read ahead too. After the copy the
//! reader takes out those of its pages that have the mark and are clean. By trying: one that somebody else reads at that
//! moment stays with its mark, for that reader or the next of the kind. What a DONTCACHE write has dirtied meanwhile is the
//! commit's, and an ordinary write has taken the mark away.
//!
//! # Kernel counterpart
//! `filemap_end_dropbehind_read`; sem. 7.5. Differs: a plain read leaves alone what it did not bring, and a reader that goes on
//! from the middle of a page keeps that page until it is through.

use std::ops::Range;

use crate::inode::Inode;
use crate::page_cache::{Scan, range_bits};
use crate::units::{PAGE_BYTES, PageIndex};
use crate::writeback::DroppedBehind;

/// What a read is done with that got `len` bytes from `offset_bytes` on of a file of `size_bytes`: not the page in whose middle
/// a sequential one stopped.
pub(super) fn done_with(offset_bytes: u64, len: usize, size_bytes: u64, sequential: bool) -> Range<PageIndex> {
    let end_bytes = offset_bytes + len as u64;
    let end = if sequential && end_bytes < size_bytes {
        PageIndex(end_bytes / PAGE_BYTES)
    } else {
        PageIndex::end_of(end_bytes)
    };
    PageIndex::of(offset_bytes)..end
}

/// Takes those of `pages` out that DONTCACHE reads have brought here.
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
    fn the_page_in_whose_middle_a_sequential_read_stops_is_not_done_with() {
        let done = |offset, len, size, sequential| {
            let Range { start, end } = done_with(offset, len, size, sequential);
            (start.0, end.0)
        };
        assert_eq!(done(0, 8192, 9000, true), (0, 2));
        assert_eq!((done(0, 5000, 9000, true), done(0, 5000, 9000, false)), ((0, 1), (0, 2)));
        assert_eq!(done(8192, 808, 9000, true), (2, 3), "the end of the file");
        assert_eq!(done(100, 50, 9000, true), (0, 0));
    }
}

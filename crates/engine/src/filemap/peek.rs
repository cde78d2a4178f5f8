//! Lending cached pages in place, for a reply that is gathered from frames instead of copied.
//!
//! # Invariants
//! As D1 and D3 of `read`. Each page is lent under its frame's shared lock, for the duration of the call.
//!
//! # Kernel counterpart
//! `filemap_splice_read`.

use slackwater_arena::{FRAME_BYTES, FrameRead};
use slackwater_sync::shim::atomic::Ordering;

use crate::file::File;
use crate::filemap::drop_read::{drop_read, finished_pages};
use crate::filemap::read::{Access, Look, Usage, look};
use crate::filemap::request::{ReadFlags, ReadRequest};
use crate::units::{PAGE_BYTES, PageIndex};

/// The most bytes lent at once.
const LEND_MAX: usize = 1 << 20;
/// Pages of the longest loan, which need not start at a page boundary.
const PAGES_MAX: usize = LEND_MAX / FRAME_BYTES + 1;

static ZEROES: [u8; FRAME_BYTES] = [0; FRAME_BYTES];

impl File {
    /// Lends the bytes that a read of `len` by `request` would return to `f`, in slices of at most a page. Returns
    /// `None` without calling `f` if a page is not cached or is being written to, if there is nothing to read or more
    /// than 1 MiB, or if the volume is unmounted: [`File::read`] it then.
    ///
    /// Writers of these pages wait until `f` returns.
    ///
    /// # Blocking
    /// Never, except in `f`.
    pub fn peek<R>(&self, request: ReadRequest<'_>, len: usize, f: impl FnOnce(&[&[u8]]) -> R) -> Option<R> {
        let ReadRequest { offset_bytes, flags, .. } = request;
        let inode = self.inode().arc();
        inode.super_block().alive().ok()?;
        let size_bytes = inode.size_bytes();
        let len = (len as u64).min(size_bytes.saturating_sub(offset_bytes)) as usize;
        if len == 0 || len > LEND_MAX {
            return None;
        }
        let pages = PageIndex::of(offset_bytes)..PageIndex::end_of(offset_bytes + len as u64);
        // The slices are on the stack, in three sizes, so that a small read does not pay for a large array.
        let result = match (pages.end.0 - pages.start.0) as usize {
            0..=2 => self.lend::<2, R>(offset_bytes, len, f),
            3..=33 => self.lend::<33, R>(offset_bytes, len, f),
            _ => self.lend::<PAGES_MAX, R>(offset_bytes, len, f),
        }?;
        self.note_read(pages.end.0 - pages.start.0, 0);
        let sequential = self.readahead.begin(&pages);
        self.read_ahead_of(&pages, flags);
        if flags.contains(ReadFlags::DONTCACHE) {
            drop_read(inode, finished_pages(offset_bytes, len, size_bytes, sequential));
        }
        Some(result)
    }

    fn lend<const PAGES: usize, R>(&self, offset_bytes: u64, len: usize, f: impl FnOnce(&[&[u8]]) -> R) -> Option<R> {
        let inode = self.inode().arc();
        let mut frames: [Option<FrameRead<'_>>; PAGES] = [const { None }; PAGES];
        let mut count = 0;
        let mut at = offset_bytes;
        let end = offset_bytes + len as u64;
        let continues_page = self.continues_page(offset_bytes);
        while at < end {
            let index = PageIndex::of(at);
            let usage = if continues_page && at == offset_bytes { Usage::Same } else { Usage::Other };
            match look(inode, index, Access { hint: false, usage }) {
                Look::Cached(frame) => frames[count] = Some(frame),
                Look::Absent if index.offset_bytes() >= inode.backing_bytes.load(Ordering::Acquire) => {}
                Look::Absent | Look::Wait(_) => return None,
            }
            count += 1;
            at = index.plus(1).offset_bytes();
        }
        let mut slices: [&[u8]; PAGES] = [&[]; PAGES];
        let mut at = offset_bytes;
        for (slice, frame) in slices.iter_mut().zip(&frames).take(count) {
            let from = (at % PAGE_BYTES) as usize;
            let to = (from as u64 + end - at).min(PAGE_BYTES) as usize;
            *slice = frame.as_deref().map_or(&ZEROES[from..to], |frame| &frame[from..to]);
            at += (to - from) as u64;
        }
        Some(f(&slices[..count]))
    }
}

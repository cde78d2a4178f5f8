//! How far to read ahead of a reader.
//!
//! A reader that continues where it stopped is sequential. Its window doubles with each miss, up to the tunable. The
//! next window is fetched when the reader reaches the last quarter of this one. Any other reader gets only what it asks
//! for.
//!
//! # Memory ordering
//! The words are hints. Two threads that share a description spoil each other's guess, but nothing else. Every read
//! stores to one of them, so they have a cache line of their own. Otherwise, a read would slow down readers of an
//! adjacent description, and readers of the reference to the inode, which every call reads. Hits are counted in the
//! same line, without atomic additions: one would take a tenth of the time of a one-page read.
//!
//! # Kernel counterpart
//! `struct file_ra_state`, `page_cache_sync_ra`, `page_cache_async_ra`.

use std::ops::Range;

use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use crate::super_block::HIT_BATCH_PAGES;
use crate::units::PageIndex;

/// Window of the first sequential miss, in pages.
const FIRST_WINDOW: u64 = 16;

/// See the [module documentation](self).
#[repr(align(64))]
pub(crate) struct Readahead {
    /// Page after the last one read.
    next: AtomicU64,
    /// Pages fetched by the last window.
    window: AtomicU64,
    /// Reaching this page fetches the next window.
    trigger: AtomicU64,
    /// Page after the last one fetched.
    end: AtomicU64,
    /// Pages found in the cache and not yet added to the counters of the volume and the tenant.
    found: AtomicU64,
}

impl Readahead {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { next: zero(), window: zero(), trigger: AtomicU64::new(u64::MAX), end: zero(), found: zero() }
    }

    /// Counts `pages` that a read found in the cache. Returns the pages to add to the counters, once they are enough
    /// for a batch. A large read is a batch by itself, because its requests come on several threads.
    pub(crate) fn found(&self, pages: u64) -> Option<u64> {
        if pages >= HIT_BATCH_PAGES {
            return Some(pages);
        }
        let found = self.found.load(Ordering::Relaxed) + pages;
        let is_batch = found >= HIT_BATCH_PAGES;
        self.found.store(if is_batch { 0 } else { found }, Ordering::Relaxed);
        is_batch.then_some(found)
    }

    /// Pages counted but not yet returned by [`Readahead::found`].
    pub(crate) fn left_found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    /// Notes that `pages` are being read. Returns whether the read continues where the last one stopped.
    pub(crate) fn begin(&self, pages: &Range<PageIndex>) -> bool {
        // The read may start inside the page where the last one stopped, hence the tolerance of one page.
        let expected = self.next.load(Ordering::Relaxed);
        if expected != pages.end.0 {
            self.next.store(pages.end.0, Ordering::Relaxed);
        }
        pages.start.0 == expected || pages.start.0 + 1 == expected
    }

    /// Whether the last read ended in this page or at its end: to continue there is the same use of the page.
    pub(crate) fn ended_in(&self, page: PageIndex) -> bool {
        self.next.load(Ordering::Relaxed) == page.0 + 1
    }

    /// The range to fetch after a read that found all of `pages` in the cache, if any.
    pub(crate) fn hit(&self, pages: &Range<PageIndex>, max_pages: u64) -> Option<Range<PageIndex>> {
        if pages.end.0 <= self.trigger.load(Ordering::Relaxed) {
            return None;
        }
        let start = self.end.load(Ordering::Relaxed).max(pages.end.0);
        Some(self.window(start, max_pages))
    }

    /// The range to fetch for a read that extends to `end` and misses the page at `missing`: at least that page, and
    /// at most `max_pages`. If `max_pages` is 0, it is the range being read.
    pub(crate) fn miss(
        &self,
        missing: PageIndex,
        end: PageIndex,
        sequential: bool,
        max_pages: u64,
    ) -> Range<PageIndex> {
        if max_pages == 0 {
            return missing..end;
        }
        let wanted = end.min(missing.plus(max_pages));
        if !sequential {
            self.window.store(0, Ordering::Relaxed);
            self.trigger.store(u64::MAX, Ordering::Relaxed);
            return missing..wanted;
        }
        missing..self.window(missing.0, max_pages).end.max(wanted)
    }

    fn window(&self, start: u64, max_pages: u64) -> Range<PageIndex> {
        let window = (self.window.load(Ordering::Relaxed) * 2).clamp(FIRST_WINDOW.min(max_pages), max_pages);
        let end = start + window;
        self.window.store(window, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.trigger.store(end - window / 4, Ordering::Relaxed);
        PageIndex(start)..PageIndex(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(from: u64, to: u64) -> Range<PageIndex> {
        PageIndex(from)..PageIndex(to)
    }

    #[test]
    fn a_sequential_reader_gets_growing_windows_before_it_needs_them() {
        let ahead = Readahead::new();
        assert!(ahead.begin(&pages(0, 1)));
        assert_eq!(ahead.miss(PageIndex(0), PageIndex(1), true, 256), pages(0, 16));
        let mut fetched_to = 16;
        let mut windows = Vec::new();
        for at in 1..2000 {
            assert!(at < fetched_to, "page {at} was not fetched in time");
            assert!(ahead.begin(&pages(at, at + 1)));
            if let Some(window) = ahead.hit(&pages(at, at + 1), 256) {
                assert_eq!(window.start.0, fetched_to);
                fetched_to = window.end.0;
                windows.push(window.end.0 - window.start.0);
            }
        }
        assert_eq!(windows[..5], [32, 64, 128, 256, 256]);
    }

    #[test]
    fn a_random_reader_gets_what_it_asked_for() {
        let ahead = Readahead::new();
        assert!(!ahead.begin(&pages(77, 79)));
        assert_eq!(ahead.miss(PageIndex(77), PageIndex(79), false, 256), pages(77, 79));
        assert!(!ahead.begin(&pages(5, 6)));
        assert_eq!(ahead.miss(PageIndex(5), PageIndex(6), false, 256), pages(5, 6));
        assert_eq!(ahead.hit(&pages(5, 6), 256), None);
    }
}

//! How far to read ahead of a reader.
//!
//! A reader that continues where it stopped is sequential. Its window doubles with each miss, up to the tunable. The
//! next window is fetched when the reader reaches the last quarter of this one. Any other reader gets only what it asks
//! for.
//!
//! A far backend needs the same amount of data in flight all the time. There the window moves with the reader: it is
//! what lies before it, and each quarter of a window that is read is fetched behind its end. Windows start larger and
//! grow by a factor of four.
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
use crate::units::{PAGE_BYTES, PageIndex};

/// Window of the first sequential miss, in pages.
const FIRST_WINDOW: u64 = 16;
/// The same for a far backend: 1 MiB.
const FIRST_FAR_WINDOW: u64 = 256;

/// The largest window of a volume.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Reach {
    /// In pages; 0 reads only what is asked for.
    Near(u64),
    /// The reach for a backend with much latency, in pages.
    Far(u64),
}

impl Reach {
    /// From the tunable, the wish of the backend, and the frames of the arena. A window never takes more than a
    /// sixteenth of the arena because of the backend.
    pub(crate) fn new(tunable_pages: u32, backend_bytes: u64, arena_frames: u64) -> Self {
        let near = u64::from(tunable_pages);
        let far = (backend_bytes / PAGE_BYTES).min(arena_frames / 16);
        if near == 0 || far <= near { Self::Near(near) } else { Self::Far(far) }
    }

    fn max_pages(self) -> u64 {
        match self {
            Self::Near(pages) | Self::Far(pages) => pages,
        }
    }
}

/// See the [module documentation](self).
#[repr(align(64))]
pub(crate) struct Readahead {
    reach: Reach,
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
    pub(crate) fn new(reach: Reach) -> Self {
        let zero = || AtomicU64::new(0);
        Self { reach, next: zero(), window: zero(), trigger: AtomicU64::new(u64::MAX), end: zero(), found: zero() }
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
    pub(crate) fn hit(&self, pages: &Range<PageIndex>) -> Option<Range<PageIndex>> {
        if pages.end.0 <= self.trigger.load(Ordering::Relaxed) {
            return None;
        }
        let start = self.end.load(Ordering::Relaxed).max(pages.end.0);
        Some(self.window(start))
    }

    /// The range to fetch for a read that extends to `end` and misses the page at `missing`: at least that page, and
    /// at most the largest window. If that is 0, it is the range being read.
    pub(crate) fn miss(&self, missing: PageIndex, end: PageIndex, sequential: bool) -> Range<PageIndex> {
        let max_pages = self.reach.max_pages();
        if max_pages == 0 {
            return missing..end;
        }
        let wanted = end.min(missing.plus(max_pages));
        if !sequential {
            self.window.store(0, Ordering::Relaxed);
            self.trigger.store(u64::MAX, Ordering::Relaxed);
            return missing..wanted;
        }
        missing..self.window(missing.0).end.max(wanted)
    }

    /// The range to fetch from `start` on, for a reader that is before `start` or there.
    fn window(&self, start: u64) -> Range<PageIndex> {
        let max_pages = self.reach.max_pages();
        let (factor, first) = match self.reach {
            Reach::Near(_) => (2, FIRST_WINDOW),
            Reach::Far(_) => (4, FIRST_FAR_WINDOW),
        };
        let window = (self.window.load(Ordering::Relaxed) * factor).clamp(first.min(max_pages), max_pages);
        let reader = self.next.load(Ordering::Relaxed).min(start);
        let (end, trigger) = match self.reach {
            Reach::Near(_) => (start + window, start + window - window / 4),
            Reach::Far(_) => ((reader + window).max(start + window / 4), reader + window / 4),
        };
        self.window.store(window, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.trigger.store(trigger, Ordering::Relaxed);
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
        let ahead = Readahead::new(Reach::Near(256));
        assert!(ahead.begin(&pages(0, 1)));
        assert_eq!(ahead.miss(PageIndex(0), PageIndex(1), true), pages(0, 16));
        let mut fetched_to = 16;
        let mut windows = Vec::new();
        for at in 1..2000 {
            assert!(at < fetched_to, "page {at} was not fetched in time");
            assert!(ahead.begin(&pages(at, at + 1)));
            if let Some(window) = ahead.hit(&pages(at, at + 1)) {
                assert_eq!(window.start.0, fetched_to);
                fetched_to = window.end.0;
                windows.push(window.end.0 - window.start.0);
            }
        }
        assert_eq!(windows[..5], [32, 64, 128, 256, 256]);
    }

    #[test]
    fn a_random_reader_gets_what_it_asked_for() {
        let ahead = Readahead::new(Reach::Near(256));
        assert!(!ahead.begin(&pages(77, 79)));
        assert_eq!(ahead.miss(PageIndex(77), PageIndex(79), false), pages(77, 79));
        assert!(!ahead.begin(&pages(5, 6)));
        assert_eq!(ahead.miss(PageIndex(5), PageIndex(6), false), pages(5, 6));
        assert_eq!(ahead.hit(&pages(5, 6)), None);
    }

    #[test]
    fn a_reader_of_a_far_backend_always_has_most_of_a_window_ahead() {
        let ahead = Readahead::new(Reach::Far(8192));
        assert!(ahead.begin(&pages(0, 1)));
        let mut fetched_to = ahead.miss(PageIndex(0), PageIndex(1), true).end.0;
        assert_eq!(fetched_to, 256);
        let mut lengths = Vec::new();
        for at in 0..60_000 {
            assert!(ahead.begin(&pages(at, at + 1)));
            if let Some(window) = ahead.hit(&pages(at, at + 1)) {
                assert_eq!(window.start.0, fetched_to);
                fetched_to = window.end.0;
                lengths.push(window.end.0 - window.start.0);
            }
            let left = fetched_to - at;
            assert!(left <= 8193, "{left} pages ahead of page {at}");
            assert!(at < 2000 || left >= 8192 * 3 / 4, "{left} pages ahead of page {at}");
        }
        assert!(lengths[3..].iter().all(|length| (2048..2060).contains(length)), "{lengths:?}");
    }

    #[test]
    fn the_reach_follows_the_tunable_the_backend_and_the_arena() {
        let (mib, large) = (1 << 20, 1 << 20);
        assert_eq!(Reach::new(256, 0, large), Reach::Near(256));
        assert_eq!(Reach::new(0, 64 * mib, large), Reach::Near(0));
        assert_eq!(Reach::new(256, 64 * mib, large), Reach::Far(16_384));
        assert_eq!(Reach::new(256, 64 * mib, 65_536), Reach::Far(4096));
        assert_eq!(Reach::new(256, 64 * mib, 4096), Reach::Near(256));
    }
}

//! Cache hits and misses of reads, per volume and per tenant.
//!
//! A read that hits entirely takes a tenth of a microsecond, so each open description counts its hits itself. It
//! reports them in batches ([`HIT_BATCH_PAGES`]) and the rest when it is closed. Reads from the backend are counted at
//! once.

use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

/// Hits that a description reports together.
pub(crate) const HIT_BATCH_PAGES: u64 = 64;

/// In pages; see the [module documentation](self).
#[derive(Default)]
pub(crate) struct ReadCounts {
    hits: AtomicU64,
    misses: AtomicU64,
    filled: AtomicU64,
}

impl ReadCounts {
    pub(crate) fn note_hits(&self, pages: u64) {
        self.hits.fetch_add(pages, Ordering::Relaxed);
    }

    pub(crate) fn note_misses(&self, pages: u64) {
        self.misses.fetch_add(pages, Ordering::Relaxed);
    }

    /// Records that the backend has filled `pages`.
    pub(crate) fn note_filled(&self, pages: u64) {
        self.filled.fetch_add(pages, Ordering::Relaxed);
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    pub(crate) fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    pub(super) fn filled(&self) -> u64 {
        self.filled.load(Ordering::Relaxed)
    }
}

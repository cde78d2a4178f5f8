//! Claims: changes that take space on the backend at once, such as names, attributes and `fallocate`. They must not
//! take space that accepted writes still need.
//!
//! While the backend makes the change, its claim is withheld from writes. If the claim leaves too little space for the
//! dirty data, that data is written back first. After that the backend alone decides: no estimate refuses a change that
//! it has space for. Data that cannot be written back keeps its space, and the change is refused.
//!
//! # Invariants
//! C1. A claim is counted like a unit of delayed pages (P1 to P3 of [`super::space`]), from before its call until the
//!     call is answered.
//! C2. A claim is refused only if accepted data would no longer fit. If nothing is delayed, no claim is refused.
//! C3. The caller holds nothing that write-back waits for: no `rwsem`, and no change of a file in progress.
//!
//! # Kernel counterpart
//! `ext4_nonda_switch` flushes delayed data when free clusters run low; `ext4_claim_free_clusters` counts both.

use slackwater_sync::shim::Arc;

use crate::error::{BackendError, ErrorKind};
use crate::super_block::SuperBlock;
use crate::units::PAGE_BYTES;
use crate::writeback::sync::write_and_wait;
use crate::writeback::writepages::Awaits;

/// Space that a new name may take: a block of its directory, and a block of its own.
pub(crate) const NAME_PAGES: u64 = 2;
/// Margin for unannounced use: extents, bitmaps, a claim that takes more than it announced.
const MARGIN_PAGES: u64 = 64;
/// Upper bound of a claim, so that the sum of many cannot overflow. No file system is as large.
const CLAIM_PAGES_MAX: u64 = 1 << 40;
/// Write-backs before a claim is refused: other processes may write meanwhile.
const WRITE_BACKS_MAX: u32 = 3;

/// The pages that `bytes` touch, including a partial page at either end.
pub(crate) const fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES) + 1
}

impl SuperBlock {
    /// Runs `change`, which takes up to `pages` on the backend. With zero pages it just runs it.
    ///
    /// # Errors
    /// Those of `change`. `NoSpace` (C2).
    ///
    /// # Blocking
    /// Waits for the backend.
    pub(crate) fn claim_space<T, E: From<BackendError>>(
        self: &Arc<Self>,
        pages: u64,
        change: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if pages == 0 {
            return change();
        }
        let pages = pages.min(CLAIM_PAGES_MAX);
        if !self.space.has_beyond_delayed(pages + MARGIN_PAGES) {
            self.ensure_space(pages)?;
        }
        self.space.reserve(pages);
        self.space.unit_sent(pages);
        let result = change();
        self.space.unit_ended(pages, if result.is_ok() { pages } else { 0 });
        if result.is_err() {
            self.space.release(pages);
            self.space.mark_stale(); // the failed change may have taken a part
        }
        if !self.space.has_beyond_delayed(MARGIN_PAGES) {
            self.note_progress(); // a writer may be waiting to learn what was left
        }
        result
    }

    /// Writes dirty data back until `pages` more can be taken without harm.
    fn ensure_space(self: &Arc<Self>, pages: u64) -> Result<(), BackendError> {
        for _ in 0..WRITE_BACKS_MAX {
            self.query_space()?;
            if self.space.has_beyond_delayed(pages + MARGIN_PAGES) {
                return Ok(());
            }
            self.write_back_delayed()?;
        }
        self.query_space()?;
        if self.space.may_have_beyond_delayed(pages) { Ok(()) } else { Err(ErrorKind::NoSpace.into()) }
    }

    /// Writes back dirty data, except that of files whose last attempt failed and whose next is not due (P2 of
    /// SEMANTICS). Failures are reported where write-back always reports them.
    fn write_back_delayed(self: &Arc<Self>) -> Result<(), BackendError> {
        let now = self.now();
        for inode in self.unclean_inodes() {
            let backs_off = inode.state.lock().retry_at.is_some_and(|due| due > now);
            if !backs_off {
                write_and_wait(&inode, None, Awaits::Pages)?;
            }
        }
        Ok(())
    }
}

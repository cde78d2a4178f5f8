//! Changes that take space on the backend at once: names, attributes, `fallocate`. They must not take what accepted
//! writes still need.
//!
//! A claim is held back from writes while the backend makes the change. If the claim leaves too little for the dirty
//! data, that data is written back first. After that the backend alone decides: no estimate refuses a change that it
//! has space for. Data that cannot be written back keeps its space, and the change is refused.
//!
//! # Invariants
//! C1. A claim is counted as a unit of delayed pages is (P1 to P3 of [`super::space`]), from before its call until the
//!     call was answered.
//! C2. A claim is refused only if data that was accepted would not fit any more. With nothing delayed no claim is.
//! C3. Nothing that a write-back waits for is held: no `rwsem`, no change of a file.
//!
//! # Kernel counterpart
//! `ext4_nonda_switch` flushes delayed data when free clusters run low; `ext4_claim_free_clusters` counts both.

use slackwater_sync::shim::Arc;

use crate::error::{BackendError, ErrorKind};
use crate::super_block::SuperBlock;
use crate::units::PAGE_BYTES;
use crate::writeback::sync::write_and_wait;

/// What a new name may take: a block of its directory, and one of its own.
pub(crate) const NAME_PAGES: u64 = 2;
/// So much is left to what nobody announces: extents, bitmaps, a claim that takes more than it said.
const EDGE_PAGES: u64 = 64;
/// A claim is no larger than this, so that the sum of many cannot overflow. No file system has as much.
const CLAIM_PAGES_MAX: u64 = 1 << 40;
/// Write-backs before a claim is refused: others may write meanwhile.
const WRITE_BACKS_MAX: u32 = 3;

/// The pages that `bytes` take, a part of one at either end included.
pub(crate) const fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES) + 1
}

impl SuperBlock {
    /// Runs `change`, which takes up to `pages` on the backend; with none it is nothing but run.
    ///
    /// # Errors
    /// Those of `change`. `NoSpace` (C2).
    ///
    /// # Blocking
    /// For the backend.
    pub(crate) fn claim_space<T, E: From<BackendError>>(
        self: &Arc<Self>,
        pages: u64,
        change: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if pages == 0 {
            return change();
        }
        let pages = pages.min(CLAIM_PAGES_MAX);
        if !self.space.has_beside_delayed(pages + EDGE_PAGES) {
            self.make_space_sure(pages)?;
        }
        self.space.reserve(pages);
        self.space.unit_sent(pages);
        let result = change();
        self.space.unit_ended(pages, if result.is_ok() { pages } else { 0 });
        if result.is_err() {
            self.space.release(pages);
            self.space.outdate(); // it may have taken a part
        }
        if !self.space.has_beside_delayed(EDGE_PAGES) {
            self.note_progress(); // a writer may wait to learn what was left
        }
        result
    }

    /// Brings dirty data to the backend until `pages` more do no harm.
    fn make_space_sure(self: &Arc<Self>, pages: u64) -> Result<(), BackendError> {
        for _ in 0..WRITE_BACKS_MAX {
            self.ask_for_space()?;
            if self.space.has_beside_delayed(pages + EDGE_PAGES) {
                return Ok(());
            }
            self.write_back_delayed()?;
        }
        self.ask_for_space()?;
        if self.space.may_have_beside_delayed(pages) { Ok(()) } else { Err(ErrorKind::NoSpace.into()) }
    }

    /// Writes back what is dirty, but for files whose last attempt failed and whose next is not due (P2 of SEMANTICS). What
    /// fails here is reported where write-back reports it.
    fn write_back_delayed(self: &Arc<Self>) -> Result<(), BackendError> {
        let now = self.now();
        for inode in self.unclean_inodes() {
            let backs_off = inode.state.lock().retry_at.is_some_and(|due| due > now);
            if !backs_off {
                write_and_wait(&inode, None)?;
            }
        }
        Ok(())
    }
}

//! DONTCACHE writes: they are written back at once, and what is durable leaves the cache.
//!
//! A page that such a write brings here is marked `DROPBEHIND`; an ordinary write to it takes the mark away. Who starts the
//! write-back has two forms, the last is the default:
//!
//! | form | who writes | what |
//! |---|---|---|
//! | [`inline`] | the writer, which waits for the device's queue | the very pages that it wrote |
//! | [`kick`] | the flusher of the file's wb, which is told | as many pages as are dirty with the mark, of the inodes that have been dirty longest, whoever dirtied them: I/O stays in large pieces. Which pages those are nobody promises |
//!
//! # Invariants
//! D1. `WbStat::dontcache_dirty` counts the pages that are `DIRTY` and `DROPBEHIND`. Whoever changes one of the two marks of a
//!     page that has the other one accounts for it, in the same [`Inode::account`] as for the dirty pages.
//! D2. An inode whose I/O is in flight is on no list that a flusher takes from. So a kick is taken only when some inode is
//!     on one; until then it stays set, and whoever lists an inode wakes the flusher. And an inode that comes back with
//!     such pages kicks for them.
//! D3. The pages leave when a commit has made them durable, and not when they are written: until then they may be the only
//!     copy. By trying: one that somebody reads stays, without the mark.
//!
//! # Kernel counterpart
//! `folio_end_dropbehind`; sem. 7. Differs: D3, and a plain read never drops a page. What DONTCACHE reads do is in
//! `filemap::drop_read`. The inline form is kept for what it costs.

mod dropped;
mod inline;
mod kick;

use std::ops::Range;

use slackwater_sync::shim::Arc;

use crate::inode::Inode;
use crate::units::PageIndex;
use crate::writeback::BdiWriteback;

pub(crate) use dropped::DroppedBehind;
pub(super) use kick::DontcachePass;

/// How what a DONTCACHE write has left dirty comes to be written.
pub(crate) trait Start: Send + Sync {
    /// Such a write to `pages` has ended; its caller holds no lock of the file.
    ///
    /// # Blocking
    /// As the form says, if it `may_wait`; else never.
    fn written(&self, inode: &Arc<Inode>, pages: Range<PageIndex>, may_wait: bool);

    /// An inode with such pages is on a list of `wb` again.
    fn came_back(&self, wb: &BdiWriteback);
}

/// Which of the forms an engine uses. For experiments and tests.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub enum DontcacheForm {
    /// As in Linux up to 7.1. A write waits for the backend, also one that says that it never does, unless it is `nowait`.
    Inline,
    /// As in Linux 7.2.
    #[default]
    Kick,
}

impl DontcacheForm {
    pub(crate) fn start(self) -> &'static dyn Start {
        match self {
            Self::Inline => &inline::Inline,
            Self::Kick => &kick::Kicked,
        }
    }
}

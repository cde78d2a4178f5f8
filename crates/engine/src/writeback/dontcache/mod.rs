//! DONTCACHE writes: written back at once, and evicted as soon as they are durable.
//!
//! A page that such a write brings into the cache is marked `DROPBEHIND`; an ordinary write to it clears the mark.
//! There are two forms of starting the write-back; the last is the default:
//!
//! | form | write-back by | pages written |
//! |---|---|---|
//! | [`inline`] | the writer, which waits for the device's queue | exactly the pages it wrote |
//! | [`kick`] | the flusher of the file's wb, which the writer kicks | as many pages as are dirty with the mark, taken from the inodes that have been dirty longest, whichever writer dirtied them. I/O stays in large units; which pages those are is not specified |
//!
//! # Invariants
//! D1. `WbStat::dontcache_dirty` counts the pages that are both `DIRTY` and `DROPBEHIND`. Code that changes one of
//!     these marks on a page that has the other accounts for it in the same [`Inode::account`] as for the dirty pages.
//! D2. An inode whose I/O is in flight is on no list that a flusher takes from. So a kick is taken only while some
//!     inode is on one. Until then it stays set, and listing an inode wakes the flusher. An inode that is listed again
//!     with such pages kicks for them.
//! D3. The pages leave when a commit has made them durable, not when they are written: until then they may be the only
//!     copy. Dropping uses a trylock: a page that is being read stays, without the mark.
//!
//! # Kernel counterpart
//! `folio_end_dropbehind`. Differs: D3, and a plain read never drops a page. `filemap::drop_read` implements
//! DONTCACHE reads. The inline form is kept to measure its cost.

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

/// How the write-back of pages dirtied by a DONTCACHE write is started.
pub(crate) trait StartWriteback: Send + Sync {
    /// Called after such a write to `pages`, with no lock of the file held.
    ///
    /// # Blocking
    /// Depends on the form if `may_wait`; otherwise never blocks.
    fn write_ended(&self, inode: &Arc<Inode>, pages: Range<PageIndex>, may_wait: bool);

    /// Called when an inode with such pages is on a list of `wb` again.
    fn inode_relisted(&self, wb: &BdiWriteback);
}

/// The form an engine uses. For experiments and tests.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub enum DontcacheForm {
    /// The form of Linux up to 7.1. Unless it is `nowait`, a write waits for the backend, even through a call that
    /// otherwise never does.
    Inline,
    /// The form of Linux 7.2.
    #[default]
    Kick,
}

impl DontcacheForm {
    pub(crate) fn start(self) -> &'static dyn StartWriteback {
        match self {
            Self::Inline => &inline::Inline,
            Self::Kick => &kick::Kicked,
        }
    }
}

//! An open file description.
//!
//! The methods that move data are in [`crate::filemap`]. Here is the state: a reference to the inode, the write-back
//! errors already reported through this description, and its read pattern.
//!
//! # Kernel counterpart
//! `struct file` with `f_wb_err` and `f_ra`.

use std::fmt;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::atomic::Ordering;
use slackwater_sync::shim::{Arc, Weak};

use crate::backend::NodeKind;
use crate::cgroup::Memcg;
use crate::error::FileError;
use crate::errseq::ErrCursor;
use crate::filemap::{Reach, Readahead};
use crate::inode::InodeRef;
use crate::lock_order::{F_LOCK, LEAVES};
use crate::writeback::WriterAccount;

/// An open regular file. Its volume is busy while it exists.
pub struct File {
    pub(crate) inode: InodeRef,
    /// The errors reported through this description so far. The lock serialises reports.
    pub(crate) wb_err: Mutex<ErrCursor>,
    pub(crate) readahead: Readahead,
    /// The tenant that reads: the one of the last read with a cache miss, or the one set by [`File::set_reader`].
    /// Readahead is charged to it, and hits are counted for it.
    reader: Mutex<Weak<Memcg>>,
    /// The tenant charged for writes that name no other.
    memcg: Arc<Memcg>,
    pub(crate) account: WriterAccount,
}

impl File {
    /// Opens `inode`.
    ///
    /// # Errors
    /// It is not a regular file, the volume is frozen or unmounted, or the backend cannot open it. `TooManyOpen` if
    /// the file can be reached only through its node and the tenant has too many such files open.
    ///
    /// # Blocking
    /// Waits for the backend if the node has to be opened again.
    pub fn open(inode: &InodeRef) -> Result<Self, FileError> {
        Self::open_for(inode, inode.super_block().engine().tenants.root())
    }

    /// Opens `inode` for `memcg`, which is charged for writes through this description.
    ///
    /// # Errors
    /// As [`File::open`].
    ///
    /// # Blocking
    /// As [`File::open`].
    pub fn open_for(inode: &InodeRef, memcg: &Arc<Memcg>) -> Result<Self, FileError> {
        if inode.kind() != NodeKind::File {
            return Err(FileError::NotAFile(inode.id()));
        }
        let sb = inode.super_block();
        let engine = sb.engine();
        let (arena_frames, wish_bytes) = (u64::from(engine.arena.frames()), sb.bdi().limits().readahead_bytes);
        let reach = Reach::new(engine.tunables.readahead_pages, wish_bytes, arena_frames);
        let file = Self {
            inode: inode.clone(),
            wb_err: Mutex::new(F_LOCK, inode.errseq.sample()),
            readahead: Readahead::new(reach),
            reader: Mutex::new(LEAVES, Arc::downgrade(memcg)),
            memcg: Arc::clone(memcg),
            account: WriterAccount::new(),
        };
        inode.openers.fetch_add(1, Ordering::SeqCst);
        // Counted before the state is checked, whereas umount freezes first and then counts: one of the two sees the
        // other.
        sb.open_files.fetch_add(1, Ordering::SeqCst);
        let counted = inode.opened(memcg);
        sb.writable()?;
        counted?;
        inode.node()?;
        Ok(file)
    }

    /// The tenant charged for writes through this description.
    pub fn memcg(&self) -> &Arc<Memcg> {
        &self.memcg
    }

    pub(crate) fn reader(&self) -> Arc<Memcg> {
        self.reader.lock().upgrade().unwrap_or_else(|| Arc::clone(&self.memcg))
    }

    /// Names the tenant that reads through this description, so that hits count for it from the start. A later read
    /// for another tenant replaces it if that read has to bring something into the cache.
    pub fn set_reader(&self, memcg: &Arc<Memcg>) {
        let mut reader = self.reader.lock();
        if !std::ptr::eq(reader.as_ptr(), Arc::as_ptr(memcg)) {
            *reader = Arc::downgrade(memcg);
        }
    }

    /// Records a read of `pages` pages, `missed` of which were read from the backend.
    pub(crate) fn note_read(&self, pages: u64, missed: u64) {
        // A page evicted between its fill and the read was fetched twice, so `missed` may exceed `pages`.
        let found = self.readahead.found(pages.saturating_sub(missed)).unwrap_or(0);
        self.note_found_and_missed(found, missed);
    }

    fn note_found_and_missed(&self, found: u64, missed: u64) {
        if found == 0 && missed == 0 {
            return;
        }
        let reader = self.reader();
        for reads in [&self.inode.super_block().reads, &reader.reads] {
            reads.note_hits(found);
            reads.note_misses(missed);
        }
    }

    /// The file.
    pub fn inode(&self) -> &InodeRef {
        &self.inode
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.account.detach(&self.inode.wb());
        let sb = self.inode.super_block();
        self.note_found_and_missed(self.readahead.left_found(), 0);
        sb.open_files.fetch_sub(1, Ordering::SeqCst);
        self.inode.closed(&self.memcg);
        if self.inode.openers.fetch_sub(1, Ordering::SeqCst) == 1 {
            sb.note_idle(&self.inode);
            sb.note_unused(&self.inode);
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({:?})", *self.inode)
    }
}

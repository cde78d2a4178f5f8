//! Files that another program removes or replaces in the backend while they have dirty data here.
//!
//! Write-back through the open node succeeds, but no name leads to the data. The answer to the metadata flush that
//! follows shows this. It is reported like a failed write-back (P2). The next sync of the volume, or its unmount,
//! copies the file's content to a rescue file.
//!
//! # Invariants
//! G1. A file is recorded with its node open, before its metadata flush counts as answered. So its content can be read
//!     until it is copied.
//! G2. It is judged only while none of our removals and renames is in progress. Those that have ended have marked the
//!     files whose last name they took (`InodeState::nameless`).

use slackwater_arena::{FrameId, Pool, Scatter};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::{Call, Node, NodeKind, ReadUnit};
use crate::error::{BackendError, ErrorKind};
use crate::inode::{Change, Inode};
use crate::super_block::{RescueFile, Rescued, RescuedFrom, SuperBlock};
use crate::units::{PAGE_BYTES, PageIndex};

/// A file without a name whose data exists nowhere else.
pub(crate) struct RemovedFile {
    inode: Arc<Inode>,
    node: Node,
}

impl SuperBlock {
    /// Records that the backend reported `inode`, which was just written, to have no name (G1).
    pub(crate) fn note_nameless(&self, inode: &Arc<Inode>) {
        let node = {
            let state = inode.state.lock();
            state.node.clone().filter(|_| !state.nameless && !state.doomed)
        };
        let Some(node) = node.filter(|_| inode.kind() == NodeKind::File) else { return };
        let mut removed = self.removed.lock();
        if !removed.iter().any(|file| Arc::ptr_eq(&file.inode, inode)) {
            removed.push(RemovedFile { inode: Arc::clone(inode), node });
        }
        drop(removed);
        if self.is_removed_by_others(inode) {
            inode.errseq.set(ErrorKind::Stale);
            self.note_failure(ErrorKind::Stale);
            inode.write_failures.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// G2. False also while this cannot be decided.
    fn is_removed_by_others(&self, inode: &Inode) -> bool {
        self.removals.quiet().is_some() && !inode.state.lock().nameless
    }

    /// Ends one of our removals: its file is marked and has its node.
    pub(crate) fn end_removal(&self, removal: Change) {
        self.removals.end(removal);
        self.engine().waits.wake(self.root_id());
    }

    /// Waits until none of our removals is in progress.
    ///
    /// # Blocking
    /// Waits for the backend, if one is in progress.
    pub(crate) fn wait_for_removals(&self) {
        let engine = self.engine();
        let quiet = || self.removals.quiet();
        let _ = engine.waits.wait(self.root_id(), None, quiet);
    }

    /// Copies the content of each file that another program removed to a rescue file, durably.
    ///
    /// # Errors
    /// The backend's. The files left are tried again by the next call.
    ///
    /// # Blocking
    /// Waits for the backend, if there is such a file.
    pub(crate) fn rescue_removed(&self) -> Result<(), BackendError> {
        let mut removed = std::mem::take(&mut *self.removed.lock());
        let mut result = Ok(());
        removed.retain(|file| {
            if file.inode.state.lock().nameless {
                return false;
            }
            if !self.is_removed_by_others(&file.inode) {
                return true; // G2
            }
            match self.copy_removed(file) {
                Ok(rescued) => {
                    self.rescued.lock().push(rescued);
                    false
                }
                Err(error) => {
                    if result.is_ok() {
                        result = Err(error);
                    }
                    true
                }
            }
        });
        self.removed.lock().extend(removed);
        result
    }

    fn copy_removed(&self, RemovedFile { inode, node }: &RemovedFile) -> Result<Rescued, BackendError> {
        let (size_bytes, mtime) = (inode.size_bytes(), inode.mtime());
        let attr = inode.attr();
        let copy = RescueFile::make(self, inode.id().ino, mtime)?;
        let arena = &self.engine().arena;
        let end = PageIndex::end_of(size_bytes);
        let mut frames = Vec::new();
        // The volume has just been flushed, so few frames are needed, and they are freed at once.
        if arena.alloc_many(Pool::Reserve, self.pages_of_unit().min(end.0 as usize), &mut frames) == 0 && end.0 > 0 {
            return Err(BackendError::new(ErrorKind::NoSpace, "no page is free to copy a removed file with"));
        }
        let mut first = PageIndex(0);
        let copied = loop {
            if first >= end {
                break Ok(());
            }
            let count = frames.len().min((end.0 - first.0) as usize);
            let outcome = self
                .read_pages(node, first, &frames[..count])
                .and_then(|()| copy.write_pages(first, &frames[..count], size_bytes));
            if outcome.is_err() {
                break outcome;
            }
            first = first.plus(count as u64);
        };
        frames.iter().for_each(|frame| arena.free(*frame));
        copied?;
        let name = copy.finish(size_bytes, attr.uid, attr.gid)?;
        tracing::warn!(target: "slackwater::writeback", volume = self.name(), id = %inode.id(), size_bytes, file = ?name,
            "another program removed a file that had dirty data here; its content was copied to a rescue file");
        Ok(Rescued { id: inode.id(), from: RescuedFrom::Removed, name, bytes: size_bytes })
    }

    /// Reads consecutive pages into `frames`, zero-filled beyond the end of the backend's file.
    fn read_pages(&self, node: &Node, first: PageIndex, frames: &[FrameId]) -> Result<(), BackendError> {
        let arena = &self.engine().arena;
        let mut scatter = Scatter::new(Arc::clone(arena), frames.len());
        assert!(frames.iter().all(|frame| scatter.push(*frame)), "they were just allocated");
        let len_bytes = frames.len() * PAGE_BYTES as usize;
        scatter.slices_mut(len_bytes).for_each(|slice| slice.fill(0));
        let node = node.clone();
        let unit = |done| Call::Read(ReadUnit::detached(node, first.offset_bytes(), scatter, len_bytes, done));
        self.call(None, unit)?;
        Ok(())
    }
}

//! Files that somebody else removes or replaces in the backend while they have data here.
//!
//! Write-back goes to the open node, and succeeds: but no name leads to what it wrote. The answer to the flush of times that
//! follows tells so. The event is reported as a failed write-back is (P2), and what the file holds is copied to a file of its own
//! by the next sync of the volume, or its unmount.
//!
//! # Invariants
//! G1. A file is noted with its node open, before its flush of times counts as answered: what it holds can be read until it
//!     was copied.
//! G2. It is judged while no removal and no rename of ours runs: those that have ended have marked the files that they
//!     took the last name of (`InodeState::nameless`).

use slackwater_arena::{FrameId, Pool, Scatter};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::{Call, Node, NodeKind, ReadUnit};
use crate::error::{BackendError, ErrorKind};
use crate::inode::{Change, Inode};
use crate::super_block::{RescueFile, Rescued, RescuedFrom, SuperBlock};
use crate::units::{PAGE_BYTES, PageIndex};

/// A file that has no name, and whose data nobody else has.
pub(crate) struct RemovedFile {
    inode: Arc<Inode>,
    node: Node,
}

impl SuperBlock {
    /// The backend has told that `inode`, which has just been written, has no name (G1).
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

    /// G2. False also while that cannot be said.
    fn is_removed_by_others(&self, inode: &Inode) -> bool {
        self.removals.quiet().is_some() && !inode.state.lock().nameless
    }

    /// A removal of ours is over: its file is marked, and has its node.
    pub(crate) fn end_removal(&self, removal: Change) {
        self.removals.end(removal);
        self.engine().waits.wake(self.root_id());
    }

    /// Waits until no removal of ours runs.
    ///
    /// # Blocking
    /// For the backend, if one runs.
    pub(crate) fn wait_for_removals(&self) {
        let engine = self.engine();
        let quiet = || self.removals.quiet();
        let _ = engine.waits.wait(self.root_id(), &*engine.clock, None, quiet);
    }

    /// Copies what files hold that somebody else removed, each to a file of its own, durably.
    ///
    /// # Errors
    /// The backend's. What is left is tried again by the next call.
    ///
    /// # Blocking
    /// For the backend, where there is such a file.
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
        // The volume has just been flushed: few are needed, and they are given back at once.
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
            "somebody else removed a file that had data here: what it held is in a file of its own");
        Ok(Rescued { id: inode.id(), from: RescuedFrom::Removed, name, bytes: size_bytes })
    }

    /// Reads consecutive pages into frames of our own, zeroes behind what the backend has.
    fn read_pages(&self, node: &Node, first: PageIndex, frames: &[FrameId]) -> Result<(), BackendError> {
        let arena = &self.engine().arena;
        let mut scatter = Scatter::new(Arc::clone(arena), frames.len());
        assert!(frames.iter().all(|frame| scatter.push(*frame)), "they were just taken");
        let len_bytes = frames.len() * PAGE_BYTES as usize;
        scatter.slices_mut(len_bytes).for_each(|slice| slice.fill(0));
        let node = node.clone();
        let unit = |done| Call::Read(ReadUnit::detached(node, first.offset_bytes(), scatter, len_bytes, done));
        self.call(None, unit)?;
        Ok(())
    }
}

//! Files that another program removes or replaces in the backend while they have dirty data here.
//!
//! Write-back through the open node succeeds, but no name leads to the data. The answer to the metadata flush that
//! follows shows this. It is reported like a failed write-back (P2). The next sync of the volume, or its unmount,
//! copies the file's content to a rescue file. Until then the file counts as not written back: each fsync of it fails, and
//! its bytes are among those that an unmount has to write and a discard would lose.
//!
//! # Invariants
//! G1. A file is recorded with its node open, before its metadata flush counts as answered. So its content can be read
//!     until it is copied.
//! G2. It is judged only while none of our removals and renames is in progress. Those that have ended have marked the
//!     files whose last name they took (`InodeState::nameless`).
//! G3. The frames of a copy belong to the calls that use them, until the last one is answered. A copy that did not end
//!     before its deadline may leave such a call. Then no other copy is begun, so that a backend that hangs takes the
//!     reserve of frames once.

use std::path::PathBuf;

use slackwater_arena::{Arena, FrameId, Pool, Scatter};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::{Call, Node, NodeKind, ReadUnit};
use crate::error::{BackendError, ErrorKind};
use crate::inode::{Change, Inode};
use crate::super_block::rescued::keeping;
use crate::super_block::{RescueFile, Rescued, RescuedFrom, SuperBlock};
use crate::units::{NodeId, PAGE_BYTES, PageIndex, Tick};

/// A file without a name whose data exists nowhere else.
#[derive(Clone)]
pub(crate) struct RemovedFile {
    inode: Arc<Inode>,
    node: Node,
    /// A thread copies it.
    is_taken: bool,
}

/// The frames of a copy (G3).
pub(crate) struct CopyFrames {
    arena: Arc<Arena>,
    frames: Vec<FrameId>,
}

impl Drop for CopyFrames {
    fn drop(&mut self) {
        self.frames.iter().for_each(|frame| self.arena.free(*frame));
    }
}

impl SuperBlock {
    /// Records that the backend reported `inode`, which was just written, to have no name (G1).
    pub(crate) fn note_nameless(&self, inode: &Arc<Inode>) {
        let node = {
            let mut state = inode.state.lock();
            state.attr.nlink = 0;
            state.node.clone().filter(|_| !state.nameless && !state.doomed)
        };
        let Some(node) = node.filter(|_| inode.kind() == NodeKind::File) else { return };
        let mut removed = self.removed.lock();
        if !removed.iter().any(|file| Arc::ptr_eq(&file.inode, inode)) {
            removed.push(RemovedFile { inode: Arc::clone(inode), node, is_taken: false });
        }
        drop(removed);
        if self.is_removed_by_others(inode) {
            inode.latch_error(ErrorKind::Stale);
            self.note_failure(ErrorKind::Stale);
            inode.write_failures.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The files that other programs removed and that no rescue file has yet, with their bytes that are not unclean.
    pub(crate) fn homeless(&self) -> Vec<(NodeId, u64)> {
        let inodes: Vec<_> = self.removed.lock().iter().map(|file| Arc::clone(&file.inode)).collect();
        let theirs = inodes.iter().filter(|inode| self.is_removed_by_others(inode));
        theirs.map(|inode| (inode.id(), inode.size_bytes().saturating_sub(inode.unclean_bytes()))).collect()
    }

    /// The last paths of at most `most` files that other programs removed and that no rescue file has yet, as far as they are
    /// known.
    pub fn removed_paths(&self, most: usize) -> Vec<(NodeId, PathBuf)> {
        let removed = self.removed.lock().clone();
        let theirs = removed.iter().filter(|file| self.is_removed_by_others(&file.inode));
        let path = |file: &RemovedFile| Some((file.node.id(), self.bdi().backend.last_path(&file.node)?));
        theirs.filter_map(path).take(most).collect()
    }

    /// Whether another program removed the file, and no rescue file has its content yet.
    pub(crate) fn is_homeless(&self, inode: &Arc<Inode>) -> bool {
        let is_listed = || self.removed.lock().iter().any(|file| Arc::ptr_eq(&file.inode, inode));
        inode.attr().nlink == 0 && is_listed() && self.is_removed_by_others(inode)
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
    /// The backend's; `TimedOut` after `deadline`, or if an earlier copy still waits for the backend. The files left are
    /// tried again by the next call.
    ///
    /// # Blocking
    /// Waits for the backend until `deadline` at most, if there is such a file.
    pub(crate) fn rescue_removed(&self, deadline: Option<Tick>) -> Result<(), BackendError> {
        let taken: Vec<_> = {
            let mut removed = self.removed.lock();
            let free = removed.iter_mut().filter(|file| !file.is_taken);
            free.map(|file| {
                file.is_taken = true;
                file.clone()
            })
            .collect()
        };
        let mut result = Ok(());
        for file in &taken {
            let is_ours = file.inode.state.lock().nameless;
            let copied = match !is_ours && self.is_removed_by_others(&file.inode) {
                true => self.copy_removed(file, deadline).map(Some),
                false => Ok(None), // G2
            };
            let is_done = is_ours || matches!(copied, Ok(Some(_)));
            self.rescued.lock().extend(copied.unwrap_or_else(|error| {
                result = std::mem::replace(&mut result, Ok(())).and(Err(error));
                None
            }));
            // `taken` keeps the node open: no lock is held when it is closed.
            self.removed.lock().retain_mut(|other| {
                let is_it = Arc::ptr_eq(&other.inode, &file.inode);
                other.is_taken &= !is_it;
                !(is_it && is_done)
            });
        }
        result
    }

    fn copy_removed(
        &self,
        RemovedFile { inode, node, .. }: &RemovedFile,
        deadline: Option<Tick>,
    ) -> Result<Rescued, BackendError> {
        if self.late_copy.lock().strong_count() > 0 {
            return Err(ErrorKind::TimedOut.into()); // G3
        }
        let (size_bytes, mtime) = (inode.size_bytes(), inode.mtime());
        let attr = inode.attr();
        let arena = &self.engine().arena;
        let end = PageIndex::end_of(size_bytes);
        let mut frames = Vec::new();
        // The volume has just been flushed, so few frames are needed, and they are freed at once.
        if arena.alloc_many(Pool::Reserve, self.pages_of_unit().min(end.0 as usize), &mut frames) == 0 && end.0 > 0 {
            return Err(BackendError::new(ErrorKind::NoSpace, "no page is free to copy a removed file with"));
        }
        let frames = Arc::new(CopyFrames { arena: Arc::clone(arena), frames });
        let copy = || {
            let copy = RescueFile::make(self, inode.id().ino, mtime, deadline)?;
            let mut first = PageIndex(0);
            while first < end {
                let count = frames.frames.len().min((end.0 - first.0) as usize);
                self.read_pages(node, first, &frames, count, deadline)?;
                copy.write_pages(first, &frames.frames[..count], size_bytes, &frames)?;
                first = first.plus(count as u64);
            }
            copy.finish(size_bytes, attr.uid, attr.gid)
        };
        let name = copy().inspect_err(|error| {
            if error.kind() == ErrorKind::TimedOut {
                *self.late_copy.lock() = Arc::downgrade(&frames);
            }
        })?;
        tracing::warn!(target: "slackwater::writeback", volume = self.name(), id = %inode.id(), size_bytes, file = ?name,
            "another program removed a file that had dirty data here; its content was copied to a rescue file");
        let path = self.bdi().backend.last_path(node);
        Ok(Rescued { id: inode.id(), from: RescuedFrom::Removed, path, name, bytes: size_bytes })
    }

    /// Reads `count` consecutive pages into `frames`, zero-filled beyond the end of the backend's file.
    fn read_pages(
        &self,
        node: &Node,
        first: PageIndex,
        frames: &Arc<CopyFrames>,
        count: usize,
        deadline: Option<Tick>,
    ) -> Result<(), BackendError> {
        let mut scatter = Scatter::new(Arc::clone(&self.engine().arena), count);
        assert!(frames.frames[..count].iter().all(|frame| scatter.push(*frame)), "they were just allocated");
        let len_bytes = count * PAGE_BYTES as usize;
        scatter.slices_mut(len_bytes).for_each(|slice| slice.fill(0));
        let (node, owner) = (node.clone(), Arc::clone(frames));
        let unit = |done| {
            let done = keeping(owner, done);
            Call::Read(ReadUnit::detached(node, first.offset_bytes(), scatter, len_bytes, done))
        };
        self.call(deadline, unit)?;
        Ok(())
    }
}

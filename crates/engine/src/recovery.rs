//! Taking over what a dead engine left in the arena.
//!
//! The frames stay where they are: an inode is opened again by its handle, its dirty frames become its dirty
//! pages, and write-back goes on as if nothing had happened. Writing a page again that had reached the
//! backend already does no harm.
//!
//! # Errors
//! An inode whose file is gone for good (`Stale`) had no name left when the process died, or lost it since: its data
//! goes, with a warning, and [`VolumeStatus`](crate::VolumeStatus) counts it.
//! One that cannot be opened for another reason fails the mount, and everything of the volume stays in the
//! arena.

use std::cmp::Ordering::{Equal, Greater, Less};

use slackwater_arena::{SurvivingInode, SurvivingVolume};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::{AttrChange, Call, FileHandle, Found};
use crate::engine::Shared;
use crate::error::{BackendError, ErrorKind, MountError};
use crate::filemap;
use crate::inode::{DOOMED, meta};
use crate::page_cache::Mark;
use crate::super_block::SuperBlock;
use crate::units::{NodeId, PAGE_BYTES, PageIndex, Timestamp};
use crate::writeback::Pages;

impl Shared {
    /// What survived of the volume called `name`.
    pub(crate) fn take_survivors(&self, name: &str) -> Option<SurvivingVolume> {
        let mut survivors = self.survivors.lock();
        let named = |volume: &SurvivingVolume| volume.record.id.as_slice() == name.as_bytes();
        let mut mine: Vec<_> = survivors.volumes.extract_if(.., |volume| named(volume)).collect();
        drop(survivors);
        // What was discarded by an unmount and still in flight when the process died.
        for volume in &mut mine {
            let doomed = volume.inodes.extract_if(.., |inode| inode.record.flags & DOOMED != 0);
            doomed.for_each(|inode| self.drop_survivor(&inode));
        }
        let newest = mine.iter().rposition(|volume| !volume.inodes.is_empty()).unwrap_or(mine.len().checked_sub(1)?);
        let newest = mine.swap_remove(newest);
        mine.iter().filter(|volume| volume.inodes.is_empty()).for_each(|volume| self.arena.free_volume(volume.slot));
        Some(newest)
    }

    /// Gives back what an inode has that nobody will ever read.
    fn drop_survivor(&self, survivor: &SurvivingInode) {
        survivor.pages.iter().for_each(|(_, frame)| self.arena.free(*frame));
        self.arena.free_inode(survivor.slot);
    }

    /// Puts back what could not be taken over.
    pub(crate) fn return_survivors(&self, survivors: SurvivingVolume) {
        self.survivors.lock().volumes.push(survivors);
    }
}

impl SuperBlock {
    /// Adopts every surviving inode, or none. Returns the survivors with the error.
    pub(crate) fn adopt(self: &Arc<Self>, survivors: &SurvivingVolume) -> Result<(), MountError> {
        let mut opened = Vec::with_capacity(survivors.inodes.len());
        for survivor in &survivors.inodes {
            match self.reopen(survivor) {
                Ok(reopened) => opened.push((survivor, Some(reopened))),
                Err(error) if error.kind() == ErrorKind::Stale => opened.push((survivor, None)),
                Err(source) => {
                    let dirty_bytes = survivor.pages.len() as u64 * PAGE_BYTES;
                    return Err(MountError::Survivor { id: id_of(survivor), dirty_bytes, source });
                }
            }
        }
        for (survivor, reopened) in opened {
            match reopened {
                Some(reopened) => self.adopt_inode(survivor, reopened),
                None => self.drop_stale(survivor),
            }
        }
        Ok(())
    }

    /// Drops what nobody can be given any more.
    fn drop_stale(&self, survivor: &SurvivingInode) {
        // A process that died within a write may have left pages that were not part of the file yet.
        let end = PageIndex::end_of(survivor.record.size_bytes);
        let pages = survivor.pages.iter().filter(|(index, _)| PageIndex(*index) < end).count() as u64;
        if pages > 0 {
            let bytes = pages * PAGE_BYTES;
            tracing::warn!(target: "slackwater::recovery", volume = self.name(), id = %id_of(survivor), bytes,
                "the file of a surviving inode is gone from the backend: its data is dropped");
            self.dropped_files.fetch_add(1, Ordering::Relaxed);
            self.dropped_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        self.engine().drop_survivor(survivor);
    }

    /// Opens a survivor and brings its file to the size it had for the programs that used it.
    fn reopen(&self, survivor: &SurvivingInode) -> Result<Reopened, BackendError> {
        let handle = FileHandle::new(survivor.record.handle.as_slice()).ok_or(ErrorKind::Stale)?;
        let id = Some(id_of(survivor));
        let mut found: Found = self.call(None, |done| Call::Reopen { handle, id, done })?;
        let had_bytes = found.attr.size_bytes;
        if is_to_be_resized(survivor, had_bytes) {
            let change = AttrChange { size_bytes: Some(survivor.record.size_bytes), ..AttrChange::default() };
            let node = found.node.clone();
            found.attr = self.call(None, |done| Call::Setattr { node, change, done })?;
        }
        let allocated_to = had_bytes.min(found.attr.size_bytes);
        Ok(Reopened { found, allocated_to })
    }

    fn adopt_inode(self: &Arc<Self>, survivor: &SurvivingInode, reopened: Reopened) {
        let backing_bytes = reopened.found.attr.size_bytes;
        let inode = self.iget_at_mount(reopened.found);
        inode.adopt_slot(survivor.slot);
        self.bdi().pin_adopted_node();
        inode.set_size(survivor.record.size_bytes);
        inode.backing_bytes.store(backing_bytes, Ordering::Release);
        inode.allocated_to.store(reopened.allocated_to, Ordering::Release);
        inode.set_mtime(Timestamp(survivor.record.mtime_ns));
        let mut pages = 0;
        let mut delayed = 0;
        for (index, frame) in survivor.pages.iter().map(|(index, frame)| (PageIndex(*index), *frame)) {
            if index >= PageIndex::end_of(survivor.record.size_bytes) {
                // Copied beyond the end by a write that never returned.
                self.engine().arena.free(frame);
                continue;
            }
            inode.mapping.with_page_or_new(index, |leaf, slot| {
                leaf.insert(slot, frame);
                leaf.set(Mark::Uptodate, slot);
                leaf.set(Mark::Dirty, slot);
                if inode.needs_space(index) {
                    leaf.set(Mark::Delayed, slot);
                    delayed += 1;
                }
            });
            pages += 1;
        }
        filemap::zero_tail(&inode, survivor.record.size_bytes);
        inode.mapping.add(Mark::Dirty, pages);
        inode.mapping.add_unclean(pages);
        self.space.reserve(delayed);
        inode.account(Pages { reclaimable: pages, ..Pages::default() });
        self.bdi().pin_adopted(pages as u64);
        inode.arc().mark_dirty(meta::DIRTY_SYNC | meta::DIRTY_DATASYNC);
    }
}

/// A survivor whose file is open, and has its size or will have it once its pages are written.
struct Reopened {
    found: Found,
    /// Pages behind have no space on the backend: an extension gives them none.
    allocated_to: u64,
}

/// Whether a file of `had_bytes` does not come to its size by the writing of the pages that are left.
fn is_to_be_resized(survivor: &SurvivingInode, had_bytes: u64) -> bool {
    let size_bytes = survivor.record.size_bytes;
    match had_bytes.cmp(&size_bytes) {
        // The process died inside a cut, whose intent was recorded first.
        Greater => true,
        Equal => false,
        // It was extended by writes, and the last page is left: that will extend it, once it has its space. Or one of
        // those writes was cut off again, and the file ends in a hole.
        Less => {
            let end = PageIndex::end_of(size_bytes);
            !survivor.pages.iter().any(|(index, _)| PageIndex(*index).plus(1) == end)
        }
    }
}

fn id_of(survivor: &SurvivingInode) -> NodeId {
    let record = &survivor.record;
    NodeId { dev: record.dev, ino: record.ino, generation: record.generation }
}

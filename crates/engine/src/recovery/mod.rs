//! Taking over what a dead engine left in the arena.
//!
//! The frames stay where they are: an inode is opened again by its handle, its dirty frames become its dirty
//! pages, and write-back goes on as if nothing had happened. Writing a page again that had reached the
//! backend already does no harm.
//!
//! # A backend that was changed meanwhile
//! The record says what the backend's file was (`inode::record`). If it is another by now, or there is none any more though
//! this volume did not remove it, both are kept: the backend stays as it is, and what was dirty goes to a file of its own
//! in the root ([`rescue`]). A file that this volume had removed is gone with its data.
//!
//! # Errors
//! An inode that cannot be opened, or whose data cannot be saved elsewhere, fails the mount, and everything of the volume stays
//! in the arena.

mod rescue;

use std::cmp::Ordering::{Equal, Greater, Less};

use slackwater_arena::{InodeRecord, SurvivingInode, SurvivingVolume};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::{Attr, AttrChange, Call, FileHandle, Found};
use crate::engine::Shared;
use crate::error::{BackendError, ErrorKind, MountError};
use crate::filemap;
use crate::inode::{DOOMED, meta};
use crate::page_cache::Mark;
use crate::super_block::{RescuedFrom, SuperBlock};
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
        let failed = |survivor: &SurvivingInode, source| {
            let dirty_bytes = survivor.pages.len() as u64 * PAGE_BYTES;
            MountError::Survivor { id: id_of(survivor), dirty_bytes, source }
        };
        let mut opened = Vec::with_capacity(survivors.inodes.len());
        for survivor in &survivors.inodes {
            let outcome = self.reopen(survivor).map_err(|error| failed(survivor, error))?;
            opened.push((survivor, outcome));
        }
        let mut rescued = Vec::new();
        for (survivor, from) in
            opened.iter().filter_map(|(survivor, outcome)| Some((survivor, outcome.as_ref().err()?)))
        {
            rescued.extend(self.rescue(survivor, *from).map_err(|error| failed(survivor, error))?);
        }
        *self.rescued.lock() = rescued;
        for (survivor, outcome) in opened {
            match outcome {
                Ok(reopened) => self.adopt_inode(survivor, reopened),
                Err(_) => self.engine().drop_survivor(survivor),
            }
        }
        Ok(())
    }

    /// Opens a survivor and brings its file to the size it had for the programs that used it. The inner error: the file is
    /// not the one any more that the pages belong to.
    fn reopen(&self, survivor: &SurvivingInode) -> Result<Result<Reopened, RescuedFrom>, BackendError> {
        let handle = FileHandle::new(survivor.record.handle.as_slice()).ok_or(ErrorKind::Stale)?;
        let id = Some(id_of(survivor));
        let mut found: Found = match self.call(None, |done| Call::Reopen { handle, id, done }) {
            Err(error) if error.kind() == ErrorKind::Stale => return Ok(Err(RescuedFrom::Removed)),
            found => found?,
        };
        if self.is_foreign(&survivor.record, &found.attr) {
            return Ok(Err(RescuedFrom::Changed));
        }
        let had_bytes = found.attr.size_bytes;
        if is_to_be_resized(survivor, had_bytes) {
            let now = self.engine().clock.wall();
            self.engine().arena.set_source_changing(survivor.slot, now.0.max(1));
            let change = AttrChange { size_bytes: Some(survivor.record.size_bytes), ..AttrChange::default() };
            let node = found.node.clone();
            found.attr = self.call(None, |done| Call::Setattr { node, change, done })?;
        }
        let allocated_to = had_bytes.min(found.attr.size_bytes);
        Ok(Ok(Reopened { found, allocated_to }))
    }

    /// Whether somebody else has changed a file since the process that left `record` knew it.
    ///
    /// Size and mtime tell: of a file that has both as before the bytes are as before. While a call of ours was under way, or
    /// its outcome was not told yet, the mtime may be any of that time. A server has a clock of its own, and may have
    /// crashed and gone back to an older time: of what it has only a later time or a size that no call of ours can have
    /// left tells.
    fn is_foreign(&self, record: &InodeRecord, attr: &Attr) -> bool {
        let source = &record.source;
        let (size_bytes, mtime_ns) = (attr.size_bytes, attr.mtime.0);
        let is_settled = source.changing_since_ns == 0;
        if mtime_ns == source.mtime_ns && (size_bytes == source.size_bytes || !is_settled) {
            return false;
        }
        let is_of_a_call = (source.changing_since_ns.saturating_sub(CLOCKS_DIFFER_NS)
            ..=source.changing_until_ns.saturating_add(CALL_TAKES_NS))
            .contains(&mtime_ns);
        if !is_settled && (mtime_ns == record.mtime_ns || is_of_a_call) {
            return false;
        }
        let sizes = source.size_bytes.min(record.size_bytes)..=source.size_bytes.max(record.size_bytes);
        let may_be_the_server = !is_settled || mtime_ns < source.mtime_ns;
        self.bdi().limits().device.is_some() || !may_be_the_server || !sizes.contains(&size_bytes)
    }

    fn adopt_inode(self: &Arc<Self>, survivor: &SurvivingInode, reopened: Reopened) {
        let backing_bytes = reopened.found.attr.size_bytes;
        let node = reopened.found.node.clone();
        let inode = self.iget_at_mount(reopened.found);
        inode.adopt_slot(survivor.slot, &node);
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

/// How much older than the beginning of a call its time on the file may be: the kernel's clock of files goes by ticks.
const CLOCKS_DIFFER_NS: i64 = 1_000_000_000;
/// How long after its beginning the last call of a killed process may have changed the file.
const CALL_TAKES_NS: i64 = 5_000_000_000;

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

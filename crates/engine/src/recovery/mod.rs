//! Recovery: taking over the data that a dead engine left in the arena.
//!
//! The frames stay where they are. An inode is reopened by its handle, its dirty frames become its dirty pages, and
//! write-back continues. Writing a page that had reached the backend a second time does no harm.
//!
//! # Age
//! The data is as old as it was in the dead engine, so that a process that dies soon delays it no further. Until the first
//! commit is due by age, each unit is committed soon, because the dead engine may have written it too and not lived to
//! commit it.
//!
//! # A backend that was changed meanwhile
//! The record describes the backend's file (`inode::record`). If that file was changed, or was removed by another
//! program, both versions are kept: the backend's stays as it is, and the dirty data is saved in a file of its own in
//! the root ([`rescue`]). The data of a file that this volume had removed is dropped.
//!
//! # Errors
//! An inode that cannot be opened, or whose data cannot be saved, fails the mount. All data of the volume stays in the
//! arena then.

mod rescue;

use std::cmp::Ordering::{Equal, Greater, Less};

use slackwater_arena::{InodeRecord, SurvivingInode, SurvivingVolume};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::{Attr, AttrChange, Call, FileHandle, Found};
use crate::cgroup::Memcg;
use crate::engine::Shared;
use crate::error::{BackendError, ErrorKind, MountError};
use crate::filemap;
use crate::inode::{DOOMED, dirtied_at, meta};
use crate::page_cache::Mark;
use crate::super_block::{RescuedFrom, SuperBlock};
use crate::units::{NodeId, PAGE_BYTES, PageIndex, Timestamp};
use crate::writeback::Pages;

impl Shared {
    /// Takes the survivors of the volume called `name`.
    pub(crate) fn take_survivors(&self, name: &str) -> Option<SurvivingVolume> {
        let mut survivors = self.survivors.lock();
        let named = |volume: &SurvivingVolume| volume.record.id.as_slice() == name.as_bytes();
        let mut mine: Vec<_> = survivors.volumes.extract_if(.., |volume| named(volume)).collect();
        drop(survivors);
        // An unmount had discarded them, and they were still in flight when the process died.
        for volume in &mut mine {
            let doomed = volume.inodes.extract_if(.., |inode| inode.record.flags & DOOMED != 0);
            doomed.for_each(|inode| self.drop_survivor(&inode));
        }
        let newest = mine.iter().rposition(|volume| !volume.inodes.is_empty()).unwrap_or(mine.len().checked_sub(1)?);
        let newest = mine.swap_remove(newest);
        mine.iter().filter(|volume| volume.inodes.is_empty()).for_each(|volume| self.arena.free_volume(volume.slot));
        Some(newest)
    }

    /// Frees the frames and the record of an inode that no file refers to any more.
    fn drop_survivor(&self, survivor: &SurvivingInode) {
        survivor.pages.iter().for_each(|(_, frame)| self.arena.free(*frame));
        self.arena.free_inode(survivor.slot);
    }

    /// Puts back survivors that could not be taken over.
    pub(crate) fn return_survivors(&self, survivors: SurvivingVolume) {
        self.survivors.lock().volumes.push(survivors);
    }
}

impl SuperBlock {
    /// Adopts every surviving inode, or none.
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
        let mut tenants = self.engine().tenant_finder.search();
        for (survivor, outcome) in opened {
            match outcome {
                Ok(reopened) => self.adopt_inode(survivor, reopened, tenants.tenant(survivor.record.tenant).as_ref()),
                Err(_) => self.engine().drop_survivor(survivor),
            }
        }
        self.inherit_failing();
        Ok(())
    }

    /// Reopens a survivor and gives its file the size that programs saw. The inner error says that the pages do not
    /// belong to the backend's present file.
    fn reopen(&self, survivor: &SurvivingInode) -> Result<Result<Reopened, RescuedFrom>, BackendError> {
        let handle = FileHandle::new(survivor.record.handle.as_slice()).ok_or(ErrorKind::Stale)?;
        let id = Some(id_of(survivor));
        let nameless = self.engine().survivors.lock().removed_are_kept;
        let mut found: Found = match self.call(None, |done| Call::Reopen { handle, id, nameless, done }) {
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

    /// Whether another program has changed a file since the process that wrote `record` last knew it.
    ///
    /// Size and mtime show it: if both are unchanged, so are the bytes. While a call of this volume was in progress, or
    /// its result was unknown, the mtime may be any time in that period. A call that was not answered may have been
    /// carried out at any later time, if the backend hung. A server has its own clock, and after a crash may be back at an
    /// older time. Of its files, only a later time, or a size that no call of this volume can have left, shows a change.
    fn is_foreign(&self, record: &InodeRecord, attr: &Attr) -> bool {
        let source = &record.source;
        let (size_bytes, mtime_ns) = (attr.size_bytes, attr.mtime.0);
        let is_settled = source.changing_since_ns == 0;
        if mtime_ns == source.mtime_ns && (size_bytes == source.size_bytes || !is_settled) {
            return false;
        }
        let sizes = source.size_bytes.min(record.size_bytes)..=source.size_bytes.max(record.size_bytes);
        let until_ns = match source.all_answered() {
            true => source.changing_until_ns,
            false if sizes.contains(&size_bytes) => self.engine().clock.wall().0,
            // A call of a backend that hung leaves one of these sizes.
            false => source.changing_until_ns.saturating_add(CALL_TAKES_NS),
        };
        let is_of_a_call = (source.changing_since_ns.saturating_sub(CLOCKS_DIFFER_NS)
            ..=until_ns.saturating_add(CLOCKS_DIFFER_NS))
            .contains(&mtime_ns);
        // A flush sets the time of the last write before it began: any time since the last known one. A write soon after
        // that may have an earlier time, because the file system below can have a finer clock than programs see here.
        let is_of_a_flush = mtime_ns == record.mtime_ns
            || (source.mtime_ns.saturating_sub(CLOCKS_DIFFER_NS)..=record.mtime_ns).contains(&mtime_ns);
        if !is_settled && (is_of_a_flush || is_of_a_call) {
            return false;
        }
        let may_be_the_server = !is_settled || mtime_ns < source.mtime_ns;
        self.bdi().limits().device.is_some() || !may_be_the_server || !sizes.contains(&size_bytes)
    }

    /// The pages are charged to `tenant` or the root, because only the inode has a record of its tenant.
    fn adopt_inode(self: &Arc<Self>, survivor: &SurvivingInode, reopened: Reopened, tenant: Option<&Arc<Memcg>>) {
        let (backing_bytes, nlink) = (reopened.found.attr.size_bytes, reopened.found.attr.nlink);
        let node = reopened.found.node.clone();
        let inode = self.iget_at_mount(reopened.found);
        if let Some(tenant) = tenant {
            inode.arc().attach_wb(tenant); // before it has a record
        }
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
                // Copied beyond the end by a write that did not return.
                self.engine().arena.free(frame);
                continue;
            }
            inode.mapping.with_page_or_new(index, |leaf, slot| {
                leaf.insert(slot, frame);
                leaf.set(Mark::Uptodate, slot);
                leaf.set(Mark::Dirty, slot);
                if let Some(tenant) = tenant {
                    self.engine().owners.charge(frame, tenant);
                }
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
        let now = self.engine().clock.now();
        self.commits().note_adopted(now);
        let since = dirtied_at(survivor.record.dirtied, now);
        inode.arc().mark_dirty_since(meta::DIRTY_SYNC | meta::DIRTY_DATASYNC, Some(since));
        if now.since(since) >= self.bdi().ages.expire(&self.engine().tunables) {
            inode.wb().start_periodic();
        }
        if nlink == 0 {
            inode.record_names(0);
            self.kept.lock().push(inode); // without a reference its data would be dropped
        }
    }
}

/// How much the time of a call on the file may be before its start or after its answer: the kernel's file clock advances in
/// ticks, and a server has a clock of its own.
const CLOCKS_DIFFER_NS: i64 = 1_000_000_000;
/// How long after its start a call that was not answered may have left a size beyond the last reported one and the one that
/// programs saw last.
const CALL_TAKES_NS: i64 = 5_000_000_000;

/// A survivor whose file is open, and has its size or will have it once its pages are written back.
struct Reopened {
    found: Found,
    /// Pages after this have no space in the backend: extending the file allocates none.
    allocated_to: u64,
}

/// Whether a file of `had_bytes` will not reach its size by writing the remaining pages.
fn is_to_be_resized(survivor: &SurvivingInode, had_bytes: u64) -> bool {
    let size_bytes = survivor.record.size_bytes;
    match had_bytes.cmp(&size_bytes) {
        // The process died during a truncation, which had been recorded first.
        Greater => true,
        Equal => false,
        // Writes extended the file, and its last page remains: writing it extends the file, once it has space. Or one
        // of those writes was truncated away again, and the file ends in a hole.
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

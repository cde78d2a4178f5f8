//! Submits one inode's dirty pages to the backend. Its metadata follows them (`write_inode`).
//!
//! # Invariants
//! W1. A page is in at most one unit: it is taken under its leaf's lock and only if it has no `WRITEBACK` mark. A
//!     rewritten page therefore waits for its old unit, and the backend never sees the two out of order.
//! W2. A unit ends before `truncate_from`, as read under the lock of its last page's leaf. A truncation sets
//!     `truncate_from` first. It then locks each leaf and looks for `WRITEBACK` marks there, not in the index above,
//!     which is updated late. So either the truncation sees the unit or the unit sees the truncation. A unit also ends
//!     at the file's size, as read with the last page's frame held. A writer that extends the file inside that page
//!     does so with the frame locked (R4 of `filemap::write`), so the unit has every byte that the frame has.
//! W3. Every unit or metadata call in flight pins the super block. The pin is taken before submission and dropped after
//!     the completion has released its inode.
//!
//! # Kernel counterpart
//! `write_cache_pages`, `folio_end_writeback`, `__writeback_single_inode`.

use std::ops::Range;

use slackwater_arena::{FrameId, Gather};
use slackwater_sync::gate;
use slackwater_sync::shim::atomic::Ordering;
use slackwater_sync::shim::{Arc, thread};

use crate::backend::{Call, WriteUnit};
use crate::cgroup::Uncharges;
use crate::error::{BackendError, ErrorKind};
use crate::inode::Inode;
use crate::page_cache::{LeafState, Mark, Scan, range_bits, slots};
use crate::units::{PAGE_BYTES, PageIndex};
use crate::writeback::write_inode::finish;
use crate::writeback::{Attempt, BackingDevInfo, Pages, Round, UnitClass, commit};

/// Limits of one call.
#[derive(Copy, Clone)]
pub(crate) struct Limit<'a> {
    pub(crate) pages: u64,
    pub(crate) unit_bytes: u32,
    pub(crate) class: &'a UnitClass,
    /// Whether the device gate may refuse a unit.
    pub(crate) gated: bool,
    /// Whether the bytes should leave the cache of the device with the write.
    pub(crate) flushing: bool,
    pub(crate) awaits: Awaits,
}

impl Limit<'_> {
    /// The limit of a caller that does not leave the submission to a flusher: units as large as the backend takes.
    pub(crate) fn of_sync(bdi: &BackingDevInfo, awaits: Awaits) -> Self {
        let unit_bytes = bdi.limits().unit_bytes;
        Self { pages: u64::MAX, unit_bytes, class: &UnitClass::Sync, gated: false, flushing: false, awaits }
    }
}

/// The part of an inode that the caller has to wait for, however long it takes. Calls for it may run on its thread.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Awaits {
    Nothing,
    Pages,
    PagesAndMeta,
}

/// Why a call stopped.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Stop {
    /// Nothing in the range can be submitted now. Pages that are being copied to, or are under write-back, may remain.
    End,
    /// The page limit is reached.
    Pages,
    /// No slot is free; the wb is woken when one is.
    Slots,
    /// The inode has its full share of background units in flight.
    Share,
    /// The gate lets no unit through; the wb is woken when it does.
    Gate,
}

/// The result of one call.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Wrote {
    pub(crate) pages: u64,
    pub(crate) stop: Stop,
}

/// A unit being assembled.
struct Gathering {
    first: PageIndex,
    frames: Gather,
    size_bytes: u64,
}

impl Gathering {
    fn next(&self) -> PageIndex {
        self.first.plus(self.frames.frames().len() as u64)
    }

    /// Without what lies behind the end of the file.
    fn len_bytes(&self) -> u64 {
        self.next().offset_bytes().min(self.size_bytes) - self.first.offset_bytes()
    }
}

/// Submits pages of `range` that have `mark` (dirty, or tagged by a sync) in units of consecutive pages. Afterwards
/// `range` starts behind the last page visited, so that a caller that continues with it does not revisit pages that
/// could not be taken.
///
/// A caller of the `Sync` class has taken a slot for the first unit and gets `Stop::Pages` after it.
///
/// # Blocking
/// Never, except for a caller that waits: it may write the last unit itself, which saves two thread switches.
pub(crate) fn writepages(
    inode: &Arc<Inode>,
    mark: Mark,
    range: &mut Range<PageIndex>,
    limit: Limit<'_>,
    round: &mut Round,
) -> Wrote {
    let sb = inode.super_block();
    let bdi = sb.bdi();
    let mut pages = 0;
    while pages < limit.pages {
        let mut reserved_at = None;
        if let UnitClass::Background(wb) = limit.class {
            let now = sb.now();
            if inode.units.load(Ordering::Acquire) >= bdi.slots.per_inode() {
                return Wrote { pages, stop: Stop::Share };
            }
            if !bdi.gate.start_unit(wb, now, limit.unit_bytes.into(), limit.gated) {
                return Wrote { pages, stop: Stop::Gate };
            }
            if !bdi.slots.try_background(wb) {
                bdi.gate.shrink_unit(now, limit.unit_bytes.into());
                return Wrote { pages, stop: Stop::Slots };
            }
            reserved_at = Some(now);
        }
        let unit = gather(inode, mark, range.clone(), limit.unit_bytes, round);
        if let Some(now) = reserved_at {
            let needed = unit.as_ref().map_or(0, Gathering::len_bytes);
            bdi.gate.shrink_unit(now, u64::from(limit.unit_bytes) - needed);
        }
        let Some(unit) = unit else {
            bdi.slots.release(limit.class);
            return Wrote { pages, stop: Stop::End };
        };
        gate::pass("unit.chosen");
        range.start = unit.next();
        pages += unit.frames.frames().len() as u64;
        // Earlier units are written by other threads at the same time.
        let is_last = || inode.mapping.next_bits(mark, Some(mark), range.clone()).is_none();
        let awaits = if limit.awaits != Awaits::Nothing && is_last() { limit.awaits } else { Awaits::Nothing };
        submit(inode, unit, limit.class.clone(), limit.flushing, awaits);
        if matches!(limit.class, UnitClass::Sync) {
            break;
        }
    }
    Wrote { pages, stop: Stop::Pages }
}

/// Takes the next run of consecutive pages, at most `unit_bytes` long (W1).
fn gather(inode: &Inode, mark: Mark, range: Range<PageIndex>, unit_bytes: u32, round: &mut Round) -> Option<Gathering> {
    let owners = &inode.super_block().engine().owners;
    let max_pages = u64::from(unit_bytes) / PAGE_BYTES;
    let arena = &inode.super_block().engine().arena;
    let mut unit: Option<Gathering> = None;
    let mut started = Started::default();
    inode.mapping.scan(range.start, range.end, Some(mark), |base, leaf| {
        let truncate_from = PageIndex(inode.truncate_from.load(Ordering::Acquire));
        let end = range.end.min(PageIndex::end_of(inode.size_bytes())).min(truncate_from);
        let in_range = range_bits(range.start.0.saturating_sub(base.0), end.0.saturating_sub(base.0));
        for slot in slots(leaf.bits(mark) & in_range) {
            let index = base.plus(slot as u64);
            if unit.as_ref().is_some_and(|unit| unit.next() != index) {
                return Scan::Stop;
            }
            let frame = leaf.frame(slot).filter(|_| !leaf.has(Mark::Writeback, slot));
            let frames = unit.as_mut().map(|unit| &mut unit.frames);
            let taken = match (frame, frames) {
                (None, _) => false,
                (Some(frame), Some(frames)) => frames.push(frame),
                (Some(frame), None) => {
                    let mut frames = Gather::new(Arc::clone(arena), max_pages as usize);
                    let taken = frames.push(frame);
                    if taken {
                        unit = Some(Gathering { first: index, frames, size_bytes: 0 });
                    }
                    taken
                }
            };
            match (&mut unit, taken) {
                (Some(_), false) => return Scan::Stop,
                (None, _) => continue, // under write-back, or being copied to: skip it this time
                (Some(unit), true) => {
                    unit.size_bytes = inode.size_bytes(); // W2: only once the frame is held
                    started.page(leaf, slot);
                    round.page(frame.map_or(0, |frame| owners.of(frame)));
                    if unit.frames.frames().len() as u64 == max_pages {
                        return Scan::Stop;
                    }
                }
            }
        }
        Scan::On
    });
    started.account(inode);
    unit
}

/// Counts of the pages that a unit has taken.
#[derive(Default)]
struct Started {
    pages: i64,
    dirty: i64,
    unstable: i64,
    dontcache_dirty: i64,
    dropbehind_unstable: i64,
    delayed: u64,
}

impl Started {
    /// Marks a page whose bytes a unit is about to read. Kernel: `folio_clear_dirty_for_io` and
    /// `folio_start_writeback`, combined because both happen under the leaf's lock here.
    fn page(&mut self, leaf: &mut LeafState, slot: usize) {
        self.pages += 1;
        self.dirty += i64::from(leaf.has(Mark::Dirty, slot));
        if leaf.has(Mark::Dropbehind, slot) {
            self.dontcache_dirty += i64::from(leaf.has(Mark::Dirty, slot));
            self.dropbehind_unstable += i64::from(leaf.has(Mark::Unstable, slot));
        }
        self.unstable += i64::from(leaf.has(Mark::Unstable, slot) || leaf.has(Mark::Committing, slot));
        self.delayed += u64::from(leaf.has(Mark::Delayed, slot));
        leaf.set(Mark::Writeback, slot);
        for mark in [Mark::Dirty, Mark::ToWrite, Mark::Unstable, Mark::Committing] {
            leaf.clear(mark, slot);
        }
    }

    /// Accounts for all pages of the unit (up to 256) at once.
    fn account(&self, inode: &Inode) {
        inode.mapping.add(Mark::Writeback, self.pages);
        inode.mapping.add(Mark::Dirty, -self.dirty);
        inode.mapping.add(Mark::Unstable, -self.unstable);
        inode.account(Pages {
            reclaimable: -self.dirty,
            writeback: self.pages,
            unstable: -self.unstable,
            dontcache_dirty: -self.dontcache_dirty,
        });
        inode.super_block().bdi().add_dropbehind_unstable(-self.dropbehind_unstable);
        inode.super_block().space.unit_sent(self.delayed);
    }
}

fn submit(inode: &Arc<Inode>, unit: Gathering, class: UnitClass, flushing: bool, awaits: Awaits) {
    let sb = inode.super_block();
    let bdi = sb.bdi();
    let offset_bytes = unit.first.offset_bytes();
    let len_bytes = unit.len_bytes() as usize;
    let Some(node) = inode.state.lock().node.clone() else { unreachable!("N2: a dirty inode has its node") };
    let is_for_sync = matches!(class, UnitClass::Sync);
    if !is_for_sync {
        inode.units.fetch_add(1, Ordering::AcqRel);
    }
    tracing::trace!(target: "slackwater::writeback", volume = sb.name(), ino = inode.id().ino, offset_bytes, len_bytes,
        sync = is_for_sync, "wbc_writepage");
    sb.pin();
    let change = inode.begin_change();
    let owner = Arc::clone(inode);
    let first = unit.first;
    let failed_commits = commit::failures_of(inode);
    let waiter = (awaits == Awaits::PagesAndMeta).then(|| thread::current().id());
    let done = move |frames: Gather, written: Result<usize, BackendError>| {
        let sb = Arc::clone(owner.super_block());
        owner.end_change(change, None);
        end_writeback(&owner, first, frames, len_bytes, written, failed_commits);
        let is_waiter = waiter.is_some_and(|waiter| waiter == thread::current().id());
        if !is_waiter {
            finish(&owner, false);
        }
        if !is_for_sync {
            owner.units.fetch_sub(1, Ordering::AcqRel);
            sb.bdi().gate.end_unit(sb.now(), len_bytes as u64, flushing);
        }
        sb.bdi().slots.release(&class);
        if is_waiter {
            finish(&owner, true); // last: it waits for the metadata
        }
        drop(owner);
        sb.unpin(); // W3: after dropping the inode
    };
    let unit = WriteUnit::new(node, offset_bytes, len_bytes, unit.frames, Box::new(done));
    let unit = unit.refilling(inode.emptied.load(Ordering::Acquire)).for_sync(is_for_sync).flushing(flushing);
    bdi.submit(Call::Write(unit), awaits != Awaits::Nothing);
}

/// Completes a unit: pages that were written wait for a commit, the others are dirty again.
fn end_writeback(
    inode: &Arc<Inode>,
    first: PageIndex,
    frames: Gather,
    len_bytes: usize,
    written: Result<usize, BackendError>,
    failed_commits: u64,
) {
    gate::pass("unit.answered");
    let sb = inode.super_block();
    let (good_bytes, error) = match written {
        Ok(bytes) if bytes < len_bytes.min(PAGE_BYTES as usize) => {
            (0, Some(BackendError::new(ErrorKind::Io, "not even a page was written")))
        }
        Ok(bytes) => (bytes.min(len_bytes), None),
        Err(error) => (0, Some(error)),
    };
    let good_pages = if good_bytes == len_bytes { u64::MAX } else { good_bytes as u64 / PAGE_BYTES };
    inode.backing_bytes.fetch_max(first.offset_bytes() + good_bytes as u64, Ordering::AcqRel);
    inode.allocated_to.fetch_max(first.offset_bytes() + good_bytes as u64, Ordering::AcqRel);

    let unit_frames: Vec<FrameId> = frames.frames().to_vec();
    drop(frames); // unlocks them: a writer may lock one as soon as its mark is cleared
    let mut ended = Ended::default();
    let mut uncharges = Uncharges::new(&sb.engine().owners);
    let end = first.plus(unit_frames.len() as u64);
    inode.mapping.scan(first, end, Some(Mark::Writeback), |base, leaf| {
        let bits = range_bits(first.0.saturating_sub(base.0), end.0.saturating_sub(base.0));
        for slot in slots(leaf.bits(Mark::Writeback) & bits) {
            let nth = base.0 + slot as u64 - first.0;
            ended.page(inode, leaf, slot, unit_frames[nth as usize], nth < good_pages, &mut uncharges);
        }
        Scan::On
    });
    drop(uncharges);
    ended.account(inode);
    sb.bdi().unit_ended(good_bytes as u64);
    sb.note_attempt(Attempt::Write, error.as_ref().map(BackendError::kind));
    tracing::trace!(target: "slackwater::writeback", volume = sb.name(), ino = inode.id().ino, pages = ended.written,
        "writeback_pages_written");
    if let Some(error) = &error {
        tracing::warn!(target: "slackwater::writeback", ino = inode.id().ino, offset_bytes = first.offset_bytes(), %error,
            "write-back failed; the data is kept and will be retried");
        note_failure(inode, error.kind());
        if matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Quota) {
            sb.space.mark_stale();
        }
    }
    if ended.unstable != 0 {
        commit::note_unit_unstable(inode, failed_commits);
    }
}

/// Changes made by a completed unit.
#[derive(Default)]
struct Ended {
    pages: i64,
    written: u64,
    unstable: i64,
    redirtied: i64,
    dontcache_dirty: i64,
    dropbehind_unstable: i64,
    unpinned: u64,
    delayed: u64,
    allocated: u64,
}

impl Ended {
    fn page(
        &mut self,
        inode: &Inode,
        leaf: &mut LeafState,
        slot: usize,
        frame: FrameId,
        written: bool,
        uncharges: &mut Uncharges<'_>,
    ) {
        let arena = &inode.super_block().engine().arena;
        leaf.clear(Mark::Writeback, slot);
        self.pages += 1;
        self.written += u64::from(written);
        if leaf.has(Mark::Delayed, slot) {
            self.delayed += 1;
            if written {
                leaf.clear(Mark::Delayed, slot);
                self.allocated += 1;
            }
        }
        if leaf.frame(slot) != Some(frame) {
            // Rewritten meanwhile: the page's new frame is dirty, and this one is obsolete.
            uncharges.add(frame);
            arena.free(frame);
            self.unpinned += 1;
        } else if written {
            leaf.set(Mark::Unstable, slot);
            self.unstable += 1;
            self.dropbehind_unstable += i64::from(leaf.has(Mark::Dropbehind, slot));
        } else {
            leaf.set(Mark::Dirty, slot);
            self.redirtied += 1;
            self.dontcache_dirty += i64::from(leaf.has(Mark::Dropbehind, slot));
        }
        if !written {
            // A sync that waited for this unit must find the page tagged, because a failure is recorded only later.
            leaf.set(Mark::ToWrite, slot);
        }
    }

    fn account(&self, inode: &Inode) {
        inode.mapping.add(Mark::Dirty, self.redirtied);
        inode.mapping.add(Mark::Unstable, self.unstable);
        inode.mapping.add(Mark::Writeback, -self.pages);
        inode.account(Pages {
            reclaimable: self.redirtied,
            writeback: -self.pages,
            unstable: self.unstable,
            dontcache_dirty: self.dontcache_dirty,
        });
        inode.super_block().bdi().add_dropbehind_unstable(self.dropbehind_unstable);
        inode.wb().note_written(self.written);
        inode.super_block().bdi().unpin(self.unpinned);
        inode.super_block().space.unit_ended(self.delayed, self.allocated);
    }
}

/// Latches the error of a failed attempt for every later observer (P2).
pub(crate) fn note_failure(inode: &Inode, kind: ErrorKind) {
    inode.latch_error(kind);
    tracing::trace!(target: "slackwater::writeback", volume = inode.super_block().name(), ino = inode.id().ino, %kind,
        errseq = ?inode.errseq, "filemap_set_wb_err");
    inode.super_block().note_failure(kind);
    inode.state.lock().failed = true;
    inode.write_failures.fetch_add(1, Ordering::AcqRel);
}

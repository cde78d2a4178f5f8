//! Waits until data is durable on the backend: of an inode for fsync, of a volume for sync and umount.
//!
//! # Livelock
//! The pages to write are fixed at the start: an inode's dirty pages get the `TOWRITE` mark, and only those are written
//! and waited for; a volume's inodes are listed once. A program that keeps dirtying pages therefore cannot prolong a
//! sync.
//!
//! # Kernel counterpart
//! `file_write_and_wait_range`, `sync_inodes_sb`, `sync_filesystem` with its two passes.

use std::ops::Range;

use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::SyncScope;
use crate::error::{BackendError, ErrorKind};
use crate::inode::{Inode, meta};
use crate::page_cache::{LEAF_PAGES, Mark, Scan, slots};
use crate::super_block::SuperBlock;
use crate::units::{PageIndex, Tick};
use crate::writeback::work::{WbCompletion, WbReason, WbWork};
use crate::writeback::write_inode::submit_meta;
use crate::writeback::writepages::{Awaits, Limit, Stop, writepages};
use crate::writeback::{Round, commit};

/// Makes one inode durable at once, regardless of its back-off.
///
/// # Errors
/// The error of the attempt, after which the data stays dirty. `TimedOut` if `deadline` came first.
///
/// # Blocking
/// Waits for the backend, at most until `deadline`.
pub(crate) fn sync_inode(inode: &Arc<Inode>, scope: SyncScope, deadline: Option<Tick>) -> Result<(), BackendError> {
    let sb = inode.super_block();
    let engine = sb.engine();
    let _gate = engine.tunables.gate.then(|| sb.bdi().gate.sync(engine.clock.now()));
    let failures = inode.write_failures.load(Ordering::Acquire);
    write_and_wait(inode, deadline, Awaits::PagesAndMeta)?;
    let meta = match scope {
        SyncScope::Data => meta::DIRTY_DATASYNC,
        SyncScope::All => meta::DIRTY_SYNC | meta::DIRTY_DATASYNC,
    };
    write_meta_and_wait(inode, meta, deadline)?;
    let failed = || inode.write_failures.load(Ordering::Acquire) != failures;
    if failed() {
        return Err(last_error(inode));
    }
    commit::commit_inode(inode, scope, deadline)?;
    // A concurrent commit by another caller that failed covered pages of this attempt; report it here.
    if failed() { Err(last_error(inode)) } else { Ok(()) }
}

/// Writes back everything that is dirty now, and waits for it. `awaits` is the part of the inode that the caller waits for;
/// with a deadline, no call runs on its thread.
///
/// # Errors
/// `TimedOut`. `Inode::write_failures` shows failed attempts.
pub(crate) fn write_and_wait(inode: &Arc<Inode>, deadline: Option<Tick>, awaits: Awaits) -> Result<(), BackendError> {
    let sb = inode.super_block();
    let engine = sb.engine();
    let whole = PageIndex(0)..PageIndex(u64::MAX);
    let failures = inode.write_failures.load(Ordering::Acquire);
    inode.mapping.scan(whole.start, whole.end, Some(Mark::Dirty), |_, leaf| {
        leaf.set_bits(Mark::ToWrite, leaf.bits(Mark::Dirty));
        Scan::On
    });
    let awaits = if deadline.is_none() { awaits } else { Awaits::Nothing };
    let limit = Limit::of_sync(sb.bdi(), awaits);
    let mut left = whole.clone();
    let mut round = Round::begin(inode);
    loop {
        if !sb.bdi().slots.wait_for_sync(&*engine.clock, deadline) {
            return Err(ErrorKind::TimedOut.into());
        }
        if writepages(inode, Mark::ToWrite, &mut left, limit, &mut round).stop != Stop::End {
            continue;
        }
        left = whole.clone();
        wait_for_writeback(inode, whole.clone(), deadline)?;
        // The pages left were being copied to, were under write-back with older bytes, or were beyond a truncation in
        // progress.
        let Some(index) = first_marked(inode, Mark::ToWrite) else {
            round.end(inode);
            return Ok(());
        };
        if inode.write_failures.load(Ordering::Acquire) != failures {
            // The marks stay: another sync may have tagged the same pages, and the next attempt needs them.
            return Ok(());
        }
        let truncated = || (!inode.is_truncating()).then_some(());
        engine.waits.wait(inode.id(), deadline, truncated).ok_or_else(|| BackendError::from(ErrorKind::TimedOut))?;
        if let Some(frame) = inode.mapping.with_page(index, |leaf, slot| leaf.frame(slot)).flatten() {
            inode.wait_for_copy(index, frame);
        }
    }
}

/// Waits for the units in flight now that contain pages of `range`.
///
/// # Errors
/// `TimedOut`.
fn wait_for_writeback(inode: &Inode, range: Range<PageIndex>, deadline: Option<Tick>) -> Result<(), BackendError> {
    wait_for_units(inode, range, Some(Mark::Writeback), deadline)
}

/// Waits for all units that contain pages from `Inode::truncate_from` on. The caller has set it, so no new unit reaches
/// that far (W2 of `writepages`). A unit may be about to take its pages, so every leaf is locked once.
///
/// # Blocking
/// Waits for the backend.
pub(crate) fn wait_for_last_units(inode: &Inode) {
    let truncate_from = PageIndex(inode.truncate_from.load(Ordering::Acquire));
    let ended = wait_for_units(inode, truncate_from..PageIndex(u64::MAX), None, None);
    debug_assert!(ended.is_ok(), "without a deadline");
}

/// `found_by`: the mark used to search for leaves.
fn wait_for_units(
    inode: &Inode,
    range: Range<PageIndex>,
    found_by: Option<Mark>,
    deadline: Option<Tick>,
) -> Result<(), BackendError> {
    let mut at = range.start;
    while let Some((base, mut bits)) = inode.mapping.next_bits(Mark::Writeback, found_by, at..range.end) {
        // Wait for each page only once: if it enters write-back again, it does so with newer bytes.
        let still = || {
            bits &= inode.mapping.with_page(base, |leaf, _| leaf.bits(Mark::Writeback)).unwrap_or(0);
            (bits == 0).then_some(())
        };
        let engine = inode.super_block().engine();
        engine.waits.wait(inode.id(), deadline, still).ok_or_else(|| BackendError::from(ErrorKind::TimedOut))?;
        at = base.plus(LEAF_PAGES);
    }
    Ok(())
}

fn first_marked(inode: &Inode, mark: Mark) -> Option<PageIndex> {
    let end = PageIndex::end_of(inode.size_bytes());
    let found = inode.mapping.next_bits(mark, Some(mark), PageIndex(0)..end);
    found.and_then(|(base, bits)| slots(bits).next().map(|slot| base.plus(slot as u64)))
}

/// Sends the metadata in `bits` if it is dirty, and waits for the answer to a call that carries it. Metadata dirtied
/// meanwhile is left to the next sync.
fn write_meta_and_wait(inode: &Arc<Inode>, bits: u8, deadline: Option<Tick>) -> Result<(), BackendError> {
    let engine = inode.super_block().engine();
    let wait = |ready: &dyn Fn() -> bool| {
        engine
            .waits
            .wait(inode.id(), deadline, || ready().then_some(()))
            .ok_or_else(|| BackendError::from(ErrorKind::TimedOut))
    };
    loop {
        wait(&|| !inode.state.lock().meta_in_flight)?;
        if inode.state.lock().meta & bits == 0 {
            return Ok(());
        }
        if let Some(call) = submit_meta(inode, deadline.is_none()) {
            return wait(&|| inode.state.lock().meta_answered >= call);
        }
    }
}

/// The inode's last error, for an attempt that saw a failure.
pub(crate) fn last_error(inode: &Inode) -> BackendError {
    inode.errseq.check(Default::default()).unwrap_or(ErrorKind::Io).into()
}

/// Writes back everything that is dirty now on the volume and makes it durable.
///
/// # Errors
/// The first failure; the data concerned stays dirty. `TimedOut` if `deadline` came first.
///
/// # Blocking
/// Waits for the backend, at most until `deadline`.
pub(crate) fn sync_volume(sb: &Arc<SuperBlock>, deadline: Option<Tick>) -> Result<(), BackendError> {
    let engine = sb.engine();
    let clock = &*engine.clock;
    let start = clock.now();
    let _gate = engine.tunables.gate.then(|| sb.bdi().gate.sync(start));
    let failures = sb.write_failures();

    // First pass: submit everything in parallel before waiting for any of it. This thread submits one tenant's part.
    let completion = WbCompletion::new(start);
    let wbs = sb.wbs();
    let dirty: Vec<_> = wbs.iter().filter(|wb| wb.lists.lock().has_dirty_io()).collect();
    for wb in &dirty {
        wb.queue_work(WbWork { reason: WbReason::Sync, dirtied_before: start, done: Some(completion.token()) });
    }
    if let Some((own, others)) = dirty.split_last() {
        others.iter().for_each(|wb| wb.wake());
        engine.pool.run_here(own);
    }
    engine.run_by_hand();
    let hung = |waited, stuck| {
        let wbs = sb.wbs();
        let busy = wbs.iter().filter(|wb| !wb.work.lock().is_empty());
        let tenants = busy.map(|wb| wb.memcg.name()).collect::<Vec<_>>().join(", ");
        tracing::warn!(target: "slackwater::writeback", volume = sb.name(), tenants, ?waited, ?stuck,
            "sync makes no progress");
    };
    let submitted = completion.wait(clock, deadline, engine.tunables.hung_wait, || sb.progress_at(), hung);
    if !submitted {
        return Err(ErrorKind::TimedOut.into());
    }

    // Second pass: inode by inode, everything that the first did not reach or could not take.
    let mut first_error = None;
    for inode in sb.unclean_inodes() {
        let failures = inode.write_failures.load(Ordering::Acquire);
        write_and_wait(&inode, deadline, Awaits::PagesAndMeta)?;
        write_meta_and_wait(&inode, meta::DIRTY_SYNC | meta::DIRTY_DATASYNC, deadline)?;
        if inode.write_failures.load(Ordering::Acquire) != failures {
            first_error.get_or_insert_with(|| last_error(&inode));
        }
    }
    commit_volume(sb, deadline)?;
    // A commit that was already running and failed covered pages of this sync.
    if first_error.is_none() && sb.write_failures() != failures {
        first_error = Some(sb.errseq().check(Default::default()).unwrap_or(ErrorKind::Io).into());
    }
    first_error.map_or(Ok(()), Err)
}

/// Starts a commit, unless everything is durable already. Waits for it, and for the inodes that are committing on their own.
fn commit_volume(sb: &Arc<SuperBlock>, deadline: Option<Tick>) -> Result<(), BackendError> {
    let engine = sb.engine();
    // Units are held once more, also if the writes before took longer than one sync may hold them.
    let _gate = engine.tunables.gate.then(|| sb.bdi().gate.sync(engine.clock.now()));
    let timed_out = || BackendError::from(ErrorKind::TimedOut);
    let number = loop {
        if sb.commits().is_settled() {
            break None;
        }
        if let Some(number) = commit::start_volume(sb) {
            break Some(number);
        }
        let idle = || (!sb.commits().is_running()).then_some(());
        engine.waits.wait(sb.root_id(), deadline, idle).ok_or_else(timed_out)?;
    };
    let result = match number {
        None => Ok(()),
        Some(number) => {
            let answered = || sb.commits().result_of(number);
            engine.waits.wait(sb.root_id(), deadline, answered).ok_or_else(timed_out)?
        }
    };
    for inode in sb.unclean_inodes() {
        let idle = || (!inode.state.lock().committing).then_some(());
        engine.waits.wait(inode.id(), deadline, idle).ok_or_else(timed_out)?;
    }
    result.map_err(BackendError::from)
}

//! Commits: pages whose write was answered stay in memory until the backend confirms that they are durable.
//!
//! Data that the backend has accepted may still be lost: a kernel's page cache fails later, a server restarts. So
//! written pages are *unstable*: they cannot be dropped, and a commit makes them clean. That is one `Sync` for an inode
//! that is fsynced, one `SyncVolume` for everything else. If the commit fails, the pages are dirty again. So fsync
//! returns 0 only when the data is durable, whichever process calls it and however late.
//!
//! # Invariants
//! C1. At most one commit runs for an inode (`committing`), either its own or the volume's. The page marks belong to
//!     it.
//! C2. A page is made clean only by a commit that was submitted after its write was answered.
//! C3. An inode with unstable pages is on the super block's list, or in a running volume commit.
//! C4. A failed commit may have lost every page whose write was answered before it. It may have missed a page that was
//!     not yet marked or listed. So the failure is counted first; then the pages of the commit and of the listed inodes
//!     become dirty again. The end of a unit lists its inode first and then checks whether a commit has failed since
//!     the unit was submitted. One side or the other finds the page.
//! C5. `is_covered` is cleared after the answer to a call that changes names or attributes, and before its caller knows.
//!     A volume commit sets it before its call is submitted, and clears it if it fails. So while it is set, and no commit
//!     is running, all changes whose callers know of them are durable.
//!
//! # Lock order
//! The list is a leaf; the inode lock is never taken under it.
//!
//! # Kernel counterpart
//! NFS: unstable writes and COMMIT (`nfs_commit_inode`). Local file systems treat the page as clean as soon as the
//! write is answered.

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::{Call, Done, SyncScope};
use crate::cgroup::{Memcg, Uncharges};
use crate::engine::Shared;
use crate::error::{BackendError, ErrorKind};
use crate::errseq::ErrCursor;
use crate::inode::{Inode, meta};
use crate::lock_order::LEAVES;
use crate::page_cache::{LeafState, Mark, Scan, slots};
use crate::super_block::SuperBlock;
use crate::units::{PageIndex, Tick};
use crate::writeback::dontcache::DroppedBehind;
use crate::writeback::writepages::note_failure;
use crate::writeback::{Attempt, Pages};

/// A commit starts when more than 1/`UNSTABLE_PART` of the volume's share is unstable and less than 1/[`LEFT_PART`] of
/// it is left. Each commit frees at once the frames of many units: the larger the step, the longer writers pause before
/// it.
const UNSTABLE_PART: u64 = 8;
const LEFT_PART: u64 = 4;

#[derive(Default)]
struct State {
    inodes: Vec<Arc<Inode>>,
    /// When the oldest of them was listed.
    since: Option<Tick>,
    /// A tenant has only unstable pages left and needs frames.
    wanted: bool,
    /// When data of a dead engine was taken over.
    adopted: Option<Tick>,
    /// Volume commits begun and ended: one runs while they differ.
    begun: u64,
    ended: u64,
    /// The last volume commit that failed.
    failed: Option<(u64, ErrorKind)>,
    /// Volume commits that failed (C4).
    failures: u64,
    /// C5. Not at first: changes of an earlier process may not be durable either.
    is_covered: bool,
}

impl State {
    fn is_running(&self) -> bool {
        self.begun != self.ended
    }
}

/// The inodes of a volume that have unstable pages, and whether anything else may not be durable.
pub(crate) struct Commits(Mutex<State>);

impl Commits {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LEAVES, State::default()))
    }

    /// A call that changes names or attributes was answered (C5).
    pub(crate) fn note_change(&self) {
        self.0.lock().is_covered = false;
    }

    /// Data of a dead engine was taken over.
    pub(crate) fn note_adopted(&self, now: Tick) {
        self.0.lock().adopted = Some(now);
    }

    /// Whether everything that was answered is durable, so that a commit would confirm nothing new.
    pub(crate) fn is_settled(&self) -> bool {
        let state = self.0.lock();
        !state.is_running() && state.inodes.is_empty() && state.is_covered
    }

    pub(crate) fn is_running(&self) -> bool {
        self.0.lock().is_running()
    }

    /// Counts a failed volume commit and returns the inodes on the list.
    fn note_failed(&self) -> Vec<Arc<Inode>> {
        let mut state = self.0.lock();
        state.failures += 1;
        state.is_covered = false;
        state.inodes.clone()
    }

    /// Empties the list when the engine is dropped.
    pub(crate) fn take(&self) -> Vec<Arc<Inode>> {
        std::mem::take(&mut self.0.lock().inodes)
    }

    /// The outcome of volume commit `number`, once it has ended. The failure of a later commit counts as well.
    pub(crate) fn result_of(&self, number: u64) -> Option<Result<(), ErrorKind>> {
        let state = self.0.lock();
        let failed = state.failed.filter(|(at, _)| *at >= number);
        (state.ended >= number).then_some(failed.map_or(Ok(()), |(_, kind)| Err(kind)))
    }
}

impl SuperBlock {
    /// Starts a commit soon, if anything is unstable.
    pub(crate) fn want_commit(&self) {
        self.commits().0.lock().wanted = true;
        self.root_wb().wake();
    }
}

/// Commits of `inode`, alone or with the volume, that have failed so far (C4).
pub(crate) fn failures_of(inode: &Inode) -> u64 {
    let of_volume = inode.super_block().commits().0.lock().failures;
    of_volume + inode.commit_failures.load(Ordering::Acquire)
}

/// Records that a unit left unstable pages of `inode`. When it was submitted, `seen` commits had failed.
pub(crate) fn note_unit_unstable(inode: &Arc<Inode>, seen: u64) {
    note_unstable(inode);
    if failures_of(inode) != seen {
        let kind = inode.super_block().errseq().check(ErrCursor::default()).unwrap_or(ErrorKind::Io);
        let _ = redirty_lost(inode, &[Mark::Unstable], kind); // C4
    }
}

/// Lists an `inode` that has unstable pages (C3).
fn note_unstable(inode: &Arc<Inode>) {
    let sb = inode.super_block();
    let first = {
        let mut state = inode.state.lock();
        !std::mem::replace(&mut state.unstable_listed, true)
    };
    let now = || sb.engine().clock.now();
    let pool = &sb.engine().pool;
    let interval = sb.bdi().ages.commit(&pool.tunables);
    let (listed, adopted) = if first {
        let now = now();
        let (oldest, listed, adopted) = {
            let mut commits = sb.commits().0.lock();
            if sb.alive().is_err() {
                return; // the list has been emptied for good
            }
            commits.inodes.push(Arc::clone(inode));
            let oldest = commits.since.is_none();
            commits.since.get_or_insert(now);
            (oldest, commits.inodes.len(), commits.adopted)
        };
        if oldest {
            pool.arm(sb.root_wb(), now + interval);
        }
        (listed, adopted)
    } else {
        let commits = sb.commits().0.lock();
        (commits.inodes.len(), commits.adopted)
    };
    // See `recovery`.
    let is_late = adopted.is_some_and(|adopted| now() < adopted + interval);
    let wb = inode.wb();
    if is_late || is_short(sb, listed) || wb.memcg.wants_commit(wb.stat.unstable.read()) || wb.foreign_flush_has_ended()
    {
        sb.want_commit();
    }
}

/// Whether a commit would help now: unstable pages, or the nodes of the `listed` inodes, block a writer or are due to
/// leave.
fn is_short(sb: &SuperBlock, listed: usize) -> bool {
    let bdi = sb.bdi();
    let share = bdi.share_frames();
    // In this order: this runs at the end of each unit, and summing the pages of all tenants is the expensive part.
    let much = bdi.pinned_frames() > share - share / LEFT_PART && sb.unstable_pages() > share / UNSTABLE_PART;
    // A commit of many nodes helps a writer that waits for a node more than an immediate one. But when no unit is in
    // flight, there is nothing more to wait for.
    let may_start = || !bdi.nodes_are_used_up() || sb.pages().writeback == 0;
    much || bdi.dropbehind_wants_commit() || bdi.nodes_want_commit(listed) || (bdi.wants_frames() && may_start())
}

/// Starts a volume commit if one is due: by age, because much is unstable, or because a writer waits for frames.
/// Returns when the next is due by age.
pub(crate) fn start_if_due(sb: &Arc<SuperBlock>, now: Tick) -> Option<Tick> {
    let tunables = &sb.engine().tunables;
    let bdi = sb.bdi();
    let (since, running, wanted, listed) = {
        let commits = sb.commits().0.lock();
        (commits.since, commits.is_running(), commits.wanted, commits.inodes.len())
    };
    let Some(since) = since else {
        if bdi.wants_frames() && !running && sb.is_idle() {
            bdi.frames_freed();
        }
        return None;
    };
    let due = since + bdi.ages.commit(tunables);
    if !running && (now >= due || wanted || is_short(sb, listed)) {
        let _ = start_volume(sb);
        return None;
    }
    (!running).then_some(due)
}

/// Starts a commit of everything that is unstable now and returns its number; `None` if one is running.
///
/// # Blocking
/// Never blocks, but the answer may arrive before it returns. So the caller must not hold any lock that [`end`] takes.
pub(crate) fn start_volume(sb: &Arc<SuperBlock>) -> Option<u64> {
    let (listed, number) = {
        let mut commits = sb.commits().0.lock();
        if commits.is_running() {
            return None;
        }
        commits.begun += 1;
        (commits.since, commits.wanted, commits.is_covered) = (None, false, true);
        (std::mem::take(&mut commits.inodes), commits.begun)
    };
    let mut inodes = Vec::with_capacity(listed.len());
    for inode in listed {
        let began = {
            let mut state = inode.state.lock();
            state.unstable_listed = false;
            !std::mem::replace(&mut state.committing, true)
        };
        if began {
            begin(&inode);
            inodes.push(inode);
        }
        // Otherwise its own commit is running, which lists it again if any page stays unstable.
    }
    tracing::trace!(target: "slackwater::writeback", volume = sb.name(), inodes = inodes.len(), "commit_start");
    sb.pin();
    let owner = Arc::clone(sb);
    let done = Done::new(move |answer: Result<(), BackendError>| {
        let result = answer.map_err(|error| error.kind());
        owner.note_attempt(Attempt::Commit, result.err());
        let missed = result.err().map(|kind| (kind, owner.commits().note_failed()));
        for inode in inodes {
            end(&inode, result);
        }
        if let Some((kind, listed)) = missed {
            for inode in &listed {
                let _ = redirty_lost(inode, &[Mark::Unstable], kind); // C4
            }
        }
        let wants_more = {
            let mut commits = owner.commits().0.lock();
            commits.ended = number;
            commits.failed = result.err().map(|kind| (number, kind)).or(commits.failed);
            commits.since.is_some() || commits.wanted
        };
        owner.bdi().frames_freed();
        owner.engine().waits.wake(owner.root_id());
        owner.note_progress();
        // Clean pages give the flusher nothing to do. Waking its thread would take longer than the rest of an unmount,
        // and the thread could preempt it.
        if result.is_err() || wants_more {
            owner.root_wb().wake();
        }
        owner.unpin();
    });
    sb.bdi().backend.submit(Call::SyncVolume { done });
    Some(number)
}

/// Makes `inode` durable on its own: waits until its data, as far as it is written, is confirmed.
///
/// # Errors
/// The backend's error. The pages are dirty again then.
///
/// # Blocking
/// Waits for a running commit of the inode and for the backend's answer, at most until `deadline`.
pub(crate) fn commit_inode(inode: &Arc<Inode>, scope: SyncScope, deadline: Option<Tick>) -> Result<(), BackendError> {
    let sb = inode.super_block();
    let engine = sb.engine();
    let opened = inode.node()?;
    let begin_own = || {
        let mut state = inode.state.lock();
        // Data was written through the node that is open now; a clean file may be synced through any node.
        (!std::mem::replace(&mut state.committing, true)).then(|| state.node.as_ref().unwrap_or(&opened).clone())
    };
    let node =
        engine.waits.wait(inode.id(), deadline, begin_own).ok_or_else(|| BackendError::from(ErrorKind::TimedOut))?;
    begin(inode);
    let was_emptied = inode.emptied.swap(false, Ordering::AcqRel);
    sb.pin();
    let owner = Arc::clone(inode);
    sb.call(deadline, move |reply| Call::Sync {
        node,
        scope,
        done: Done::new(move |answer: Result<(), BackendError>| {
            let sb = Arc::clone(owner.super_block());
            sb.note_attempt(Attempt::Commit, answer.as_ref().err().map(BackendError::kind));
            let result = answer.as_ref().copied().map_err(BackendError::kind);
            if result.is_err() {
                owner.commit_failures.fetch_add(1, Ordering::AcqRel); // C4
                owner.emptied.fetch_or(was_emptied, Ordering::AcqRel);
            }
            end(&owner, result);
            sb.note_progress();
            drop(owner);
            reply.complete(answer);
            sb.unpin();
        }),
    })
}

/// C2: assigns what is unstable now to the commit about to be submitted.
fn begin(inode: &Inode) {
    let mut dropbehind = 0;
    inode.mapping.scan(PageIndex(0), PageIndex(u64::MAX), Some(Mark::Unstable), |_, leaf| {
        let bits = leaf.bits(Mark::Unstable);
        dropbehind += leaf.count_both(Mark::Unstable, Mark::Dropbehind);
        leaf.clear_bits(Mark::Unstable, bits);
        leaf.set_bits(Mark::Committing, bits);
        Scan::On
    });
    inode.super_block().bdi().add_dropbehind_unstable(-dropbehind);
}

/// Completes a commit: its pages are clean, or dirty again.
fn end(inode: &Arc<Inode>, result: Result<(), ErrorKind>) {
    let sb = inode.super_block();
    let redirtied = match result {
        Ok(()) => {
            make_clean(inode);
            false
        }
        Err(kind) => redirty_lost(inode, &[Mark::Committing, Mark::Unstable], kind),
    };
    let mut state = inode.state.lock();
    state.committing = false;
    inode.record_reported(&state);
    drop(state);
    if redirtied {
        let _ = inode.settle(sb.engine().clock.now(), false);
    }
    if inode.mapping.count(Mark::Unstable) != 0 {
        note_unstable(inode);
    }
    sb.engine().waits.wake(inode.id());
    inode.release_if_clean();
    sb.forget_if_unused(inode);
}

fn make_clean(inode: &Arc<Inode>) {
    let sb = inode.super_block();
    let arena = &sb.engine().arena;
    let mut uncharges = Uncharges::new(&sb.engine().owners);
    let (mut ended, mut cleaned) = (0_i64, 0_u64);
    let mut dropped = DroppedBehind::default();
    let mut listed = None;
    inode.mapping.scan(PageIndex(0), PageIndex(u64::MAX), Some(Mark::Committing), |base, leaf| {
        let bits = leaf.bits(Mark::Committing);
        let clean = bits & !leaf.bits(Mark::Dirty);
        ended += i64::from(bits.count_ones());
        leaf.clear_bits(Mark::Committing, bits);
        // While the frames are still charged, which keeps their owners' slots valid.
        let owners = owners_of(sb.engine(), leaf, clean);
        for frame in slots(clean).filter_map(|slot| leaf.frame(slot)) {
            arena.mark_clean(frame);
            uncharges.add(frame);
            cleaned += 1;
        }
        inode.mapping.add_unclean(-i64::from(clean.count_ones()));
        dropped.take(arena, base, leaf, clean);
        for (memcg, pages) in owners {
            sb.engine().reclaim.list(inode, &memcg, base, leaf, pages & leaf.present());
            listed = Some(memcg);
        }
        Scan::On
    });
    inode.mapping.add(Mark::Unstable, -ended);
    inode.account(Pages { unstable: -ended, ..Pages::default() });
    dropped.free(inode);
    sb.bdi().unpin(cleaned);
    listed.inspect(|memcg| sb.engine().reclaim.note_listed(memcg));
}

/// The tenants that the frames of `pages` are charged to, each with its pages: usually one.
fn owners_of(engine: &Shared, leaf: &LeafState, pages: u64) -> Vec<(Arc<Memcg>, u64)> {
    let mut found: Vec<(u32, u64)> = Vec::new();
    for slot in slots(pages) {
        let Some(owner) = leaf.frame(slot).map(|frame| engine.owners.of(frame)) else { continue };
        match found.last_mut() {
            Some((last, pages)) if *last == owner => *pages |= 1 << slot,
            _ => found.push((owner, 1 << slot)),
        }
    }
    let memcg = |owner| engine.tenants.at(owner).unwrap_or_else(|| Arc::clone(engine.tenants.root()));
    found.into_iter().map(|(owner, pages)| (memcg(owner), pages)).collect()
}

/// Redirties written pages with one of `marks` that did not become durable. False if there were none.
fn redirty_lost(inode: &Arc<Inode>, marks: &[Mark], kind: ErrorKind) -> bool {
    let (mut lost, mut redirtied) = (0_i64, 0_i64);
    let (mut dontcache_dirty, mut dropbehind_unstable) = (0_i64, 0_i64);
    for mark in marks.iter().copied() {
        inode.mapping.scan(PageIndex(0), PageIndex(u64::MAX), Some(mark), |_, leaf| {
            let bits = leaf.bits(mark);
            let newly = bits & !leaf.bits(Mark::Dirty);
            dontcache_dirty -= leaf.count_both(Mark::Dirty, Mark::Dropbehind);
            dropbehind_unstable -= leaf.count_both(Mark::Unstable, Mark::Dropbehind);
            leaf.clear_bits(mark, bits);
            leaf.set_bits(Mark::Dirty, newly);
            dontcache_dirty += leaf.count_both(Mark::Dirty, Mark::Dropbehind);
            dropbehind_unstable += leaf.count_both(Mark::Unstable, Mark::Dropbehind);
            lost += i64::from(bits.count_ones());
            redirtied += i64::from(newly.count_ones());
            Scan::On
        });
    }
    if lost == 0 {
        return false;
    }
    inode.mapping.add(Mark::Dirty, redirtied);
    inode.mapping.add(Mark::Unstable, -lost);
    inode.account(Pages { reclaimable: redirtied, writeback: 0, unstable: -lost, dontcache_dirty });
    inode.super_block().bdi().add_dropbehind_unstable(dropbehind_unstable);
    tracing::warn!(target: "slackwater::writeback", ino = inode.id().ino, %kind, pages = redirtied,
        "written data did not become durable; it will be written again");
    note_failure(inode, kind);
    if redirtied != 0 {
        inode.mark_dirty(meta::DIRTY_SYNC);
    }
    redirtied != 0
}

//! A mounted volume: its inodes, its write-back and its state.
//!
//! # Parts
//! - `inodes`: the cache of inodes. `inode_lru` and `shrinker` free those that only a front end keeps, and `idle_nodes`
//!   closes their backend nodes.
//! - `space` and `claims`: the space on the backend that dirty data needs, and changes that take space at once.
//! - `freeze` and `quiesce`: changes refused, and flushers kept away, for an unmount.
//! - `removed` and `rescued`: files that another program removed, and dirty data saved in files of its own.
//! - `status`, `tenants` and `reads`: the figures of a volume, and of its tenants.
//!
//! # States
//! | state | meaning | left by |
//! |---|---|---|
//! | `Mounted` | everything works | umount or freeze: becomes `Frozen` |
//! | `Frozen` | reads and syncs work, changes are refused | umount: thaws at its deadline, or becomes `Dead` |
//! | `Dead` | nothing dirty, nothing in flight, no new references | never |
//!
//! # Invariants
//! S1. `Dead` is final. Umount sets it when nothing is dirty and nothing is in flight. Only a user's reference, a
//!     running sync (`syncs`) or a flusher could pin the volume later. Umount has checked after the freeze that the
//!     first two are gone, and keeps flushers away ([`quiesce`]).
//! S2. Every inode with users, pages or dirty metadata is in `inodes` exactly once.
//!
//! # Lock order
//! `inodes`, then any lock of an inode.
//!
//! # Kernel counterpart
//! `struct super_block`.

mod claims;
mod freeze;
mod idle_nodes;
mod inode_lru;
mod inodes;
mod quiesce;
mod reads;
mod removed;
mod rescued;
mod shrinker;
mod space;
mod status;
mod tenants;

pub(crate) use self::rescued::RescueFile;
pub use self::rescued::{Rescued, RescuedFrom};
pub(crate) use claims::{NAME_PAGES, pages_of};
pub(crate) use inode_lru::LruPlace;
pub(crate) use reads::{HIT_BATCH_PAGES, ReadCounts};
pub(crate) use space::{Left, Space};
pub use status::VolumeStatus;
pub use tenants::TenantStatus;

use std::collections::HashMap;
use std::time::Duration;

use slackwater_arena::{ShortBytes, VolumeRecord, VolumeSlot};
use slackwater_sync::InFlight;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use slackwater_sync::shim::{Arc, OnceLock, Weak};

use crate::backend::{Backend, Call, Found, call_and_wait};
use crate::cgroup::{HeldCount, Hold, Memcg};
use crate::engine::Shared;
use crate::error::{BackendError, ErrorKind, FileError, MountError};
use crate::errseq::ErrSeq;
use crate::inode::{Changes, Inode, InodeRef, OnWriteError, too_many};
use crate::lock_order::{INODE_HASH, LEAVES, RELEASING};
use crate::shrink::ShrinkerRegistration;
use crate::super_block::idle_nodes::IdleNodes;
use crate::super_block::inode_lru::InodeLru;
use crate::units::{NodeId, Tick};
use crate::writeback::commit::Commits;
use crate::writeback::{BackingDevInfo, Backoff, BdiWriteback, CgroupWbs};

const MOUNTED: u8 = 0;
const FROZEN: u8 = 1;
const DEAD: u8 = 2;

/// Shards of the inode hash: enough to make contention rare.
const INODE_SHARDS: usize = 16;

/// A mounted volume. Kernel: `struct super_block`.
pub struct SuperBlock {
    engine: Arc<Shared>,
    bdi: Arc<BackingDevInfo>,
    root_wb: Arc<BdiWriteback>,
    volume_slot: VolumeSlot,
    root_id: NodeId,
    /// The volume's own reference to its root; umount puts it. Kernel: `s_root`.
    pub(crate) root: Mutex<Option<InodeRef>>,
    state: AtomicU8,
    in_flight: InFlight,
    /// Flushers working on the volume; Q1 of [`quiesce`].
    flushers: InFlight,
    /// An unmount has flushed everything, and flushers start no more work; Q2 of [`quiesce`].
    is_quiescing: AtomicBool,
    /// Switches in flight of this volume's inodes to another wb. Kernel: `s_isw_nr_in_flight`.
    switches_in_flight: InFlight,
    pub(crate) cgroup_wbs: CgroupWbs,
    /// Umount has evicted every inode; new ones are refused.
    is_evicted: AtomicBool,
    /// Unmounted, but its record in the arena is not yet freed.
    release_pending: Mutex<bool>,
    errseq: ErrSeq,
    /// Set by a front end that outlives its process.
    pub(crate) on_write_error: OnceLock<Box<OnWriteError>>,
    write_failures: AtomicU64,
    progress_at_ns: AtomicU64,
    pub(crate) open_files: AtomicU32,
    /// Nodes held open for no particular tenant.
    held: HeldCount,
    /// Running calls of [`SuperBlock::sync`].
    syncs: AtomicU32,
    /// An unmount or freeze is in progress.
    pub(crate) is_umounting: AtomicBool,
    pub(crate) flush_backoff: Backoff,
    /// See [`Inode::release_if_clean`].
    pub(crate) releasing: Mutex<()>,
    commits: Commits,
    inodes: [Mutex<HashMap<NodeId, Arc<Inode>>>; INODE_SHARDS],
    /// D1 of [`inodes`].
    evictions: AtomicU64,
    idle_nodes: IdleNodes,
    inode_lru: InodeLru,
    /// `None` once umount has unregistered it.
    shrinker: Mutex<Option<ShrinkerRegistration>>,
    /// Accounting of the backend's free space.
    pub(crate) space: Space,
    /// Removals of names in progress whose file is not known before the answer.
    pub(crate) removals: Changes,
    /// Times that another program changed a file in the backend while it was dirty here.
    pub(crate) changed_underneath: AtomicU64,
    pub(crate) reads: ReadCounts,
    /// Dirty data saved in files of its own.
    pub(crate) rescued: Mutex<Vec<Rescued>>,
    /// Files without a name whose data survived, until those who have them open are known again.
    pub(crate) kept: Mutex<Vec<InodeRef>>,
    pub(crate) removed: Mutex<Vec<removed::RemovedFile>>,
    /// The frames of a copy that did not end in time (G3 of `removed`).
    pub(crate) late_copy: Mutex<Weak<removed::CopyFrames>>,
}

impl SuperBlock {
    pub(crate) fn mount(engine: &Arc<Shared>, name: &str, backend: Arc<dyn Backend>) -> Result<Arc<Self>, MountError> {
        let bad_name = || MountError::BadName(name.into());
        let id = ShortBytes::new(name.as_bytes()).filter(|_| !name.is_empty()).ok_or_else(bad_name)?;
        let root: Found =
            call_and_wait(&*backend, &*engine.clock, None, |done| Call::Root { done }).map_err(MountError::Root)?;
        let gate = engine.gates.of(&backend.limits());
        let frames = u64::from(engine.arena.frames());
        let bdi = Arc::new(BackingDevInfo::new(
            name,
            backend,
            gate,
            &engine.tunables,
            frames,
            Arc::clone(&engine.pinned_nodes),
        ));
        let root_wb = BdiWriteback::root(Arc::clone(&bdi), Arc::clone(&engine.pool), Arc::clone(engine.tenants.root()));
        let survivors = engine.take_survivors(name);
        let volume_slot = match &survivors {
            Some(survivors) => survivors.slot,
            None => engine.arena.alloc_volume(&VolumeRecord { id }).ok_or(MountError::TooManyVolumes)?,
        };
        tracing::trace!(target: "slackwater::writeback", volume = name, frames = bdi.share_frames(), "writeback_bdi_register");
        let sb = Arc::new(Self {
            engine: Arc::clone(engine),
            bdi,
            root_wb,
            volume_slot,
            root_id: root.attr.id,
            root: Mutex::new(INODE_HASH, None),
            state: AtomicU8::new(MOUNTED),
            in_flight: InFlight::new(),
            flushers: InFlight::new(),
            is_quiescing: AtomicBool::new(false),
            switches_in_flight: InFlight::new(),
            cgroup_wbs: CgroupWbs::new(&engine.pool.rcu),
            is_evicted: AtomicBool::new(false),
            release_pending: Mutex::new(LEAVES, false),
            errseq: ErrSeq::new(),
            on_write_error: OnceLock::new(),
            write_failures: AtomicU64::new(0),
            progress_at_ns: AtomicU64::new(engine.clock.now().0),
            open_files: AtomicU32::new(0),
            held: HeldCount::default(),
            syncs: AtomicU32::new(0),
            is_umounting: AtomicBool::new(false),
            flush_backoff: Backoff::new(),
            releasing: Mutex::new(RELEASING, ()),
            commits: Commits::new(),
            inodes: std::array::from_fn(|_| Mutex::new(INODE_HASH, HashMap::new())),
            evictions: AtomicU64::new(0),
            idle_nodes: IdleNodes::new(),
            inode_lru: InodeLru::new(),
            shrinker: Mutex::new(LEAVES, None),
            space: Space::new(),
            removals: Changes::new(),
            changed_underneath: AtomicU64::new(0),
            reads: ReadCounts::default(),
            rescued: Mutex::new(LEAVES, Vec::new()),
            kept: Mutex::new(LEAVES, Vec::new()),
            removed: Mutex::new(LEAVES, Vec::new()),
            late_copy: Mutex::new(LEAVES, Weak::new()),
        });
        sb.root_wb.set_super_block(&sb);
        sb.refresh_space(engine.clock.now());
        let root = sb.iget_at_mount(root);
        *sb.root.lock() = Some(root);
        if let Some(survivors) = survivors
            && let Err(error) = sb.adopt(&survivors)
        {
            sb.abandon();
            engine.return_survivors(survivors);
            return Err(error);
        }
        if let Err(error) = sb.register_shrinker() {
            sb.abandon();
            return Err(error.into());
        }
        Ok(sb)
    }

    /// The name under which the volume was mounted.
    pub fn name(&self) -> &str {
        self.bdi.name()
    }

    /// Write-back state of the device.
    pub fn bdi(&self) -> &Arc<BackingDevInfo> {
        &self.bdi
    }

    /// Age at which dirty data is written back; `None` if there is no periodic write-back.
    pub fn dirty_expire(&self) -> Option<Duration> {
        let tunables = &self.engine.tunables;
        (!tunables.dirty_writeback.is_zero()).then(|| self.bdi.ages.expire(tunables))
    }

    /// Makes all data written before the call durable.
    ///
    /// # Errors
    /// The first failure; the data concerned stays dirty and is retried.
    ///
    /// # Blocking
    /// Waits for the backend.
    pub fn sync(self: &Arc<Self>) -> Result<(), FileError> {
        // Counted before the state is checked, whereas umount freezes first and then counts. So one of the two sees the
        // other.
        self.syncs.fetch_add(1, Ordering::SeqCst);
        let result = match self.writable() {
            Ok(()) => crate::writeback::sync::sync_volume(self, None)
                .and_then(|()| self.rescue_removed(None))
                .map_err(FileError::from),
            Err(error) => Err(error),
        };
        self.syncs.fetch_sub(1, Ordering::SeqCst);
        self.engine.progress.note();
        result
    }

    pub(crate) fn engine(&self) -> &Arc<Shared> {
        &self.engine
    }

    /// The tenant charged for whatever no other tenant is charged for.
    pub fn root_memcg(&self) -> &Arc<Memcg> {
        self.engine.tenants.root()
    }

    /// The nodes held for `memcg`; those of the root are counted by the volume.
    pub(crate) fn held_by<'a>(&'a self, memcg: &'a Memcg) -> &'a HeldCount {
        if memcg.is_root() { &self.held } else { &memcg.held }
    }

    /// Whether `memcg` may hold one more node open.
    pub(crate) fn may_hold(&self, memcg: &Memcg) -> bool {
        self.engine.held.may_hold_more(self.held_by(memcg))
    }

    /// Checks whether a file that does not exist yet could be opened for `memcg` once created.
    ///
    /// # Errors
    /// `TooManyOpen`, as [`File::open_for`](crate::File::open_for) would return for the file.
    pub fn check_may_open_new(&self, memcg: &Memcg) -> Result<(), FileError> {
        if self.bdi.limits().reopens || self.may_hold(memcg) { Ok(()) } else { Err(too_many().into()) }
    }

    pub(crate) fn try_hold(&self, memcg: &Memcg) -> Option<Hold> {
        self.engine.held.try_hold(self.held_by(memcg))
    }

    pub(crate) fn root_wb(&self) -> &Arc<BdiWriteback> {
        &self.root_wb
    }

    pub(crate) fn root_id(&self) -> NodeId {
        self.root_id
    }

    pub(crate) fn volume_slot(&self) -> VolumeSlot {
        self.volume_slot
    }

    pub(crate) fn switches_in_flight(&self) -> &InFlight {
        &self.switches_in_flight
    }

    pub(crate) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Acquire)
    }

    pub(crate) fn set_evicted(&self) {
        self.is_evicted.store(true, Ordering::Release);
    }

    /// Failed attempts so far. A sync during which this changes has failed.
    pub(crate) fn write_failures(&self) -> u64 {
        self.write_failures.load(Ordering::Acquire)
    }

    /// Pins the volume for an operation in flight, which may hold inodes until it unpins.
    pub(crate) fn pin(&self) {
        self.in_flight.pin();
    }

    /// Drops the pin of an operation in flight, which has dropped its inodes.
    pub(crate) fn unpin(&self) {
        self.in_flight.unpin();
        self.release_volume();
        self.wake_umount();
    }

    /// Called when something has ended that an unmount may be waiting for.
    fn wake_umount(&self) {
        if !self.is_mounted() {
            self.engine.progress.note();
        }
    }

    /// Frees the volume's record in the arena once the volume is unmounted and nothing of it is in flight. After a
    /// discarding unmount, units may still be. Of the last unpin and the unmount, the later one sees both conditions
    /// under the lock.
    fn release_volume(&self) {
        let mut release_pending = self.release_pending.lock();
        if *release_pending && self.in_flight.count() == 0 {
            *release_pending = false;
            self.engine.arena.free_volume(self.volume_slot);
        }
    }

    /// Called when every inode has been evicted. The record is freed as soon as nothing is in flight.
    pub(crate) fn release_volume_when_idle(&self) {
        *self.release_pending.lock() = true;
        self.release_volume();
    }

    pub(crate) fn commits(&self) -> &Commits {
        &self.commits
    }

    pub(crate) fn errseq(&self) -> &ErrSeq {
        &self.errseq
    }

    /// Latches the error of a failed write-back attempt on the volume.
    pub(crate) fn note_failure(&self, kind: ErrorKind) {
        self.errseq.set(kind);
        self.write_failures.fetch_add(1, Ordering::AcqRel);
    }

    /// Records progress of this volume and wakes writers that wait for frames.
    pub(crate) fn note_progress(&self) {
        self.progress_at_ns.store(self.engine.clock.now().0, Ordering::Relaxed);
        self.engine.progress.note();
    }

    pub(crate) fn progress_at(&self) -> Tick {
        Tick(self.progress_at_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn unstable_pages(&self) -> u64 {
        let mut pages = 0;
        self.for_each_wb(|wb| pages += wb.stat.unstable.read());
        pages
    }

    /// Whether nothing is dirty, in flight or unstable, so that write-back here can free no frames.
    pub(crate) fn is_idle(&self) -> bool {
        self.pages().is_zero()
    }

    /// Fails if the volume is unmounted.
    pub(crate) fn alive(&self) -> Result<(), FileError> {
        if self.state.load(Ordering::Acquire) == DEAD { Err(FileError::NotMounted) } else { Ok(()) }
    }

    /// Fails if the volume is frozen or unmounted.
    pub(crate) fn writable(&self) -> Result<(), FileError> {
        if self.state.load(Ordering::SeqCst) == MOUNTED { Ok(()) } else { Err(FileError::NotMounted) }
    }

    /// S1: irreversible.
    pub(crate) fn clear_active(&self) {
        self.state.store(DEAD, Ordering::SeqCst);
    }

    pub(crate) fn is_mounted(&self) -> bool {
        self.state.load(Ordering::Acquire) == MOUNTED
    }

    /// Makes a call to the volume's backend and waits for the answer.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        deadline: Option<Tick>,
        make: impl FnOnce(crate::backend::Done<T>) -> Call,
    ) -> Result<T, BackendError> {
        let mut changes = false;
        let make = |done| {
            let call = make(done);
            changes = call.is_change();
            call
        };
        let answer = call_and_wait(&*self.bdi.backend, &*self.engine.clock, deadline, make);
        if changes {
            // Also after an error: a part of it may have happened.
            self.commits().note_change();
        }
        answer
    }

    /// Drops the lists of inodes that wait for write-back and commit.
    pub(crate) fn forget_dirty(&self) {
        drop(self.commits.take());
        self.close_wbs();
    }

    /// Called when the engine is dropped with this volume mounted: breaks the reference cycles between volume and
    /// inodes, and leaves frames and records in the arena as they are.
    pub(crate) fn abandon(&self) {
        self.state.store(DEAD, Ordering::Release);
        let root = self.root.lock().take();
        drop(root);
        self.close_inode_lru();
        drop(self.take_inodes());
        self.unregister_shrinker();
        self.wbs().iter().for_each(|wb| wb.forget_switches());
        self.forget_dirty();
    }
}

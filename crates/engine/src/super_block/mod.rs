//! A mounted volume: its inodes, its write-back, and the state it is in.
//!
//! # States
//! | state | what holds | who leaves it |
//! |---|---|---|
//! | `Mounted` | everything works | umount freezes |
//! | `Frozen` | reads and syncs work, changes are refused | umount: thaws at its deadline, or goes on |
//! | `Dead` | 0 dirty, 0 in flight, no new references; never left | - |
//!
//! # Invariants
//! S1. `Dead` is final. It is set by umount when nothing is dirty and nothing is in flight. Whatever could pin
//!     later has a user's reference, is counted in `syncs`, or is a flusher: the first two were seen to be gone after the
//!     freeze, and the last is kept away ([`quiesce`]).
//! S2. Every inode with users, pages or dirty metadata is in `inodes`, once.
//!
//! # Lock order
//! `inodes` before any inode's locks.
//!
//! # Kernel counterpart
//! `struct super_block`; sem. 1.1.

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
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::backend::{Backend, Call, Found};
use crate::cgroup::{HeldCount, Hold, Memcg};
use crate::engine::Shared;
use crate::error::{BackendError, ErrorKind, FileError, MountError};
use crate::errseq::ErrSeq;
use crate::inode::{Changes, Inode, InodeRef, too_many};
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

/// Shards of the inode hash: enough that two threads seldom meet.
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
    /// Flushers at work. Q1 of [`quiesce`].
    flushers: InFlight,
    /// An unmount has flushed everything: flushers begin nothing. Q2 of [`quiesce`].
    is_quiescing: AtomicBool,
    /// Switches of inodes of this volume to another wb. Kernel: `s_isw_nr_in_flight`.
    switches_in_flight: InFlight,
    pub(crate) cgroup_wbs: CgroupWbs,
    /// Umount has taken every inode out of memory: nobody may come any more.
    is_evicted: AtomicBool,
    /// Unmounted, and its record in the arena not given back yet.
    gone: Mutex<bool>,
    errseq: ErrSeq,
    write_failures: AtomicU64,
    progress_at_ns: AtomicU64,
    pub(crate) open_files: AtomicU32,
    /// Nodes that stay open for those of no tenant.
    held: HeldCount,
    /// Calls of [`SuperBlock::sync`] that are running.
    syncs: AtomicU32,
    /// Somebody unmounts or freezes it.
    pub(crate) is_umounting: AtomicBool,
    pub(crate) flush_backoff: Backoff,
    /// See [`Inode::release_if_clean`].
    pub(crate) releasing: Mutex<()>,
    commits: Commits,
    inodes: [Mutex<HashMap<NodeId, Arc<Inode>>>; INODE_SHARDS],
    /// D1 of [`inodes`].
    departures: AtomicU64,
    idle_nodes: IdleNodes,
    inode_lru: InodeLru,
    /// Until umount has taken it away.
    shrinker: Mutex<Option<ShrinkerRegistration>>,
    /// What the backend has room for.
    pub(crate) space: Space,
    /// Removals of names under way, of files that are not known before the answer.
    pub(crate) removals: Changes,
    /// Times that somebody else changed a file that was dirty here.
    pub(crate) changed_underneath: AtomicU64,
    pub(crate) reads: ReadCounts,
    /// What recovery found no file for.
    pub(crate) rescued: Mutex<Vec<Rescued>>,
    pub(crate) removed: Mutex<Vec<removed::RemovedFile>>,
}

impl SuperBlock {
    pub(crate) fn mount(engine: &Arc<Shared>, name: &str, backend: Arc<dyn Backend>) -> Result<Arc<Self>, MountError> {
        let bad_name = || MountError::BadName(name.into());
        let id = ShortBytes::new(name.as_bytes()).filter(|_| !name.is_empty()).ok_or_else(bad_name)?;
        let root: Found = engine.call(&*backend, None, |done| Call::Root { done }).map_err(MountError::Root)?;
        let gate = engine.gate(backend.limits().device);
        let frames = u64::from(engine.arena.frames());
        let bdi = Arc::new(BackingDevInfo::new(
            name,
            backend,
            gate,
            &engine.tunables,
            frames,
            Arc::clone(&engine.pinned_nodes),
        ));
        let root_wb = BdiWriteback::root(Arc::clone(&bdi), Arc::clone(&engine.pool), Arc::clone(engine.owners.root()));
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
            gone: Mutex::new(LEAVES, false),
            errseq: ErrSeq::new(),
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
            departures: AtomicU64::new(0),
            idle_nodes: IdleNodes::new(),
            inode_lru: InodeLru::new(),
            shrinker: Mutex::new(LEAVES, None),
            space: Space::new(),
            removals: Changes::new(),
            changed_underneath: AtomicU64::new(0),
            reads: ReadCounts::default(),
            rescued: Mutex::new(LEAVES, Vec::new()),
            removed: Mutex::new(LEAVES, Vec::new()),
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

    /// The name it was mounted under.
    pub fn name(&self) -> &str {
        self.bdi.name()
    }

    /// What write-back knows of the device.
    pub fn bdi(&self) -> &Arc<BackingDevInfo> {
        &self.bdi
    }

    /// Age at which dirty data is written back; none where nothing is by itself.
    pub fn dirty_expire(&self) -> Option<Duration> {
        let tunables = &self.engine.tunables;
        (!tunables.dirty_writeback.is_zero()).then_some(tunables.dirty_expire)
    }

    /// Makes everything durable that was written before the call.
    ///
    /// # Errors
    /// The first failure; what failed stays dirty and is retried.
    ///
    /// # Blocking
    /// For the backend.
    pub fn sync(self: &Arc<Self>) -> Result<(), FileError> {
        // Counted before the look at the state, as umount counts after it froze: one of the two sees the other.
        self.syncs.fetch_add(1, Ordering::SeqCst);
        let result = match self.writable() {
            Ok(()) => crate::writeback::sync::sync_volume(self, None)
                .and_then(|()| self.rescue_removed())
                .map_err(FileError::from),
            Err(error) => Err(error),
        };
        self.syncs.fetch_sub(1, Ordering::SeqCst);
        self.engine.room.give();
        result
    }

    pub(crate) fn engine(&self) -> &Arc<Shared> {
        &self.engine
    }

    /// The tenant of what no other is asked to pay for.
    pub fn root_memcg(&self) -> &Arc<Memcg> {
        self.engine.owners.root()
    }

    /// What `memcg` holds; the volume stands for the root.
    pub(crate) fn held_by<'a>(&'a self, memcg: &'a Memcg) -> &'a HeldCount {
        if memcg.is_root() { &self.held } else { &memcg.held }
    }

    /// Whether `memcg` may hold one more node open.
    pub(crate) fn may_hold(&self, memcg: &Memcg) -> bool {
        self.engine.held.has_room(self.held_by(memcg))
    }

    /// Whether a file that does not exist yet could be opened for `memcg` once it is made.
    ///
    /// # Errors
    /// `TooManyOpen`, as [`File::open_for`](crate::File::open_for) of the file would answer.
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

    /// Failed attempts so far; a sync that sees it move has failed.
    pub(crate) fn write_failures(&self) -> u64 {
        self.write_failures.load(Ordering::Acquire)
    }

    /// Something of this volume is in flight: it may hold inodes until it is unpinned.
    pub(crate) fn pin(&self) {
        self.in_flight.pin();
    }

    /// What was in flight has let go of its inodes.
    pub(crate) fn unpin(&self) {
        self.in_flight.unpin();
        self.release_volume();
        self.wake_umount();
    }

    /// Something has ended that an unmount may wait for.
    fn wake_umount(&self) {
        if !self.is_mounted() {
            self.engine.room.give();
        }
    }

    /// Gives the volume's record in the arena back, once the volume is gone and nothing of it is in flight:
    /// after a discarding unmount units may still be. Whoever comes second, the last unpin or the unmount,
    /// finds both under the lock.
    fn release_volume(&self) {
        let mut gone = self.gone.lock();
        if *gone && self.in_flight.count() == 0 {
            *gone = false;
            self.engine.arena.free_volume(self.volume_slot);
        }
    }

    /// Every inode has been evicted: the last who lets go gives the record back.
    pub(crate) fn set_gone(&self) {
        *self.gone.lock() = true;
        self.release_volume();
    }

    pub(crate) fn commits(&self) -> &Commits {
        &self.commits
    }

    pub(crate) fn errseq(&self) -> &ErrSeq {
        &self.errseq
    }

    /// Latches a failed write-back attempt for the volume.
    pub(crate) fn note_failure(&self, kind: ErrorKind) {
        self.errseq.set(kind);
        self.write_failures.fetch_add(1, Ordering::AcqRel);
    }

    /// Something of this volume moved: waiters for room look again.
    pub(crate) fn note_progress(&self) {
        self.progress_at_ns.store(self.engine.clock.now().0, Ordering::Relaxed);
        self.engine.room.give();
    }

    pub(crate) fn progress_at(&self) -> Tick {
        Tick(self.progress_at_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn unstable_pages(&self) -> u64 {
        let mut pages = 0;
        self.for_each_wb(|wb| pages += wb.stat.unstable.read());
        pages
    }

    /// Whether nothing is dirty, in flight or unstable: there is no room to be made here.
    pub(crate) fn is_idle(&self) -> bool {
        self.pages().is_zero()
    }

    /// Refuses when the volume is gone.
    pub(crate) fn alive(&self) -> Result<(), FileError> {
        if self.state.load(Ordering::Acquire) == DEAD { Err(FileError::NotMounted) } else { Ok(()) }
    }

    /// Refuses changes when the volume is frozen or gone.
    pub(crate) fn writable(&self) -> Result<(), FileError> {
        if self.state.load(Ordering::SeqCst) == MOUNTED { Ok(()) } else { Err(FileError::NotMounted) }
    }

    /// S1: no way back.
    pub(crate) fn clear_active(&self) {
        self.state.store(DEAD, Ordering::SeqCst);
    }

    pub(crate) fn is_mounted(&self) -> bool {
        self.state.load(Ordering::Acquire) == MOUNTED
    }

    /// Makes a call to this volume's backend and waits for the answer.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        deadline: Option<Tick>,
        make: impl FnOnce(crate::backend::Done<T>) -> Call,
    ) -> Result<T, BackendError> {
        self.engine.call(&*self.bdi.backend, deadline, make)
    }

    /// Forgets what waits for write-back and commit.
    pub(crate) fn forget_dirty(&self) {
        drop(self.commits.take());
        self.close_wbs();
    }

    /// The engine goes away with this volume mounted: breaks the references between volume and inodes and
    /// leaves frames and records in the arena as they are.
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

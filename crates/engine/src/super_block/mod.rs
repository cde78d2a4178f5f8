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
//!     later has a user's reference or is counted in `syncs`, and both were seen to be gone after the freeze.
//! S2. Every inode with users, pages or dirty metadata is in `inodes`, once.
//!
//! # Lock order
//! `umount_lock` first; `inodes` before any inode's locks.
//!
//! # Kernel counterpart
//! `struct super_block`; sem. 1.1.

mod status;

pub use status::VolumeStatus;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use slackwater_arena::{ShortBytes, VolumeRecord, VolumeSlot};
use slackwater_sync::InFlight;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use slackwater_sync::shim::{Arc, Weak};

use crate::backend::{Backend, Call, Found, Node, NodeKind, Statfs};
use crate::engine::Shared;
use crate::error::{BackendError, ErrorKind, FileError, MountError};
use crate::errseq::ErrSeq;
use crate::inode::{Inode, InodeRef};
use crate::lock_order::{INODE_HASH, LEAVES, RELEASING, S_UMOUNT};
use crate::units::{NodeId, PAGE_BYTES, PageIndex, Tick};
use crate::writeback::commit::Commits;
use crate::writeback::{BackingDevInfo, BdiWriteback};

const MOUNTED: u8 = 0;
const FROZEN: u8 = 1;
const DEAD: u8 = 2;

/// Shards of the inode hash: enough that two threads seldom meet.
const INODE_SHARDS: usize = 16;

/// A leaf of cached pages, for eviction's clock hand.
pub(crate) struct LeafRef {
    pub(crate) inode: Weak<Inode>,
    pub(crate) first: PageIndex,
}

/// A mounted volume. Kernel: `struct super_block`.
pub struct SuperBlock {
    name: String,
    engine: Arc<Shared>,
    bdi: Arc<BackingDevInfo>,
    root_wb: Arc<BdiWriteback>,
    volume_slot: VolumeSlot,
    root_id: NodeId,
    /// The volume's own reference to its root; umount puts it. Kernel: `s_root`.
    pub(crate) root: Mutex<Option<InodeRef>>,
    state: AtomicU8,
    in_flight: InFlight,
    /// Unmounted, and its record in the arena not given back yet.
    gone: Mutex<bool>,
    errseq: ErrSeq,
    write_failures: AtomicU64,
    progress_at_ns: AtomicU64,
    pub(crate) open_files: AtomicU32,
    /// Calls of [`SuperBlock::sync`] that are running.
    syncs: AtomicU32,
    pub(crate) umount_lock: Mutex<()>,
    /// See [`Inode::release_if_clean`].
    pub(crate) releasing: Mutex<()>,
    commits: Commits,
    inodes: [Mutex<HashMap<NodeId, Arc<Inode>>>; INODE_SHARDS],
    pub(crate) lru: Mutex<VecDeque<LeafRef>>,
    /// Length of `lru` after it was last swept, and whether it is being swept.
    pub(crate) lru_swept: AtomicUsize,
    pub(crate) lru_sweeping: AtomicBool,
}

impl SuperBlock {
    pub(crate) fn mount(engine: &Arc<Shared>, name: &str, backend: Arc<dyn Backend>) -> Result<Arc<Self>, MountError> {
        let bad_name = || MountError::BadName(name.into());
        let id = ShortBytes::new(name.as_bytes()).filter(|_| !name.is_empty()).ok_or_else(bad_name)?;
        let root: Found = engine.call(&*backend, None, |done| Call::Root { done }).map_err(MountError::Root)?;
        let gate = engine.gate(backend.limits().device);
        let frames = u64::from(engine.arena.frames());
        let bdi = Arc::new(BackingDevInfo::new(backend, gate, &engine.tunables, frames));
        let root_wb = BdiWriteback::new(Arc::clone(&bdi), Arc::clone(&engine.pool));
        let survivors = engine.take_survivors(name);
        let volume_slot = match &survivors {
            Some(survivors) => survivors.slot,
            None => engine.arena.alloc_volume(&VolumeRecord { id }).ok_or(MountError::TooManyVolumes)?,
        };
        let sb = Arc::new(Self {
            name: name.into(),
            engine: Arc::clone(engine),
            bdi,
            root_wb,
            volume_slot,
            root_id: root.attr.id,
            root: Mutex::new(INODE_HASH, None),
            state: AtomicU8::new(MOUNTED),
            in_flight: InFlight::new(),
            gone: Mutex::new(LEAVES, false),
            errseq: ErrSeq::new(),
            write_failures: AtomicU64::new(0),
            progress_at_ns: AtomicU64::new(engine.clock.now().0),
            open_files: AtomicU32::new(0),
            syncs: AtomicU32::new(0),
            umount_lock: Mutex::new(S_UMOUNT, ()),
            releasing: Mutex::new(RELEASING, ()),
            commits: Commits::new(),
            inodes: std::array::from_fn(|_| Mutex::new(INODE_HASH, HashMap::new())),
            lru: Mutex::new(LEAVES, VecDeque::new()),
            lru_swept: AtomicUsize::new(0),
            lru_sweeping: AtomicBool::new(false),
        });
        sb.root_wb.set_super_block(&sb);
        let root = sb.iget(root);
        *sb.root.lock() = Some(root);
        if let Some(survivors) = survivors
            && let Err(error) = sb.adopt(&survivors)
        {
            sb.abandon();
            engine.return_survivors(survivors);
            return Err(error);
        }
        Ok(sb)
    }

    /// The name it was mounted under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What write-back knows of the device.
    pub fn bdi(&self) -> &Arc<BackingDevInfo> {
        &self.bdi
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
            Ok(()) => crate::writeback::sync::sync_volume(self, None).map_err(FileError::from),
            Err(error) => Err(error),
        };
        self.syncs.fetch_sub(1, Ordering::SeqCst);
        self.engine.room.give();
        result
    }

    /// Space on the backend.
    ///
    /// # Errors
    /// The backend's.
    ///
    /// # Blocking
    /// For the backend.
    pub fn statfs(&self) -> Result<Statfs, FileError> {
        self.alive()?;
        Ok(self.call(None, |done| Call::Statfs { done })?)
    }

    pub(crate) fn engine(&self) -> &Arc<Shared> {
        &self.engine
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

    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Whether anything of this volume is in flight, or may put something there without an inode in use.
    pub(crate) fn is_quiet(&self) -> bool {
        self.syncs.load(Ordering::SeqCst) == 0 && self.in_flight.count() == 0
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
        if !self.is_mounted() {
            self.engine.room.give(); // an unmount may wait for it
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
        self.root_wb.stat.unstable.read()
    }

    /// Whether nothing is dirty, in flight or unstable: there is no room to be made here.
    pub(crate) fn is_idle(&self) -> bool {
        let stat = &self.root_wb.stat;
        stat.reclaimable.sum() + stat.writeback.sum() + stat.unstable.sum() == 0
    }

    /// Refuses when the volume is gone.
    pub(crate) fn alive(&self) -> Result<(), FileError> {
        if self.state.load(Ordering::Acquire) == DEAD { Err(FileError::NotMounted) } else { Ok(()) }
    }

    /// Refuses changes when the volume is frozen or gone.
    pub(crate) fn writable(&self) -> Result<(), FileError> {
        if self.state.load(Ordering::SeqCst) == MOUNTED { Ok(()) } else { Err(FileError::NotMounted) }
    }

    /// Refuses changes from now on, and waits for those that are running: each holds its inode's `rwsem`,
    /// under which it looked at the state. False if one still runs at `deadline`; the caller thaws.
    ///
    /// # Blocking
    /// For changes that wait for the backend, until `deadline` at most.
    pub(crate) fn freeze(&self, deadline: Option<Tick>) -> bool {
        self.state.store(FROZEN, Ordering::SeqCst);
        for inode in self.all_inodes() {
            while inode.rwsem.try_write().is_none() {
                if !self.pause(deadline) {
                    return false;
                }
            }
        }
        true
    }

    /// Waits a moment, or until something of this volume ends, for who polls what has no wake-up of its own.
    /// False at the deadline, and in an engine that is driven by hand, where nothing would change.
    pub(crate) fn pause(&self, deadline: Option<Tick>) -> bool {
        const MOMENT: Duration = Duration::from_millis(5);
        let now = self.engine.clock.now();
        if deadline.is_some_and(|deadline| deadline <= now) || self.engine.tunables.flusher_threads == 0 {
            return false;
        }
        self.engine.room.pause(deadline.map_or(MOMENT, |deadline| deadline.since(now).min(MOMENT)));
        true
    }

    pub(crate) fn thaw(&self) {
        self.state.store(MOUNTED, Ordering::Release);
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

    fn shard(&self, id: NodeId) -> &Mutex<HashMap<NodeId, Arc<Inode>>> {
        &self.inodes[id.ino as usize % INODE_SHARDS]
    }

    /// The inode of a node that the backend found, with a reference for the caller. An inode that is cached
    /// keeps its own size and times: those of the backend may be older.
    pub(crate) fn iget(self: &Arc<Self>, found: Found) -> InodeRef {
        let Found { node, handle, attr } = found;
        let mut shard = self.shard(attr.id).lock();
        if let Some(inode) = shard.get(&attr.id) {
            let inode = InodeRef::new(inode);
            drop(shard);
            inode.refresh_from_lookup(&attr);
            return inode;
        }
        // The node is kept for what can be open; a file drops it when it is neither open nor dirty.
        let node: Option<Node> = Some(node);
        let inode = Inode::new(Arc::clone(self), Arc::clone(&self.root_wb), attr, handle, node);
        let result = InodeRef::new(&inode);
        shard.insert(attr.id, inode);
        result
    }

    /// The root directory.
    ///
    /// # Errors
    /// `NotMounted` after unmount.
    pub fn root(&self) -> Result<InodeRef, FileError> {
        self.root.lock().clone().ok_or(FileError::NotMounted)
    }

    /// The last user of an inode is gone. It stays cached while it has pages; without a name left its pages
    /// are dropped.
    pub(crate) fn last_user_gone(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.id()).lock();
        if inode.users() != 0 {
            return; // somebody found it again meanwhile
        }
        let unlinked = {
            let mut state = inode.state.lock();
            let unlinked = state.attr.nlink == 0 && inode.kind() == NodeKind::File;
            if unlinked {
                state.doomed = true;
                state.meta = 0;
            }
            unlinked
        };
        let keep = !unlinked && (inode.mapping.count_unclean() != 0 || !inode.mapping.is_empty());
        let metadata = {
            let state = inode.state.lock();
            !unlinked && !inode.is_clean(&state)
        };
        if !keep && !metadata {
            remove_same(&mut shard, inode);
        }
        drop(shard);
        if unlinked {
            self.drop_pages(inode);
            let _ = inode.wb().settle(inode, self.engine.clock.now(), false);
        }
        inode.release_if_clean();
        if unlinked {
            self.note_progress(); // its frames may be what a writer waits for
        }
    }

    /// Takes an inode without users and pages out of the hash.
    pub(crate) fn forget_if_unused(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.id()).lock();
        let clean = inode.is_clean(&inode.state.lock());
        if inode.users() == 0 && clean && inode.mapping.is_empty() {
            remove_same(&mut shard, inode);
        }
    }

    /// Drops every page that no unit holds, whatever its marks. The inode is doomed, or nothing of it is
    /// dirty.
    pub(crate) fn drop_pages(&self, inode: &Inode) {
        crate::writeback::cancel_pages(inode, PageIndex(0));
    }

    /// All inodes in memory.
    pub(crate) fn all_inodes(&self) -> Vec<Arc<Inode>> {
        self.inodes.iter().flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>()).collect()
    }

    /// The inodes of which something has still to reach the backend.
    pub(crate) fn unclean_inodes(&self) -> Vec<Arc<Inode>> {
        let mut inodes = self.all_inodes();
        inodes.retain(|inode| !inode.is_clean(&inode.state.lock()));
        inodes
    }

    /// Whether anything has still to reach the backend.
    pub(crate) fn is_clean(&self) -> bool {
        self.inodes.iter().all(|shard| shard.lock().values().all(|inode| inode.is_clean(&inode.state.lock())))
    }

    /// Bytes that are not durably in the backend.
    pub(crate) fn unclean_bytes(&self) -> u64 {
        self.all_inodes().iter().map(|inode| inode.mapping.count_unclean() * PAGE_BYTES).sum()
    }

    /// Empties the inode hash; the references go with the result.
    pub(crate) fn take_inodes(&self) -> Vec<Arc<Inode>> {
        self.inodes.iter().flat_map(|shard| shard.lock().drain().map(|(_, inode)| inode).collect::<Vec<_>>()).collect()
    }

    /// Forgets what waits for write-back and commit.
    pub(crate) fn forget_dirty(&self) {
        drop(self.commits.take());
        self.root_wb.abandon();
    }

    /// The engine goes away with this volume mounted: breaks the references between volume and inodes and
    /// leaves frames and records in the arena as they are.
    pub(crate) fn abandon(&self) {
        self.state.store(DEAD, Ordering::Release);
        self.lru.lock().clear();
        let root = self.root.lock().take();
        drop(root);
        drop(self.take_inodes());
        self.forget_dirty();
    }
}

/// Takes `inode` out of its shard, unless another inode is there under its id by now.
fn remove_same(shard: &mut HashMap<NodeId, Arc<Inode>>, inode: &Arc<Inode>) {
    if shard.get(&inode.id()).is_some_and(|held| Arc::ptr_eq(held, inode)) {
        shard.remove(&inode.id());
    }
}

//! A file, directory or symbolic link of a mounted volume, and its cached state.
//!
//! # Invariants
//! N1. `dirtied_when` is set exactly while the inode is dirty and no flusher has taken it since. It is the inode's age
//!     on the lists of its wb.
//! N2. A dirty inode holds an open backend node and a record in the arena. Both are taken before its first page is
//!     dirtied, and released when no page is dirty or unstable and the file is not open.
//! N3. `meta` bits are set under the inode lock and cleared when a call that carries their values has been submitted. A
//!     failed call sets them again.
//! N4. `size_bytes` changes only with `rwsem` held for writing, and may be read without it.
//!
//! # Lock order
//! `rwsem` (`I_RWSEM`), then the wb's `LIST_LOCK`, then `state` (`I_LOCK`), then the mapping.
//!
//! # Lifetime
//! Counted references keep the memory: from the inode hash, its wb's list and every I/O in flight. `users` counts the
//! [`InodeRef`]s, which use it as a file. An inode without users stays cached while it has pages.
//!
//! # Kernel counterpart
//! `struct inode`.

mod errors;
mod openers;
mod owner;
mod record;
mod reported;

pub(crate) use errors::OnWriteError;
pub(crate) use openers::{Openers, too_many};
pub(crate) use record::{DOOMED, NAMELESS, REMOVING, dirtied_at};
pub(crate) use reported::{Change, Changes};

use std::fmt;
use std::ops::Deref;

use slackwater_arena::FrameId;
use slackwater_sync::gate;
use slackwater_sync::lock::{Mutex, RwLock};
use slackwater_sync::shim::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use slackwater_sync::shim::{Arc, thread};

use crate::backend::{Attr, Call, FileHandle, Node, NodeKind, NodeSupply};
use crate::error::{BackendError, ErrorKind};
use crate::errseq::ErrSeq;
use crate::lock_order::{I_LOCK, I_RWSEM};
use crate::page_cache::{AddressSpace, LeafState, Mark};
use crate::super_block::{LruPlace, SuperBlock};
use crate::units::{NodeId, PageIndex, Tick, Timestamp};
use crate::writeback::Foreign;
use owner::Owner;
use reported::Reported;

/// Dirty metadata bits, which a flush must still send to the backend.
pub(crate) mod meta {
    /// Times, which fdatasync need not write. Kernel: `I_DIRTY_SYNC`.
    pub(crate) const DIRTY_SYNC: u8 = 1;
    /// Needed to read the data back. Kernel: `I_DIRTY_DATASYNC`.
    pub(crate) const DIRTY_DATASYNC: u8 = 2;
}

const NO_SLOT: u32 = u32::MAX;
/// Value of `Inode::truncate_from` while no truncation is in progress.
pub(crate) const NO_TRUNCATE: u64 = u64::MAX;

/// A file, directory or link of a mounted volume. Kernel: `struct inode`.
pub struct Inode {
    id: NodeId,
    kind: NodeKind,
    handle: FileHandle,
    sb: Arc<SuperBlock>,
    owner: Owner,
    /// Held for writing by every change of the size, for reading by overwrites.
    pub(crate) rwsem: RwLock<()>,
    pub(crate) mapping: AddressSpace,
    pub(crate) errseq: ErrSeq,
    /// Failed write-back attempts. A sync during which this changes has failed.
    pub(crate) write_failures: AtomicU32,
    /// Failed commits of this inode alone.
    pub(crate) commit_failures: AtomicU64,
    /// Background units in flight.
    pub(crate) units: AtomicU32,
    /// Our calls that change the file on the backend.
    pub(crate) changes: Changes,
    /// Open descriptions.
    pub(crate) openers: AtomicU32,
    /// Whether the inode is on the super block's list of idle nodes, and whether it was used since it was last examined
    /// there.
    pub(crate) idle_listed: AtomicBool,
    pub(crate) idle_used: AtomicBool,
    /// Place among the possibly unneeded inodes.
    pub(crate) lru: LruPlace,
    pub(crate) state: Mutex<InodeState>,
    size_bytes: AtomicU64,
    /// Size of the backing file. Uncached pages at or beyond it are zeroes.
    pub(crate) backing_bytes: AtomicU64,
    /// End of the space ever allocated to the backend's file. A page that becomes dirty beyond it needs space.
    pub(crate) allocated_to: AtomicU64,
    /// The backend has truncated the file to nothing, and data written since may not be durable.
    pub(crate) emptied: AtomicBool,
    /// Pages from this index on are being truncated and are not written back; [`NO_TRUNCATE`] otherwise.
    pub(crate) truncate_from: AtomicU64,
    mtime_ns: AtomicI64,
    users: AtomicU32,
    slot: AtomicU32,
    /// Slot in the wb's lists; protected by its `LIST_LOCK`.
    list_slot: AtomicU32,
}

/// The part of an inode that `Inode::state` protects.
pub(crate) struct InodeState {
    /// Attributes from the backend's last answer; size and mtime are in the inode.
    pub(crate) attr: Attr,
    pub(crate) reported: Reported,
    /// The ctime left on the backend by our last metadata flush, if no other program changed anything at the same time.
    pub(crate) flush_ctime: Option<Timestamp>,
    /// An mtime that a program has set explicitly, which says nothing about the time of a write.
    pub(crate) chosen_mtime: Option<Timestamp>,
    /// Open while the inode is not clean; otherwise it may have been released (`super_block::idle_nodes`).
    pub(crate) node: Option<Node>,
    pub(crate) dirtied_when: Option<Tick>,
    /// Bits of [`meta`].
    pub(crate) meta: u8,
    /// The turn to change attributes is taken; see `writeback::setattr_turn`.
    pub(crate) meta_in_flight: bool,
    /// Number of answered calls that carried metadata.
    pub(crate) meta_answered: u64,
    /// A commit of this inode is running, alone or with the volume's.
    pub(crate) committing: bool,
    /// On the super block's list of inodes with unstable pages.
    pub(crate) unstable_listed: bool,
    /// A write-back attempt failed since the inode was last settled.
    pub(crate) failed: bool,
    /// Consecutive failed attempts, and when the next is due.
    pub(crate) failures: u32,
    pub(crate) retry_at: Option<Tick>,
    /// No name and no user is left: pages are dropped instead of written.
    pub(crate) doomed: bool,
    /// This volume created it without a name, or removed its last name.
    pub(crate) nameless: bool,
    pub(crate) openers: Openers,
    /// Tenants other than its wb's that have been writing it.
    pub(crate) foreign: Foreign,
}

/// Result of an attempt to release an idle node.
pub(crate) enum IdleNode {
    /// The node was released. Dropping the last clone closes it.
    Released(Option<Node>),
    /// The inode is not clean, or may become dirty soon. It is examined again when it is clean.
    InUse,
    /// The node could not be found again.
    Kept,
}

impl Inode {
    pub(crate) fn new(sb: Arc<SuperBlock>, attr: Attr, handle: FileHandle, node: Option<Node>) -> Arc<Self> {
        let reported = Reported::new(&attr, sb.engine().clock.now());
        Arc::new(Self {
            id: attr.id,
            kind: attr.kind,
            handle,
            owner: Owner::new(&sb.engine().pool.rcu, Arc::clone(sb.root_wb())),
            sb,
            rwsem: RwLock::new(I_RWSEM, ()),
            mapping: AddressSpace::new(),
            errseq: ErrSeq::new(),
            write_failures: AtomicU32::new(0),
            commit_failures: AtomicU64::new(0),
            units: AtomicU32::new(0),
            changes: Changes::new(),
            openers: AtomicU32::new(0),
            idle_listed: AtomicBool::new(false),
            idle_used: AtomicBool::new(false),
            lru: LruPlace::new(),
            size_bytes: AtomicU64::new(attr.size_bytes),
            backing_bytes: AtomicU64::new(attr.size_bytes),
            allocated_to: AtomicU64::new(attr.size_bytes),
            emptied: AtomicBool::new(false),
            truncate_from: AtomicU64::new(NO_TRUNCATE),
            mtime_ns: AtomicI64::new(attr.mtime.0),
            users: AtomicU32::new(0),
            slot: AtomicU32::new(NO_SLOT),
            list_slot: AtomicU32::new(NO_SLOT),
            state: Mutex::new(
                I_LOCK,
                InodeState {
                    attr,
                    reported,
                    flush_ctime: None,
                    chosen_mtime: None,
                    node,
                    dirtied_when: None,
                    meta: 0,
                    meta_in_flight: false,
                    meta_answered: 0,
                    committing: false,
                    unstable_listed: false,
                    failed: false,
                    failures: 0,
                    retry_at: None,
                    doomed: false,
                    nameless: false,
                    openers: Openers::default(),
                    foreign: Foreign::default(),
                },
            ),
        })
    }

    /// The identity of the file.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// File, directory or symbolic link.
    pub fn kind(&self) -> NodeKind {
        self.kind
    }

    /// The handle by which the backend can reopen it.
    pub fn handle(&self) -> &FileHandle {
        &self.handle
    }

    /// The volume of the inode.
    pub fn super_block(&self) -> &Arc<SuperBlock> {
        &self.sb
    }

    /// Size as programs see it, cached writes included.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Time of the last write, cached writes included.
    pub fn mtime(&self) -> Timestamp {
        Timestamp(self.mtime_ns.load(Ordering::Relaxed))
    }

    /// Bytes that would be lost if the cache vanished: dirty, under write-back or not yet durable.
    pub fn unclean_bytes(&self) -> u64 {
        self.mapping.count_unclean() * crate::units::PAGE_BYTES
    }

    pub(crate) fn set_size(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Release);
        self.record_size(size_bytes);
    }

    /// Sets the size to that of the backend's file, with which all cached pages agree.
    pub(crate) fn adopt_size(&self, size_bytes: u64) {
        self.set_size(size_bytes);
        self.backing_bytes.store(size_bytes, Ordering::Release);
        self.allocated_to.store(size_bytes, Ordering::Release);
    }

    /// Whether a page that becomes dirty needs space on the backend.
    pub(crate) fn needs_space(&self, index: PageIndex) -> bool {
        index >= PageIndex::end_of(self.allocated_to.load(Ordering::Acquire))
    }

    /// Whether a truncation is in progress; its pages are unavailable until it ends.
    pub(crate) fn is_truncating(&self) -> bool {
        self.truncate_from.load(Ordering::Acquire) != NO_TRUNCATE
    }

    pub(crate) fn set_mtime(&self, mtime: Timestamp) {
        self.mtime_ns.store(mtime.0, Ordering::Relaxed);
        if let Some(slot) = self.slot() {
            self.sb.engine().arena.set_mtime_ns(slot, mtime.0);
        }
    }

    /// Attributes as programs see them, cached writes included.
    pub fn attr(&self) -> Attr {
        let (mut attr, chosen_mtime) = {
            let state = self.state.lock();
            (state.attr, state.chosen_mtime)
        };
        if self.kind == NodeKind::File {
            attr.size_bytes = self.size_bytes();
            attr.mtime = self.mtime();
            // Data not yet written will take this much: a file with data must not look sparse.
            attr.allocated_bytes = attr.allocated_bytes.max(self.unclean_bytes());
            if chosen_mtime != Some(attr.mtime) {
                attr.ctime = attr.ctime.max(attr.mtime);
            }
        }
        attr
    }

    /// The open backend node, reopened if it was released.
    ///
    /// # Errors
    /// `Stale` if the file no longer exists, or the backend's error.
    ///
    /// # Blocking
    /// Waits for the backend if the node has to be reopened.
    pub(crate) fn node(&self) -> Result<Node, BackendError> {
        self.lru.mark_used();
        if let Some(node) = self.open_node() {
            if self.sb.bdi().backend.node_supply() != NodeSupply::Enough {
                self.sb.bound_idle_nodes();
            }
            return Ok(node);
        }
        let (handle, id) = (self.handle.clone(), Some(self.id));
        match self.sb.call(None, |done| Call::Reopen { handle, id, nameless: false, done }) {
            Ok(found) => Ok(self.adopt_node(found.node)),
            // A removal of ours may have taken its last name, and then brings the node (A1 of `names`).
            Err(error) if error.kind() == ErrorKind::Stale => {
                gate::pass("node.stale");
                self.sb.wait_for_removals();
                self.open_node().ok_or(error)
            }
            Err(error) => Err(error),
        }
    }

    /// The backend node, if it is open.
    pub(crate) fn open_node(&self) -> Option<Node> {
        let node = self.state.lock().node.clone()?;
        if !self.idle_used.load(Ordering::Relaxed) {
            self.idle_used.store(true, Ordering::Relaxed);
        }
        Some(node)
    }

    /// Whether we removed its last name and its node was released: no other program can change it, and the backend
    /// cannot be asked about it.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        let state = self.state.lock();
        state.nameless && state.node.is_none()
    }

    /// Stores `node`, unless the inode has one. Returns the inode's node.
    pub(crate) fn adopt_node(&self, node: Node) -> Node {
        let mut state = self.state.lock();
        if let Some(kept) = state.node.clone() {
            drop(state); // before ours is closed
            return kept;
        }
        state.node = Some(node.clone());
        drop(state);
        self.sb.note_idle(self);
        node
    }

    /// Releases the node of an inode that is clean and can be found again. A node that nothing else leads to is
    /// released only while nodes are `short`, and never while it is held (O1 of `openers`).
    pub(crate) fn take_idle_node(&self, short: bool) -> IdleNode {
        let mut state = self.state.lock();
        // With a record, it may be dirtied at any moment.
        if self.slot().is_some() || !self.is_clean(&state) {
            return IdleNode::InUse;
        }
        let stays_open = !self.sb.bdi().limits().reopens && self.openers.load(Ordering::SeqCst) != 0;
        let is_held = state.nameless && state.openers.keep_node();
        let has_name = state.attr.nlink != 0 && !state.nameless;
        if stays_open || is_held || !(has_name || short) {
            return IdleNode::Kept;
        }
        IdleNode::Released(state.node.take())
    }

    pub(crate) fn list_slot(&self) -> Option<u32> {
        match self.list_slot.load(Ordering::Relaxed) {
            NO_SLOT => None,
            slot => Some(slot),
        }
    }

    pub(crate) fn set_list_slot(&self, slot: Option<u32>) {
        self.list_slot.store(slot.unwrap_or(NO_SLOT), Ordering::Relaxed);
    }

    /// Whether the inode is clean: nothing of it is dirty, unstable or in flight.
    pub(crate) fn is_clean(&self, state: &InodeState) -> bool {
        self.has_clean_data() && state.meta == 0 && !state.meta_in_flight && !state.committing
    }

    /// Whether its data is clean; its times and mode may be dirty.
    pub(crate) fn has_clean_data(&self) -> bool {
        self.mapping.count_unclean() == 0
    }

    /// Whether I/O of this inode is in flight.
    pub(crate) fn has_io(&self, state: &InodeState) -> bool {
        self.mapping.count(Mark::Writeback) != 0 || state.meta_in_flight
    }

    /// Releases the node and record of an inode (N2), if it is clean and is neither being written nor open.
    pub(crate) fn release_if_clean(&self) {
        let idle = self.take_if_clean();
        // Closing a descriptor may enter the kernel, so no lock is held.
        drop(idle);
        self.sb.note_idle(self);
        self.sb.note_unused(self);
    }

    fn take_if_clean(&self) -> Option<Node> {
        // Serialised: two threads that end the last two activities at once could otherwise each see the other and give
        // up. A writer that gets in the way is a user, and the last user calls this again. A freeze is not a user, but
        // it holds this lock.
        let _one = self.sb.releasing.lock();
        let _exclusive = self.rwsem.try_write()?;
        let mut state = self.state.lock();
        if !self.is_clean(&state) {
            return None;
        }
        if let Some(slot) = self.slot() {
            self.slot.store(NO_SLOT, Ordering::Release);
            self.sb.engine().arena.free_inode(slot);
            self.sb.bdi().node_unpinned();
        }
        // No longer written: while the backend has it open for writing, the file cannot be executed from the source
        // directory.
        let is_open = self.openers.load(Ordering::SeqCst) != 0 || state.attr.nlink == 0;
        if self.users() == 0 || !is_open { state.node.take() } else { None }
    }

    /// Waits until no thread copies to or from the page's frame, which takes a fraction of a microsecond. It does not
    /// wait for the frame itself, which may belong to another page by now and be filled by a hung backend.
    pub(crate) fn wait_for_copy(&self, index: PageIndex, frame: FrameId) {
        let arena = &self.sb.engine().arena;
        let copying = |leaf: &mut LeafState, slot: usize| {
            leaf.frame(slot) == Some(frame) && leaf.has(Mark::Uptodate, slot) && arena.try_read(frame).is_none()
        };
        loop {
            thread::yield_now();
            if self.mapping.with_page(index, copying) != Some(true) {
                return;
            }
        }
    }

    pub(crate) fn users(&self) -> u32 {
        self.users.load(Ordering::Acquire)
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// Drops a user. True if it was the last.
    pub(crate) fn drop_user(&self) -> bool {
        self.users.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inode({} {:?} {} bytes)", self.id, self.kind, self.size_bytes())
    }
}

/// A user's reference to an inode. While one exists, the volume is busy and the inode keeps its identity, even if its
/// last name is removed. Kernel: `i_count` with `iget` and `iput`.
pub struct InodeRef(Arc<Inode>);

impl InodeRef {
    /// Adds a reference. The caller's own reference keeps the inode alive.
    pub(crate) fn new(inode: &Arc<Inode>) -> Self {
        inode.add_user();
        Self(Arc::clone(inode))
    }

    pub(crate) fn arc(&self) -> &Arc<Inode> {
        &self.0
    }
}

impl Clone for InodeRef {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Deref for InodeRef {
    type Target = Inode;
    fn deref(&self) -> &Inode {
        &self.0
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        if self.0.drop_user() {
            self.0.sb.iput_final(&self.0);
        }
    }
}

impl fmt::Debug for InodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

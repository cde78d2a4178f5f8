//! The nodes that the kernel knows: node numbers for inodes, and lookup counts.
//!
//! # Numbers
//! If the backend's handle of an inode is a number ([`FileHandle::number`](slackwater::backend::FileHandle::number)),
//! the kernel gets that number as the node number. It is the same for as long as the inode exists. The kernel may
//! therefore ask for it after both sides have forgotten the inode, or after another mount: a file handle kept by a
//! program or an NFS client contains this number. Other inodes are numbered by a counter, and such a number is stale
//! once it is forgotten. The counter of a kept mount is in its record. If the keeper has a descriptor of each node
//! ([`kept_nodes`](crate::volume::kept_nodes)), all inodes are numbered by it.
//!
//! # Invariants
//! K1. An inode has one number while the kernel knows it, whichever name it was found by. A pair of number and
//!     generation is never given to another inode. `generation` is 0 where the number is the backend's, and specific to
//!     this mount where it was counted.
//! K2. `lookups` is the count that the kernel will return by FORGET; it changes only under the shard's lock. At 0 the
//!     node leaves the table, and its reference to the inode is dropped outside the lock.
//! K3. The node number and the inode's number in the backend both determine the shard, and the two maps of a shard
//!     change together. [`ROOT_ID`] belongs to the root, and one number to the [probe](coherence).
//!
//! # Lock order
//! A shard's lock is a leaf.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use slackwater::backend::{FileHandle, Found, NodeKind};
use slackwater::{InodeRef, NodeId};
use slackwater_fuse::abi::ROOT_ID;
use slackwater_sync::lock::RwLock;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::coherence;
use crate::lock_order::LEAF;
use crate::takeover::Keeping;
use crate::volume::dontcache::DontcacheState;
use crate::volume::emptied::Emptied;
use crate::volume::inherited_numbers::InheritedNumbers;
use crate::volume::kernel_pages::KernelPages;

/// Shards of the table: enough that threads rarely contend.
const SHARDS: u64 = 32;

/// A drop by this many nodes frees some MiB of memory.
const SHRINK_MIN: usize = 4096;
/// A shard's maps below this capacity are not shrunk.
const CAPACITY_MIN: usize = 64;

/// Generation of a node whose number is the backend's.
const BACKEND_GENERATION: u32 = 0;

/// An inode that the kernel has a number for.
#[derive(Debug)]
pub(super) struct Node {
    id: u64,
    generation: u32,
    pub(super) inode: InodeRef,
    lookups: AtomicU64,
    /// Handles open for writing; while there are any, a flag that forbids writing cannot be set.
    pub(super) writers: AtomicU32,
    /// The inode's pages in the kernel's page cache, and the ranges written around them.
    pub(super) kernel_pages: KernelPages,
    /// Whether the kernel may have its pages from an earlier process, which may be older than the file (T3 of
    /// `inherited`).
    pub(super) may_have_old_pages: AtomicBool,
    /// Open files of the inode.
    pub(super) opened: AtomicU32,
    /// Whether the keeper has a descriptor of it (R1 of `removed`, N1 of `kept_nodes`).
    pub(super) is_kept: AtomicBool,
    /// Whether it may be in the record of a kept mount, with errors or as emptied (E3 of `reported`).
    pub(super) is_remembered: AtomicBool,
    /// Number of parked writes; later ones queue behind them.
    pub(super) parked: AtomicU32,
    /// Whether it was truncated to zero and not closed since: the next data replaces what the backend has.
    pub(super) emptied: Emptied,
    /// Whether it stays out of the cache, as set on the file itself.
    pub(super) dontcache: DontcacheState,
    /// Inode number of the directory in which it was last found, for `..`.
    pub(super) parent_ino: AtomicU64,
}

impl Node {
    fn new((id, generation): (u64, u32), inode: InodeRef) -> Arc<Self> {
        let ino = inode.id().ino;
        Arc::new(Self {
            id,
            generation,
            inode,
            lookups: AtomicU64::new(0),
            writers: AtomicU32::new(0),
            kernel_pages: KernelPages::new(),
            may_have_old_pages: AtomicBool::new(false),
            opened: AtomicU32::new(0),
            is_kept: AtomicBool::new(false),
            is_remembered: AtomicBool::new(false),
            parked: AtomicU32::new(0),
            emptied: Emptied::default(),
            dontcache: DontcacheState::unknown(),
            parent_ino: AtomicU64::new(ino),
        })
    }

    /// The kernel's number for it.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Whether it is a directory or an open file.
    pub(super) fn is_used(&self) -> bool {
        self.inode.kind() == NodeKind::Directory || self.opened.load(Ordering::Acquire) > 0
    }

    pub(super) fn is_root(&self) -> bool {
        self.id == ROOT_ID
    }

    /// Distinguishes it from other nodes with the same number.
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }
}

/// Traces of a node that the kernel has forgotten, which nothing needs any more.
#[derive(Copy, Clone, Default)]
pub(super) struct Left {
    /// Whether the keeper has a descriptor of the node (N1 of `kept_nodes`).
    pub(super) is_kept: bool,
    /// Whether the node may be in the record of the mount (E3 of `reported`).
    pub(super) is_remembered: bool,
}

/// Where an inode's node is in the table.
#[derive(Copy, Clone)]
struct Hash {
    shard: u64,
    within: u64,
}

#[derive(Default)]
struct Shard {
    by_id: HashMap<u64, Arc<Node>>,
    /// Numbers of an earlier process whose nodes have not been found yet.
    inherited: InheritedNumbers,
    /// Hashed by [`Nodes::hash`]; a node knows its inode.
    by_inode: HashTable<Arc<Node>>,
}

/// All nodes that the kernel knows.
pub(super) struct Nodes {
    root: NodeId,
    shards: Vec<RwLock<Shard>>,
    next: AtomicU64,
    /// The keeper and the record of a kept mount. The record has the counter of nodes.
    keeping: Option<Arc<Keeping>>,
    count: AtomicUsize,
    /// Highest count since the last [drop](Self::has_shrunk).
    peak: AtomicUsize,
    /// Generation of counted nodes.
    generation: u32,
    hasher: RandomState,
    /// Whether the kernel knows nodes from an earlier process.
    is_inherited: AtomicBool,
}

impl Nodes {
    pub(super) fn new(root: InodeRef, keeping: Option<&Arc<Keeping>>) -> Self {
        let hasher = RandomState::new();
        let random = hasher.hash_one(ROOT_ID) as u32 | 1;
        let nodes = Self {
            root: root.id(),
            shards: (0..SHARDS).map(|_| RwLock::new(LEAF, Shard::default())).collect(),
            next: AtomicU64::new(1),
            keeping: keeping.cloned(),
            count: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            generation: keeping.map_or(random, |keeping| keeping.record.generation(random)),
            hasher,
            is_inherited: AtomicBool::new(false),
        };
        nodes.shard(ROOT_ID).write().by_id.insert(ROOT_ID, Node::new((ROOT_ID, BACKEND_GENERATION), root));
        nodes
    }

    /// The kernel knows nodes from an earlier process.
    pub(super) fn set_inherited(&self) {
        self.is_inherited.store(true, Ordering::Relaxed);
    }

    /// Adds a number of an earlier process, which is given to the inode with this handle. Returns a number that the
    /// inode had before, which the kernel has forgotten.
    pub(super) fn inherit(&self, id: u64, found: Found) -> Option<u64> {
        let earlier = self.shard(id).write().inherited.add(id, found.handle, found.node);
        earlier.map(|(earlier, _)| earlier)
    }

    /// The handle of an inode to which an earlier process gave this number, if it has not been found yet.
    pub(super) fn inherited(&self, id: u64) -> Option<FileHandle> {
        self.shard(id).read().inherited.handle_of(id)
    }

    /// The node with this number.
    pub(super) fn get(&self, id: u64) -> Option<Arc<Node>> {
        self.shard(id).read().by_id.get(&id).cloned()
    }

    /// The number under which the kernel knows an inode, if it does.
    pub(super) fn number_of(&self, inode: NodeId) -> Option<u64> {
        if inode == self.root {
            return Some(ROOT_ID);
        }
        let hash = self.hash(inode);
        self.shard(hash.shard).read().find(hash, inode).map(|node| node.id)
    }

    fn hash(&self, inode: NodeId) -> Hash {
        Hash { shard: inode.ino % SHARDS, within: self.hasher.hash_one(inode) }
    }

    /// The node of `inode`, with its lookup count raised by one; created if the kernel did not know the inode. `None`
    /// for the root, which is not found under a name.
    pub(super) fn look_up(&self, inode: InodeRef) -> Option<Arc<Node>> {
        self.node_of(inode, 1).map(|(node, _)| node)
    }

    /// The node of `inode`, to which an earlier process gave the number `id`. It counts as looked up once, however often
    /// it is found. `None` if the inode has another number.
    pub(super) fn find_again(&self, id: u64, inode: InodeRef) -> Option<Arc<Node>> {
        let (node, is_new) = self.node_of(inode, 0)?;
        if node.id != id {
            if is_new {
                self.forget(node.id, 1);
            }
            return None;
        }
        Some(node)
    }

    /// The node of an inode, and whether it is new. The count of one in the table is raised by `lookups`.
    fn node_of(&self, inode: InodeRef, lookups: u64) -> Option<(Arc<Node>, bool)> {
        if inode.id() == self.root {
            return None;
        }
        let hash = self.hash(inode.id());
        let mut shard = self.shard(hash.shard).write();
        if let Some(node) = shard.find(hash, inode.id()) {
            let node = Arc::clone(node);
            node.lookups.fetch_add(lookups, Ordering::Relaxed);
            drop(shard); // `inode` is dropped after the lock
            return Some((node, false));
        }
        let inherited = shard.inherited.take(inode.handle());
        let number = match &inherited {
            Some((id, _)) => (*id, self.generation),
            None => self.number_for(&shard, &inode),
        };
        let node = Node::new(number, inode);
        node.is_kept.store(inherited.is_some(), Ordering::Relaxed);
        node.may_have_old_pages.store(self.is_inherited.load(Ordering::Relaxed), Ordering::Relaxed);
        node.lookups.store(1, Ordering::Relaxed);
        let hash_of = |node: &Arc<Node>| self.hash(node.inode.id()).within;
        shard.by_inode.insert_unique(hash.within, Arc::clone(&node), hash_of);
        shard.by_id.insert(node.id, Arc::clone(&node));
        drop(shard);
        drop(inherited);
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if count > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(count, Ordering::Relaxed);
        }
        Some((node, true))
    }

    /// Number and generation for a node that the kernel did not know.
    fn number_for(&self, shard: &Shard, inode: &InodeRef) -> (u64, u32) {
        let of_shard = inode.id().ino % SHARDS;
        let is_free = |id: &u64| !shard.by_id.contains_key(id);
        let are_counted = self.keeping.as_ref().is_some_and(|keeping| keeping.keeps_nodes());
        let is_for_nodes = |id: &u64| *id > ROOT_ID && *id != coherence::NODE && id % SHARDS == of_shard;
        let number = inode.handle().number().filter(|id| !are_counted && is_for_nodes(id) && is_free(id));
        let next = || match &self.keeping {
            Some(keeping) => keeping.record.count_node(),
            None => self.next.fetch_add(1, Ordering::Relaxed),
        };
        let count = || next() * SHARDS + of_shard;
        let counted = || std::iter::repeat_with(count).find(is_free).expect("some number is free");
        number.map_or_else(|| (counted(), self.generation), |number| (number, BACKEND_GENERATION))
    }

    /// FORGET: the kernel returns lookups. Returns what the keeper and the record of the mount have of a node that
    /// nothing needs any more.
    pub(super) fn forget(&self, id: u64, lookups: u64) -> Left {
        if id == ROOT_ID {
            return Left::default();
        }
        let forgotten = {
            let mut shard = self.shard(id).write();
            let Some(node) = shard.by_id.get(&id) else {
                let inherited = shard.inherited.forget(id);
                drop(shard);
                return Left { is_kept: inherited.is_some(), is_remembered: false };
            };
            let left = node.lookups.load(Ordering::Relaxed).saturating_sub(lookups);
            node.lookups.store(left, Ordering::Relaxed);
            if left != 0 {
                return Left::default();
            }
            let hash = self.hash(node.inode.id());
            self.count.fetch_sub(1, Ordering::Relaxed);
            let removed = shard.remove(id, hash);
            shard.shrink(|node| self.hash(node.inode.id()).within);
            removed
        };
        let keeps_nodes = self.keeping.as_ref().is_some_and(|keeping| keeping.keeps_nodes());
        // An open file without a name is released when it is closed.
        let is_released = |node: &Node| keeps_nodes || node.inode.kind() == NodeKind::Directory;
        let is_kept = |(node, _): &(Arc<Node>, _)| is_released(node) && node.is_kept.swap(false, Ordering::AcqRel);
        let is_remembered = |(node, _): &(Arc<Node>, _)| node.is_remembered.load(Ordering::Acquire);
        let left = Left {
            is_kept: forgotten.as_ref().is_some_and(is_kept),
            is_remembered: forgotten.as_ref().is_some_and(is_remembered),
        };
        drop(forgotten); // may be the last reference to the inode, which drops pages
        left
    }

    /// Whether the keeper has a descriptor of a node.
    pub(super) fn is_kept(&self, id: u64) -> bool {
        let shard = self.shard(id).read();
        shard.by_id.get(&id).map_or_else(|| shard.inherited.has(id), |node| node.is_kept.load(Ordering::Acquire))
    }

    /// Notes that the keeper has no descriptor of a node any more. With `unless_used`, a directory or an open file stays
    /// as it is. Returns whether the keeper had one.
    pub(super) fn unkeep(&self, id: u64, unless_used: bool) -> bool {
        let mut shard = self.shard(id).write();
        match shard.by_id.get(&id) {
            Some(node) if unless_used && node.is_used() => false,
            Some(node) => node.is_kept.swap(false, Ordering::AcqRel),
            None => {
                let inherited = shard.inherited.forget(id);
                drop(shard);
                inherited.is_some()
            }
        }
    }

    /// Whether the count has dropped far below its peak. Returns true once for each such drop.
    pub(super) fn has_shrunk(&self) -> bool {
        let (count, peak) = (self.count.load(Ordering::Relaxed), self.peak.load(Ordering::Relaxed));
        let has_shrunk = count <= peak / 2 && peak - count >= SHRINK_MIN;
        has_shrunk && self.peak.compare_exchange(peak, count, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Nodes of which the kernel may hold modified pages.
    pub(super) fn mapped(&self) -> Vec<Arc<Node>> {
        let is_mapped = |node: &&Arc<Node>| node.kernel_pages.is_mapped();
        self.shards
            .iter()
            .flat_map(|shard| shard.read().by_id.values().filter(is_mapped).cloned().collect::<Vec<_>>())
            .collect()
    }

    /// Drops all nodes, including the root: the connection is gone.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let forgotten = std::mem::take(&mut *shard.write());
            drop(forgotten);
        }
    }

    fn shard(&self, id: u64) -> &RwLock<Shard> {
        &self.shards[(id % SHARDS) as usize]
    }
}

impl Shard {
    fn find(&self, hash: Hash, inode: NodeId) -> Option<&Arc<Node>> {
        self.by_inode.find(hash.within, |node| node.inode.id() == inode)
    }

    fn remove(&mut self, id: u64, hash: Hash) -> Option<(Arc<Node>, Option<Arc<Node>>)> {
        let node = self.by_id.remove(&id)?;
        let same = self.by_inode.find_entry(hash.within, |same| same.id == id);
        let same = same.ok().map(|entry| entry.remove().0);
        Some((node, same))
    }

    /// Releases unused capacity, rarely enough that the amortised cost of a removal stays the same.
    fn shrink(&mut self, hash_of: impl Fn(&Arc<Node>) -> u64) {
        let len = self.by_id.len();
        if self.by_id.capacity() > CAPACITY_MIN && len < self.by_id.capacity() / 8 {
            self.by_id.shrink_to(2 * len);
            self.by_inode.shrink_to(2 * len, hash_of);
        }
    }
}

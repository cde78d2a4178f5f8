//! The nodes that the kernel knows: its numbers for inodes, and how often it has been told of each.
//!
//! # Numbers
//! Where the backend's handle of an inode is a number ([`FileHandle::number`](slackwater::backend::FileHandle::number)),
//! the kernel gets that one. It stays the same for as long as the inode exists, so the kernel may ask for it when it and
//! we have forgotten the inode, and after another mount: a file handle that a program or an NFS client kept is such a
//! number. Other inodes are counted, and their numbers lead nowhere once they are forgotten.
//!
//! # Invariants
//! K1. One inode has one number while the kernel knows it, whichever name it was found by. A pair of number and
//!     generation is never given to another inode: `generation` is 0 where the number is the backend's, and of this mount
//!     alone where it was counted.
//! K2. `lookups` is what the kernel will give back by FORGET; it changes under the shard's lock only. At 0
//!     the node leaves the table, and its reference to the inode is dropped outside the lock.
//! K3. A number says in which shard its node is, as does the inode's number in the backend, and both maps of a shard
//!     change together. Numbers below [`SHARDS`] are the root's and the [probe](crate::coherence)'s.
//!
//! # Lock order
//! A shard's lock is a leaf.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use slackwater::{InodeRef, NodeId};
use slackwater_sync::lock::RwLock;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::abi::ROOT_ID;
use crate::volume::dontcache::DontcacheState;
use crate::volume::kernel_pages::KernelPages;
use crate::volume::lock_order::LEAF;

/// Shards of the table: enough that two threads seldom meet.
const SHARDS: u64 = 32;

/// Nodes that are gone are some MiB of memory from this number on.
const SHRINK_MIN: usize = 4096;
/// A shard that never had more nodes keeps its memory.
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
    /// Handles that may write, mapped pages included: what a sync mapped_flush out.
    pub(super) writers: AtomicU32,
    /// What is written beside mappings of it.
    pub(super) kernel_pages: KernelPages,
    /// Writes that are parked; later ones queue behind them.
    pub(super) parked: AtomicU32,
    /// Cut to nothing, and not written back since: what is written next replaces what was there.
    pub(super) emptied: AtomicBool,
    /// Whether it is to stay out of the cache, as it says itself.
    pub(super) dontcache: DontcacheState,
    /// Number of the directory in which it was found last, for `..`.
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
            parked: AtomicU32::new(0),
            emptied: AtomicBool::new(false),
            dontcache: DontcacheState::unknown(),
            parent_ino: AtomicU64::new(ino),
        })
    }

    /// The kernel's number.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn is_root(&self) -> bool {
        self.id == ROOT_ID
    }

    /// What tells it from other nodes of its number.
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }
}

/// Where an inode's node is.
#[derive(Copy, Clone)]
struct Hash {
    shard: u64,
    within: u64,
}

#[derive(Default)]
struct Shard {
    by_id: HashMap<u64, Arc<Node>>,
    /// By [`Nodes::hash`]; a node knows its inode.
    by_inode: HashTable<Arc<Node>>,
}

/// Every node that the kernel knows.
pub(super) struct Nodes {
    root: NodeId,
    shards: Vec<RwLock<Shard>>,
    next: AtomicU64,
    count: AtomicUsize,
    /// Most that there have been since they have last [fallen](Self::has_shrunk).
    peak: AtomicUsize,
    /// Of nodes that are counted.
    generation: u32,
    hasher: RandomState,
}

impl Nodes {
    pub(super) fn new(root: InodeRef) -> Self {
        let hasher = RandomState::new();
        let nodes = Self {
            root: root.id(),
            shards: (0..SHARDS).map(|_| RwLock::new(LEAF, Shard::default())).collect(),
            next: AtomicU64::new(1),
            count: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            generation: hasher.hash_one(ROOT_ID) as u32 | 1,
            hasher,
        };
        nodes.shard(ROOT_ID).write().by_id.insert(ROOT_ID, Node::new((ROOT_ID, BACKEND_GENERATION), root));
        nodes
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

    /// The node of `inode`, with one lookup more. It is new if the kernel did not know the inode. The root has
    /// no names, so it is not found here.
    pub(super) fn look_up(&self, inode: InodeRef) -> Option<Arc<Node>> {
        if inode.id() == self.root {
            return None;
        }
        let hash = self.hash(inode.id());
        let mut shard = self.shard(hash.shard).write();
        if let Some(node) = shard.find(hash, inode.id()) {
            let node = Arc::clone(node);
            node.lookups.fetch_add(1, Ordering::Relaxed);
            drop(shard); // `inode` is dropped after it
            return Some(node);
        }
        let node = Node::new(self.number_for(&shard, &inode), inode);
        node.lookups.store(1, Ordering::Relaxed);
        let hash_of = |node: &Arc<Node>| self.hash(node.inode.id()).within;
        shard.by_inode.insert_unique(hash.within, Arc::clone(&node), hash_of);
        shard.by_id.insert(node.id, Arc::clone(&node));
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if count > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(count, Ordering::Relaxed);
        }
        Some(node)
    }

    /// Number and generation of a node that the kernel did not know.
    fn number_for(&self, shard: &Shard, inode: &InodeRef) -> (u64, u32) {
        let of_shard = inode.id().ino % SHARDS;
        let is_free = |id: &u64| !shard.by_id.contains_key(id);
        let number = inode.handle().number().filter(|id| *id >= SHARDS && id % SHARDS == of_shard).filter(is_free);
        let count = || self.next.fetch_add(1, Ordering::Relaxed) * SHARDS + of_shard;
        let counted = || std::iter::repeat_with(count).find(is_free).expect("some number is free");
        number.map_or_else(|| (counted(), self.generation), |number| (number, BACKEND_GENERATION))
    }

    /// The kernel gives lookups back.
    pub(super) fn forget(&self, id: u64, lookups: u64) {
        if id == ROOT_ID {
            return;
        }
        let forgotten = {
            let mut shard = self.shard(id).write();
            let Some(node) = shard.by_id.get(&id) else { return };
            let left = node.lookups.load(Ordering::Relaxed).saturating_sub(lookups);
            node.lookups.store(left, Ordering::Relaxed);
            if left != 0 {
                return;
            }
            let hash = self.hash(node.inode.id());
            self.count.fetch_sub(1, Ordering::Relaxed);
            let removed = shard.remove(id, hash);
            shard.shrink(|node| self.hash(node.inode.id()).within);
            removed
        };
        drop(forgotten); // may be the last user of the inode, which drops pages
    }

    /// Whether there are far fewer than there have been. True once for each such fall.
    pub(super) fn has_shrunk(&self) -> bool {
        let (count, peak) = (self.count.load(Ordering::Relaxed), self.peak.load(Ordering::Relaxed));
        let has_shrunk = count <= peak / 2 && peak - count >= SHRINK_MIN;
        has_shrunk && self.peak.compare_exchange(peak, count, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Nodes of which the kernel may hold pages that were stored to.
    pub(super) fn mapped(&self) -> Vec<Arc<Node>> {
        let is_mapped = |node: &&Arc<Node>| node.kernel_pages.is_mapped();
        self.shards
            .iter()
            .flat_map(|shard| shard.read().by_id.values().filter(is_mapped).cloned().collect::<Vec<_>>())
            .collect()
    }

    /// Forgets every node, the root too: the kernel is gone.
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

    /// Gives room back that is no longer needed; seldom enough that a removal costs what it did.
    fn shrink(&mut self, hash_of: impl Fn(&Arc<Node>) -> u64) {
        let len = self.by_id.len();
        if self.by_id.capacity() > CAPACITY_MIN && len < self.by_id.capacity() / 8 {
            self.by_id.shrink_to(2 * len);
            self.by_inode.shrink_to(2 * len, hash_of);
        }
    }
}

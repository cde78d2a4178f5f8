//! Possibly unneeded inodes: those in memory only because a front end holds a reference, least recently used first.
//!
//! A kernel keeps a node that it has looked up until it forgets it, perhaps for ever. So when memory is short, the
//! front end is asked to have such inodes forgotten ([`SuperBlock::on_inode_pressure`]), and the shrinker finds them
//! here. Without a front end there is nothing to ask: an inode is freed with its last user or its last page.
//!
//! The list is also bounded (`Tunables::inodes_max`): bringing an inode into memory above the bound requests the
//! release of some.
//!
//! An inode with pages is never a candidate, even if they are clean. Its pages get their second chance in
//! [`crate::reclaim`], which knows which of them are used. Dropping them because the inode looks idle would discard
//! data that fits in memory. The inode follows when its last page is evicted. There is at most one such inode per
//! frame.
//!
//! # Invariants
//! L1. An inode that a front end may know, without pages or openers and clean, is on the list once, unless the front
//!     end has been asked for it since its last use. Its [`LruPlace`] records where. A directory is listed again when
//!     it is asked for, because the kernel keeps it for as long as it knows a name in it. Other inodes may be on the
//!     list, and are dropped when they reach its head.
//! L2. A place changes with the list locked. A thread that takes an inode off the list examines it afterwards, and a
//!     thread that makes one idle checks its place afterwards. The later of the two sees the other.
//!
//! # Lock order
//! Both locks here are leaves: no inode is examined under the list's lock, and nothing is called under the other.
//!
//! # Kernel counterpart
//! `s_inode_lru` with `I_REFERENCED`, and `s_dentry_lru`.

use std::collections::BTreeMap;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::inode::Inode;
use crate::lock_order::LEAVES;
use crate::super_block::SuperBlock;
use crate::units::NodeId;

/// The place of an inode that is not on the list.
const UNLISTED: u64 = 0;

/// The inode's part of the list. Kernel: `i_lru`, `I_REFERENCED`.
pub(crate) struct LruPlace {
    /// Changes with the list locked (L2).
    at: AtomicU64,
    /// Used since the list was last scanned.
    is_used: AtomicBool,
}

/// See [`SuperBlock::on_inode_pressure`].
pub(super) type OnInodePressure = dyn Fn(&[NodeId]) -> usize + Send + Sync;

/// See the [module documentation](self).
pub(crate) struct InodeLru {
    list: Mutex<List>,
    /// Length of the list, readable without the lock.
    length: AtomicU64,
    /// A front end is registered. Changes with the list locked.
    is_kept: AtomicBool,
    on_pressure: Mutex<Option<Arc<OnInodePressure>>>,
}

struct List {
    /// By place, which is the order in which they were listed.
    ids: BTreeMap<u64, NodeId>,
    last: u64,
}

impl LruPlace {
    pub(crate) fn new() -> Self {
        Self { at: AtomicU64::new(UNLISTED), is_used: AtomicBool::new(false) }
    }

    /// Records a use: the inode is needed for a while.
    pub(crate) fn mark_used(&self) {
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since the last call.
    pub(super) fn take_used(&self) -> bool {
        self.is_used.swap(false, Ordering::Relaxed)
    }

    pub(super) fn is_listed(&self) -> bool {
        !self.is_at(UNLISTED)
    }

    pub(super) fn is_at(&self, at: u64) -> bool {
        self.at.load(Ordering::Relaxed) == at
    }
}

impl InodeLru {
    pub(super) fn new() -> Self {
        Self {
            list: Mutex::new(LEAVES, List { ids: BTreeMap::new(), last: UNLISTED }),
            length: AtomicU64::new(0),
            is_kept: AtomicBool::new(false),
            on_pressure: Mutex::new(LEAVES, None),
        }
    }

    /// The number of listed inodes, read without a lock.
    pub(super) fn len(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }

    pub(super) fn on_pressure(&self) -> Option<Arc<OnInodePressure>> {
        self.on_pressure.lock().clone()
    }

    /// Lists `inode` as just used, unless it is listed.
    pub(super) fn add(&self, inode: &Inode) {
        let mut list = self.list.lock();
        if self.is_kept.load(Ordering::Relaxed) && inode.lru.at.load(Ordering::Relaxed) == UNLISTED {
            list.last += 1;
            let at = list.last;
            list.ids.insert(at, inode.id());
            inode.lru.at.store(at, Ordering::Relaxed);
            self.note_length(&list);
        }
    }

    /// Takes `inode` off the list. False if it was not on it.
    pub(super) fn remove(&self, inode: &Inode) -> bool {
        let mut list = self.list.lock();
        let at = inode.lru.at.swap(UNLISTED, Ordering::Relaxed);
        let was_listed = list.ids.remove(&at).is_some();
        self.note_length(&list);
        was_listed
    }

    /// The first listed inode at or after the place `from`, and its place.
    pub(super) fn first(&self, from: u64) -> Option<(u64, NodeId)> {
        self.list.lock().ids.range(from..).next().map(|(at, id)| (*at, *id))
    }

    /// The next place to be assigned; inodes listed from now on come after it.
    pub(super) fn end(&self) -> u64 {
        self.list.lock().last + 1
    }

    /// Takes the place `at`, whose inode has been freed, off the list.
    pub(super) fn remove_place(&self, at: u64) {
        let mut list = self.list.lock();
        list.ids.remove(&at);
        self.note_length(&list);
    }

    fn note_length(&self, list: &List) {
        self.length.store(list.ids.len() as u64, Ordering::Relaxed);
    }
}

impl SuperBlock {
    /// Registers a front end that holds references to inodes for a peer that can be asked to forget them, such as a
    /// kernel with its cache of names. When memory is short, the engine then calls `ask` with inodes that are closed,
    /// clean, without pages and not recently used. The root is never among them.
    ///
    /// `ask` starts releasing those that only its peer's cache keeps, and returns how many; their references may be
    /// dropped later. It is called without any lock, from any thread that frees memory, possibly from several at once.
    /// It must not wait for its peer or for the volume, because an unmount may be waiting for it. It may look up inodes
    /// and drop references, but must not mount or unmount anything. It must not own the volume, which owns it until it
    /// is unmounted. A later call replaces it.
    pub fn on_inode_pressure(&self, ask: impl Fn(&[NodeId]) -> usize + Send + Sync + 'static) {
        let replaced = self.inode_lru.on_pressure.lock().replace(Arc::new(ask));
        drop(replaced); // without a lock
        {
            let _list = self.inode_lru.list.lock();
            self.inode_lru.is_kept.store(true, Ordering::Relaxed);
        }
        if self.alive().is_err() {
            self.close_inode_lru();
            return;
        }
        self.all_inodes().iter().for_each(|inode| self.note_unused(inode));
    }

    /// Lists `inode` if it may be unneeded, after one of its uses has ended (L2).
    pub(crate) fn note_unused(&self, inode: &Inode) {
        if !self.inode_lru.is_kept.load(Ordering::Relaxed) {
            return;
        }
        let in_use = inode.openers.load(Ordering::SeqCst) != 0 || inode.users() == 0;
        if !in_use && inode.id() != self.root_id() && inode.mapping.is_empty() {
            self.inode_lru.add(inode);
        }
    }

    /// Stops listing inodes and asking the front end.
    pub(crate) fn close_inode_lru(&self) {
        let asked = self.inode_lru.on_pressure.lock().take();
        drop(asked); // without a lock
        let mut list = self.inode_lru.list.lock();
        self.inode_lru.is_kept.store(false, Ordering::Relaxed);
        list.ids.clear();
        self.inode_lru.note_length(&list);
    }
}

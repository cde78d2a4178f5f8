//! Inodes that nobody may need: those in memory only because a front door has a reference, longest unused first.
//!
//! A kernel that was told of a node has it asked for until it forgets it, which may be never. So the front door is asked
//! to have such inodes forgotten when memory is short ([`SuperBlock::on_inode_pressure`]), and the shrinker finds here
//! which. Without a front door there is nothing to ask for: an inode goes with its last user, or with its last page.
//!
//! The list has a bound too (`Tunables::inodes_max`): whoever brings an inode into memory above it has some asked for.
//!
//! An inode with pages is not looked for, however clean they are. Its pages have a second chance of their own in
//! [`crate::reclaim`], which knows which of them are used; to drop them because the inode looks idle would take away what
//! fits in memory. The inode follows the last of them. There is at most one such inode for each frame.
//!
//! # Invariants
//! L1. An inode that a front door may know, without pages and openers and with nothing dirty, is on the list, once, unless
//!     the front door was asked for it since its last use: its [`LruPlace`] says where. A directory is listed again when it
//!     is asked for, because its peer keeps it for as long as it knows a name in it. Others may be on the list, and leave it
//!     when they come up.
//! L2. A place changes with the list locked. Who takes an inode off looks at it afterwards, and who makes one idle looks at
//!     its place afterwards: whichever comes second sees the other.
//!
//! # Lock order
//! Both locks here are leaves: nothing is looked at under the one of the list, and nobody is called under the other.
//!
//! # Kernel counterpart
//! `s_inode_lru` with `I_REFERENCED`, and `s_dentry_lru`; sem. 10.6.

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

/// What an inode has of it. Kernel: `i_lru`, `I_REFERENCED`.
pub(crate) struct LruPlace {
    /// Changes with the list locked (L2).
    at: AtomicU64,
    /// Since the list was last looked at.
    is_used: AtomicBool,
}

/// See [`SuperBlock::on_inode_pressure`].
pub(super) type OnInodePressure = dyn Fn(&[NodeId]) -> usize + Send + Sync;

/// See the [module documentation](self).
pub(crate) struct InodeLru {
    list: Mutex<List>,
    /// Length of the list, for who may take no lock.
    length: AtomicU64,
    /// There is a front door. Changes with the list locked.
    is_kept: AtomicBool,
    on_pressure: Mutex<Option<Arc<OnInodePressure>>>,
}

struct List {
    /// By the order in which they were listed.
    ids: BTreeMap<u64, NodeId>,
    last: u64,
}

impl LruPlace {
    pub(crate) fn new() -> Self {
        Self { at: AtomicU64::new(UNLISTED), is_used: AtomicBool::new(false) }
    }

    /// Somebody used the inode: it is needed for a while.
    pub(crate) fn mark_used(&self) {
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether somebody did, since this was last asked.
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

    /// How many inodes are listed, without a lock.
    pub(super) fn len(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }

    pub(super) fn on_pressure(&self) -> Option<Arc<OnInodePressure>> {
        self.on_pressure.lock().clone()
    }

    /// Lists `inode` as used just now, unless it is listed.
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

    /// Takes `inode` off the list. False if it was not there.
    pub(super) fn remove(&self, inode: &Inode) -> bool {
        let mut list = self.list.lock();
        let at = inode.lru.at.swap(UNLISTED, Ordering::Relaxed);
        let was_listed = list.ids.remove(&at).is_some();
        self.note_length(&list);
        was_listed
    }

    /// The inode that was listed first at or after `from`, and its place.
    pub(super) fn first(&self, from: u64) -> Option<(u64, NodeId)> {
        self.list.lock().ids.range(from..).next().map(|(at, id)| (*at, *id))
    }

    /// The place that will be given next: what is listed from here on comes after it.
    pub(super) fn end(&self) -> u64 {
        self.list.lock().last + 1
    }

    /// Takes the place `at` off the list, whose inode is gone.
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
    /// A front door says that it keeps references to inodes for somebody who may be asked to forget them, a kernel with
    /// its cache of names. From then on the engine calls `ask` when memory is short, with inodes that are not open, not
    /// dirty, without pages and not used lately; the root is never among them.
    ///
    /// `ask` begins to let go of those that only its peer's cache keeps, and returns how many; their references may go
    /// later. It is called without any lock, from whichever thread gives memory back, by several at once. It must not
    /// wait, neither for its peer nor for the volume: an unmount may be waiting for it. It may look inodes up and drop
    /// references, but from inside it nothing is mounted or unmounted. It must not own the volume, which owns it until
    /// it is unmounted. A later call replaces it.
    pub fn on_inode_pressure(&self, ask: impl Fn(&[NodeId]) -> usize + Send + Sync + 'static) {
        let replaced = self.inode_lru.on_pressure.lock().replace(Arc::new(ask));
        drop(replaced); // under no lock
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

    /// `inode` may be one that nobody needs, after something of it has ended (L2).
    pub(crate) fn note_unused(&self, inode: &Inode) {
        if !self.inode_lru.is_kept.load(Ordering::Relaxed) {
            return;
        }
        let in_use = inode.openers.load(Ordering::SeqCst) != 0 || inode.users() == 0;
        if !in_use && inode.id() != self.root_id() && inode.mapping.is_empty() {
            self.inode_lru.add(inode);
        }
    }

    /// No inode is listed any more, and the front door is not asked.
    pub(crate) fn close_inode_lru(&self) {
        let asked = self.inode_lru.on_pressure.lock().take();
        drop(asked); // under no lock
        let mut list = self.inode_lru.list.lock();
        self.inode_lru.is_kept.store(false, Ordering::Relaxed);
        list.ids.clear();
        self.inode_lru.note_length(&list);
    }
}

//! The inode cache of a volume: lookup, and eviction of unused inodes.
//!
//! # Invariants
//! D1. An answer of the backend creates an inode only if no change of ours is newer than it. While an inode is in
//!     memory, it is newer than any answer. When a changed inode is evicted, `evictions` is increased under the lock of
//!     its shard, and a caller whose answer is older asks the backend again.
//!
//! # Kernel counterpart
//! `iget_locked`, `iput`, `inode_hashtable`.

use std::collections::HashMap;

use slackwater_sync::gate;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::{Call, Done, Found, NodeKind};
use crate::error::{BackendError, FileError};
use crate::inode::{Inode, InodeRef};
use crate::super_block::{INODE_SHARDS, SuperBlock};
use crate::units::{NodeId, PAGE_BYTES, PageIndex};

/// Shards up to this capacity are not shrunk.
const CAPACITY_MIN: usize = 64;

/// How many inodes that we had changed have been evicted (D1).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Evictions(u64);

impl SuperBlock {
    /// To be read before the backend is asked for a node.
    pub(crate) fn evictions(&self) -> Evictions {
        Evictions(self.evictions.load(Ordering::Acquire))
    }

    fn shard(&self, id: NodeId) -> &Mutex<HashMap<NodeId, Arc<Inode>>> {
        &self.inodes[id.ino as usize % INODE_SHARDS]
    }

    /// Asks the backend for a node and returns its inode, as [`SuperBlock::iget`] does.
    ///
    /// # Errors
    /// The backend's errors.
    ///
    /// # Blocking
    /// Waits for the backend.
    pub(crate) fn find_node(self: &Arc<Self>, ask: impl FnOnce(Done<Found>) -> Call) -> Result<InodeRef, BackendError> {
        let asked = self.evictions();
        let found = self.call(None, ask)?;
        self.iget(found, asked)
    }

    /// The inode of a node that the backend has found, with a reference for the caller. `asked` was read before the
    /// question. A cached inode keeps its own size and times, because the backend's may be older.
    ///
    /// # Errors
    /// The backend's, if it must be asked again (D1).
    ///
    /// # Blocking
    /// Waits for the backend in that case.
    pub(crate) fn iget(self: &Arc<Self>, found: Found, asked: Evictions) -> Result<InodeRef, BackendError> {
        gate::pass("iget");
        let (mut found, mut asked) = (found, asked);
        loop {
            found = match self.try_iget(found, asked) {
                Ok(inode) => return Ok(inode),
                Err(may_be_old) => may_be_old,
            };
            asked = self.evictions();
            let node = found.node.clone();
            found.attr = self.call(None, |done| Call::Getattr { node, done })?;
        }
    }

    /// The same during a mount, when no node has been changed yet.
    pub(crate) fn iget_at_mount(self: &Arc<Self>, found: Found) -> InodeRef {
        let mut found = found;
        loop {
            found = match self.try_iget(found, self.evictions()) {
                Ok(inode) => return inode,
                Err(found) => found,
            }
        }
    }

    /// Returns `found` if it may be outdated (D1).
    #[expect(clippy::result_large_err, reason = "not an error: the argument is returned")]
    fn try_iget(self: &Arc<Self>, found: Found, asked: Evictions) -> Result<InodeRef, Found> {
        let id = found.attr.id;
        let mut shard = self.shard(id).lock();
        if let Some(inode) = shard.get(&id) {
            let inode = InodeRef::new(inode);
            drop(shard);
            inode.lru.mark_used();
            self.note_unused(&inode);
            inode.refresh_from_lookup(&found.attr);
            inode.adopt_node(found.node);
            return Ok(inode);
        }
        if self.evictions() != asked {
            return Err(found);
        }
        let Found { node, handle, attr } = found;
        // A node that can be opened keeps the answer's open node; a file drops it when it is neither open nor dirty.
        let inode = Inode::new(Arc::clone(self), attr, handle, Some(node));
        let result = InodeRef::new(&inode);
        shard.insert(id, inode);
        drop(shard);
        self.note_idle(&result);
        self.note_unused(&result);
        self.bound_inodes();
        Ok(result)
    }

    /// The inode of this id, if it is in memory.
    pub(crate) fn find(&self, id: NodeId) -> Option<Arc<Inode>> {
        self.shard(id).lock().get(&id).cloned()
    }

    /// The same without waiting; `None` if the shard is locked.
    pub(super) fn try_find(&self, id: NodeId) -> Option<Option<Arc<Inode>>> {
        Some(self.shard(id).try_lock()?.get(&id).cloned())
    }

    /// The root directory.
    ///
    /// # Errors
    /// `NotMounted` after unmount.
    pub fn root(&self) -> Result<InodeRef, FileError> {
        self.root.lock().clone().ok_or(FileError::NotMounted)
    }

    /// Called when the last user of an inode has dropped it. An inode stays cached while it has pages, but the pages of
    /// a file without a name are dropped. Kernel: `iput_final`.
    pub(crate) fn iput_final(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.id()).lock();
        if inode.users() != 0 {
            return; // looked up again meanwhile
        }
        let unlinked = {
            let mut state = inode.state.lock();
            // A file that another program removed is written back, and rescued later (`removed`).
            let unlinked = state.attr.nlink == 0 && state.nameless && inode.kind() == NodeKind::File;
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
            self.remove_same(&mut shard, inode);
        }
        drop(shard);
        if unlinked {
            self.drop_pages(inode);
            let _ = inode.settle(self.engine.clock.now(), false);
        }
        inode.release_if_clean();
        if unlinked {
            self.note_progress(); // a writer may be waiting for its frames
        }
    }

    /// Evicts an inode without users and pages. One with users is listed as possibly unneeded.
    pub(crate) fn forget_if_unused(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.id()).lock();
        let clean = inode.is_clean(&inode.state.lock());
        if inode.users() == 0 && clean && inode.mapping.is_empty() {
            self.remove_same(&mut shard, inode);
        }
        drop(shard);
        self.note_unused(inode);
    }

    /// Removes `inode` from its shard, unless another inode has taken its id meanwhile.
    fn remove_same(&self, shard: &mut HashMap<NodeId, Arc<Inode>>, inode: &Arc<Inode>) {
        if shard.get(&inode.id()).is_some_and(|held| Arc::ptr_eq(held, inode)) {
            shard.remove(&inode.id());
            if shard.capacity() > CAPACITY_MIN && shard.len() < shard.capacity() / 8 {
                shard.shrink_to(2 * shard.len());
            }
            if inode.changes.has_begun() {
                self.evictions.fetch_add(1, Ordering::Release); // D1
            }
        }
        if inode.lru.is_listed() {
            self.inode_lru.remove(inode);
        }
    }

    /// Drops every page that is in no unit, whatever its marks. The inode is doomed or clean. Returns the number of
    /// leaves emptied.
    pub(crate) fn drop_pages(&self, inode: &Inode) -> usize {
        crate::writeback::cancel_pages(inode, PageIndex(0)..PageIndex(u64::MAX))
    }

    /// All inodes in memory.
    pub(crate) fn all_inodes(&self) -> Vec<Arc<Inode>> {
        self.inodes_that(|_| true)
    }

    /// The inodes that are not clean.
    pub(crate) fn unclean_inodes(&self) -> Vec<Arc<Inode>> {
        self.inodes_that(|inode| !inode.is_clean(&inode.state.lock()))
    }

    fn inodes_that(&self, are_wanted: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        let mut inodes = Vec::new();
        for shard in &self.inodes {
            inodes.extend(shard.lock().values().filter(|inode| are_wanted(inode)).cloned());
        }
        inodes
    }

    /// The number of inodes in use, not counting the volume's own reference to its root.
    pub(crate) fn count_used_inodes(&self) -> u64 {
        let is_used = |inode: &&Arc<Inode>| inode.users() > u32::from(inode.id() == self.root_id());
        self.inodes.iter().map(|shard| shard.lock().values().filter(is_used).count() as u64).sum()
    }

    /// Whether all inodes are clean.
    pub(crate) fn is_clean(&self) -> bool {
        self.inodes.iter().all(|shard| shard.lock().values().all(|inode| inode.is_clean(&inode.state.lock())))
    }

    /// Whether a flush would find all inodes clean, and no file that it has to copy.
    pub(crate) fn has_nothing_to_flush(&self) -> bool {
        self.is_clean() && self.removed.lock().is_empty()
    }

    /// Bytes that are not yet durable on the backend.
    pub(crate) fn unclean_bytes(&self) -> u64 {
        self.all_inodes().iter().map(|inode| inode.mapping.count_unclean() * PAGE_BYTES).sum()
    }

    /// Empties the inode hash and returns the references.
    pub(crate) fn take_inodes(&self) -> Vec<Arc<Inode>> {
        let mut inodes = Vec::new();
        for shard in &self.inodes {
            inodes.extend(shard.lock().drain().map(|(_, inode)| inode));
        }
        inodes
    }
}

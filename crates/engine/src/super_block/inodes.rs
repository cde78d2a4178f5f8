//! The inodes of a volume in memory: finding them, and letting go of those that nobody needs.
//!
//! # Kernel counterpart
//! `iget_locked`, `iput`, `inode_hashtable`.

use std::collections::HashMap;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;

use crate::backend::{Found, NodeKind};
use crate::error::FileError;
use crate::inode::{Inode, InodeRef};
use crate::super_block::{INODE_SHARDS, SuperBlock};
use crate::units::{NodeId, PAGE_BYTES, PageIndex};

impl SuperBlock {
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
            inode.lru.mark_used();
            self.note_unused(&inode);
            inode.refresh_from_lookup(&attr);
            inode.adopt_node(node);
            return inode;
        }
        // The node is kept for what can be open; a file drops it when it is neither open nor dirty.
        let inode = Inode::new(Arc::clone(self), attr, handle, Some(node));
        let result = InodeRef::new(&inode);
        shard.insert(attr.id, inode);
        drop(shard);
        self.note_idle(&result);
        self.note_unused(&result);
        result
    }

    /// The inode of this id, if it is in memory.
    pub(crate) fn find(&self, id: NodeId) -> Option<Arc<Inode>> {
        self.shard(id).lock().get(&id).cloned()
    }

    /// The same without waiting; `None` if that cannot be said.
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
            self.remove_same(&mut shard, inode);
        }
        drop(shard);
        if unlinked {
            self.drop_pages(inode);
            let _ = inode.settle(self.engine.clock.now(), false);
        }
        inode.release_if_clean();
        if unlinked {
            self.note_progress(); // its frames may be what a writer waits for
        }
    }

    /// Takes an inode without users and pages out of the hash. One with users is noted as one that may not be needed.
    pub(crate) fn forget_if_unused(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.id()).lock();
        let clean = inode.is_clean(&inode.state.lock());
        if inode.users() == 0 && clean && inode.mapping.is_empty() {
            self.remove_same(&mut shard, inode);
        }
        drop(shard);
        self.note_unused(inode);
    }

    /// Takes `inode` out of its shard, unless another inode is there under its id by now.
    fn remove_same(&self, shard: &mut HashMap<NodeId, Arc<Inode>>, inode: &Arc<Inode>) {
        if shard.get(&inode.id()).is_some_and(|held| Arc::ptr_eq(held, inode)) {
            shard.remove(&inode.id());
        }
        if inode.lru.is_listed() {
            self.inode_lru.remove(inode);
        }
    }

    /// Drops every page that no unit holds, whatever its marks. The inode is doomed, or nothing of it is
    /// dirty.
    pub(crate) fn drop_pages(&self, inode: &Inode) {
        crate::writeback::cancel_pages(inode, PageIndex(0)..PageIndex(u64::MAX));
    }

    /// All inodes in memory.
    pub(crate) fn all_inodes(&self) -> Vec<Arc<Inode>> {
        self.inodes_that(|_| true)
    }

    /// The inodes of which something has still to reach the backend.
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

    /// How many inodes somebody uses besides the volume, which has its root.
    pub(crate) fn count_used_inodes(&self) -> u64 {
        let is_used = |inode: &&Arc<Inode>| inode.users() > u32::from(inode.id() == self.root_id());
        self.inodes.iter().map(|shard| shard.lock().values().filter(is_used).count() as u64).sum()
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
        let mut inodes = Vec::new();
        for shard in &self.inodes {
            inodes.extend(shard.lock().drain().map(|(_, inode)| inode));
        }
        inodes
    }
}

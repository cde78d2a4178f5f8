//! The durable state: it survives a crash, and syncs update it.
//!
//! Beside the nodes that callers see there is a second set of nodes, which only syncs update. The rules are the weakest
//! that POSIX allows, with one addition of ext4 (the third):
//!
//! - A sync of a file copies its bytes. It also copies its mode, owner, times and extended attributes, unless only data
//!   was requested.
//! - A sync of a directory copies its entries. A node in it that was never synced exists from then on, but empty. A
//!   move between two directories becomes durable in both at once.
//! - A sync of a node that was not durable also makes its names durable, up to the root.
//! - A sync of the volume copies everything.
//!
//! # Invariants
//! M1. Every name in a durable directory leads to a durable node.
//! M2. After a crash, each node that lost anything except times fails its next sync once with `Lost`, and so does the
//!     volume.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use slackwater_sync::shim::Arc;

use crate::backend::mem::node::{Body, MemNode};
use crate::backend::mem::volume::{Live, ROOT, Volume};
use crate::backend::{Node, SyncScope};
use crate::error::{BackendError, ErrorKind};
use crate::units::NodeId;

impl Volume {
    pub(super) fn sync(&mut self, node: &Node, scope: SyncScope) -> Result<(), BackendError> {
        let ino = self.ino(node)?;
        if self.lost.remove(&ino) {
            return Err(ErrorKind::Lost.into()); // M2
        }
        let before = self.durable.get(&ino).map(|node| (node.attrs, node.xattrs.clone()));
        let node = &self.live[&ino].node;
        match &node.body {
            Body::Directory(_) => self.sync_directories(ino),
            Body::File(_) | Body::Symlink(_) | Body::Special { .. } => {
                let mut copy = Box::new(node.clone());
                if let Some((attrs, xattrs)) = before.filter(|_| scope == SyncScope::Data) {
                    (copy.attrs, copy.xattrs) = (attrs, xattrs);
                }
                if self.durable.insert(ino, copy).is_none() {
                    self.sync_names(ino);
                }
            }
        }
        Ok(())
    }

    pub(super) fn sync_volume(&mut self) -> Result<(), BackendError> {
        if std::mem::take(&mut self.volume_lost) {
            return Err(ErrorKind::Lost.into()); // M2
        }
        let named = self.live.iter().filter(|(ino, live)| **ino == ROOT || !live.names.is_empty());
        self.durable = named.map(|(ino, live)| (*ino, Box::new(live.node.clone()))).collect();
        self.moved.clear();
        Ok(())
    }

    /// Reverts to the durable state.
    pub(super) fn crash(&mut self) {
        self.reap();
        let mut before = std::mem::take(&mut self.live);
        let mut pending = vec![(ROOT, None)];
        while let Some((ino, name)) = pending.pop() {
            if let Some(live) = self.live.get_mut(&ino) {
                live.names.extend(name);
                continue;
            }
            let node = MemNode::clone(&self.durable[&ino]); // M1
            if let Body::Directory(entries) = &node.body {
                pending.extend(entries.after(0).map(|entry| (entry.ino, Some((ino, entry.name.clone())))));
            }
            let old = before.remove(&ino);
            if old.as_ref().is_none_or(|old| !node.holds_the_same_as(&old.node)) {
                self.lost.insert(ino);
            }
            let pin = old.map_or_else(|| Arc::new(()), |old| old.pin);
            let live = Live { node, names: name.into_iter().collect(), may_get_a_name: false, pin };
            self.live.insert(ino, Box::new(live));
        }
        let live = &self.live;
        self.durable.retain(|ino, _| live.contains_key(ino));
        self.lost.retain(|ino| live.contains_key(ino));
        // A node that no longer exists has lost its bytes, whether it had a name or not.
        self.volume_lost |= !self.lost.is_empty() || !before.is_empty();
        self.moved.clear();
    }

    pub(super) fn durable_file(&self, ino: u64) -> Option<Vec<u8>> {
        file_bytes(self.durable.get(&ino)?)
    }

    pub(super) fn live_file(&self, ino: u64) -> Option<Vec<u8>> {
        file_bytes(&self.live.get(&ino)?.node)
    }

    /// Follows `path` through the durable directories.
    pub(super) fn durable_ino(&self, path: &str) -> Option<u64> {
        walk(path, |ino| self.durable.get(&ino).map(Box::as_ref))
    }

    /// Follows `path` through the directories as callers see them.
    pub(super) fn live_ino(&self, path: &str) -> Option<u64> {
        walk(path, |ino| self.live.get(&ino).map(|live| &live.node))
    }

    pub(super) fn durable_ino_of(&self, id: NodeId) -> Option<u64> {
        let is_it = |node: &MemNode| (self.dev, node.generation) == (id.dev, id.generation);
        self.durable.get(&id.ino).is_some_and(|node| is_it(node)).then_some(id.ino)
    }

    pub(super) fn live_ino_of(&self, id: NodeId) -> Option<u64> {
        self.live.contains_key(&id.ino).then_some(id.ino).filter(|ino| self.id(*ino) == id)
    }

    /// Copies the entries of `ino`, and of all directories it exchanged names with.
    fn sync_directories(&mut self, ino: u64) {
        let mut group = BTreeSet::from([ino]);
        while let Some(&(a, b)) = self.moved.iter().find(|(a, b)| group.contains(a) != group.contains(b)) {
            group.extend([a, b]);
        }
        self.moved.retain(|(a, _)| !group.contains(a));
        for dir in group {
            let Some(live) = self.live.get(&dir) else { continue };
            let node = Box::new(live.node.clone());
            let Body::Directory(entries) = &node.body else { continue };
            for entry in entries.after(0) {
                let target = &self.live[&entry.ino].node;
                self.durable.entry(entry.ino).or_insert_with(|| Box::new(target.without_content())); // M1
            }
            if self.durable.insert(dir, node).is_none() {
                self.sync_names(dir);
            }
        }
    }

    /// Makes the names of `ino` durable, and the directories they are in.
    fn sync_names(&mut self, ino: u64) {
        let Live { node, names, .. } = &*self.live[&ino];
        let kind = node.body.kind();
        for (dir, name) in names.clone() {
            let is_new = !self.durable.contains_key(&dir);
            let durable = self.durable.entry(dir).or_insert_with(|| Box::new(self.live[&dir].node.without_content()));
            if let Body::Directory(entries) = &mut durable.body {
                entries.insert(&name, ino, kind);
            }
            if is_new {
                self.sync_names(dir);
            }
        }
    }
}

fn file_bytes(node: &MemNode) -> Option<Vec<u8>> {
    match &node.body {
        Body::File(blocks) => Some(blocks.to_vec()),
        Body::Directory(_) | Body::Symlink(_) | Body::Special { .. } => None,
    }
}

fn walk<'a>(path: &str, node: impl Fn(u64) -> Option<&'a MemNode>) -> Option<u64> {
    path.split('/').filter(|name| !name.is_empty()).try_fold(ROOT, |dir, name| match &node(dir)?.body {
        Body::Directory(entries) => entries.get(OsStr::new(name)),
        Body::File(_) | Body::Symlink(_) | Body::Special { .. } => None,
    })
}

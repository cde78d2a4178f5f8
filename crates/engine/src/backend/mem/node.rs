//! The content of a node: attributes, and bytes, entries or a link target.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::ops::Bound;

use crate::backend::mem::blocks::Blocks;
use crate::backend::{DirEntry, NodeKind};
use crate::units::{PAGE_BYTES, Timestamp};

/// A node without its names.
#[derive(Clone)]
pub(super) struct MemNode {
    pub(super) generation: u64,
    pub(super) attrs: Attrs,
    pub(super) xattrs: BTreeMap<OsString, Vec<u8>>,
    pub(super) body: Body,
}

impl MemNode {
    /// Whether a crash that leaves `self` instead of `other` lost anything except times.
    pub(super) fn holds_the_same_as(&self, other: &MemNode) -> bool {
        let owner = |node: &MemNode| (node.generation, node.attrs.permissions, node.attrs.uid, node.attrs.gid);
        owner(self) == owner(other) && self.xattrs == other.xattrs && self.body == other.body
    }

    /// The part of the node that a durable name alone keeps: the node exists, and a link has its target.
    pub(super) fn without_content(&self) -> MemNode {
        let body = match &self.body {
            Body::File(_) => Body::File(Blocks::default()),
            Body::Directory(_) => Body::Directory(Entries::default()),
            Body::Symlink(_) | Body::Special { .. } => self.body.clone(),
        };
        MemNode { body, xattrs: self.xattrs.clone(), ..*self }
    }
}

/// The attributes that are not derived from body or names.
#[derive(Copy, Clone)]
pub(super) struct Attrs {
    pub(super) permissions: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
}

/// The part that depends on the kind.
#[derive(Clone, Eq, PartialEq)]
pub(super) enum Body {
    File(Blocks),
    Directory(Entries),
    Symlink(OsString),
    Special { type_bits: u32, rdev: u64 },
}

impl Body {
    pub(super) fn kind(&self) -> NodeKind {
        match self {
            Self::File(_) => NodeKind::File,
            Self::Directory(_) => NodeKind::Directory,
            Self::Symlink(_) => NodeKind::Symlink,
            Self::Special { .. } => NodeKind::Special,
        }
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        match self {
            Self::File(blocks) => blocks.allocated_bytes(),
            Self::Directory(_) => PAGE_BYTES,
            Self::Symlink(_) | Self::Special { .. } => 0,
        }
    }
}

/// The entries of a directory. Each has a cookie, which is never reused.
#[derive(Clone, Default)]
pub(super) struct Entries {
    by_cookie: BTreeMap<u64, DirEntry>,
    cookies: HashMap<OsString, u64>,
    last_cookie: u64,
    subdirectories: u32,
}

impl Entries {
    pub(super) fn get(&self, name: &OsStr) -> Option<u64> {
        self.cookies.get(name).map(|cookie| self.by_cookie[cookie].ino)
    }

    /// Gives `name` to `ino`, replacing an earlier entry.
    pub(super) fn insert(&mut self, name: &OsStr, ino: u64, kind: NodeKind) {
        self.remove(name);
        self.last_cookie += 1;
        let entry = DirEntry { cookie: self.last_cookie, name: name.into(), ino, kind: Some(kind) };
        self.by_cookie.insert(entry.cookie, entry);
        self.cookies.insert(name.into(), self.last_cookie);
        self.subdirectories += u32::from(kind == NodeKind::Directory);
    }

    pub(super) fn remove(&mut self, name: &OsStr) {
        if let Some(entry) = self.cookies.remove(name).and_then(|cookie| self.by_cookie.remove(&cookie)) {
            self.subdirectories -= u32::from(entry.kind == Some(NodeKind::Directory));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cookies.is_empty()
    }

    pub(super) fn subdirectories(&self) -> u32 {
        self.subdirectories
    }

    /// The entries after `cookie`.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = &DirEntry> {
        self.by_cookie.range((Bound::Excluded(cookie), Bound::Unbounded)).map(|(_, entry)| entry)
    }
}

impl Eq for Entries {}

/// Equal if the same names lead to the same nodes; cookies and order do not matter.
impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        self.cookies.len() == other.cookies.len()
            && self.after(0).all(|entry| other.get(&entry.name) == Some(entry.ino))
    }
}

//! The model: nodes in plain maps. A clone is a moment of the volume; clones share the bytes of files.

use std::collections::BTreeMap;
use std::sync::Arc;

use slackwater::backend::{FallocateMode, NewNode, Removal, RenameMode};

/// A node of the model, whatever number the backend gives it.
pub(crate) type Id = u32;

pub(crate) const ROOT: Id = 0;

#[derive(Clone, Eq, PartialEq, Debug)]
pub(crate) enum Body {
    File(Arc<Vec<u8>>),
    Directory(BTreeMap<String, Id>),
    Symlink(String),
    /// Type bits of a device, FIFO or socket; a whiteout is a character device 0/0.
    Special(u32),
}

#[derive(Clone, Eq, PartialEq, Debug)]
pub(crate) struct Node {
    pub(crate) body: Body,
    pub(crate) mode: u32,
    pub(crate) xattrs: BTreeMap<String, Vec<u8>>,
    /// Whether it was made without a name and may get one. A node that lost its last name gets none again.
    awaits_name: bool,
}

/// A call that changes the volume. Names are in the directory before them.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Make { dir: Id, name: String, what: NewNode, mode: u32 },
    Tmpfile { dir: Id },
    Link { node: Id, dir: Id, name: String },
    Remove { dir: Id, name: String, removal: Removal },
    Rename { from: (Id, String), to: (Id, String), mode: RenameMode },
    Chmod { node: Id, mode: u32 },
    Resize { node: Id, size: u64 },
    Range { node: Id, mode: FallocateMode, offset: u64, len: u64 },
    SetXattr { node: Id, name: String, value: Vec<u8> },
    RemoveXattr { node: Id, name: String },
    Write { node: Id, offset: u64, bytes: Arc<Vec<u8>> },
}

/// The call must fail. Which error it returns is the matter of the conformance suite.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Refused;

#[derive(Clone)]
pub(crate) struct Tree {
    nodes: BTreeMap<Id, Arc<Node>>,
    next: Id,
}

const CHARACTER_DEVICE: u32 = 0o020_000;

impl Tree {
    /// A volume as `mkfs` makes it.
    pub(crate) fn new(root_mode: u32) -> Self {
        let mut tree = Self { nodes: BTreeMap::new(), next: ROOT };
        tree.add(Body::Directory(BTreeMap::new()), root_mode);
        tree
    }

    pub(crate) fn get(&self, id: Id) -> Option<&Node> {
        self.nodes.get(&id).map(AsRef::as_ref)
    }

    fn node(&self, id: Id) -> &Node {
        self.get(id).expect("the node is open or has a name")
    }

    fn node_mut(&mut self, id: Id) -> &mut Node {
        Arc::make_mut(self.nodes.get_mut(&id).expect("the node is open or has a name"))
    }

    fn add(&mut self, body: Body, mode: u32) -> Id {
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, Arc::new(Node { body, mode, xattrs: BTreeMap::new(), awaits_name: false }));
        id
    }

    /// The entries of a directory, and none of another node.
    pub(crate) fn entries(&self, id: Id) -> &BTreeMap<String, Id> {
        static NONE: BTreeMap<String, Id> = BTreeMap::new();
        match &self.node(id).body {
            Body::Directory(entries) => entries,
            Body::File(_) | Body::Symlink(_) | Body::Special(_) => &NONE,
        }
    }

    fn entries_mut(&mut self, id: Id) -> &mut BTreeMap<String, Id> {
        match &mut self.node_mut(id).body {
            Body::Directory(entries) => entries,
            Body::File(_) | Body::Symlink(_) | Body::Special(_) => unreachable!("it was checked to be a directory"),
        }
    }

    pub(crate) fn is_directory(&self, id: Id) -> bool {
        matches!(self.node(id).body, Body::Directory(_))
    }

    /// The bytes of a regular file.
    pub(crate) fn bytes(&self, id: Id) -> Option<&Arc<Vec<u8>>> {
        match &self.node(id).body {
            Body::File(bytes) => Some(bytes),
            Body::Directory(_) | Body::Symlink(_) | Body::Special(_) => None,
        }
    }

    fn bytes_mut(&mut self, id: Id) -> Result<&mut Vec<u8>, Refused> {
        match &mut self.node_mut(id).body {
            Body::File(bytes) => Ok(Arc::make_mut(bytes)),
            Body::Directory(_) | Body::Symlink(_) | Body::Special(_) => Err(Refused),
        }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> {
        self.nodes.keys().copied()
    }

    /// How many names a node has.
    pub(crate) fn names_of(&self, id: Id) -> usize {
        self.nodes.keys().map(|dir| self.entries(*dir).values().filter(|named| **named == id).count()).sum()
    }

    /// A directory and the name of a node in it.
    pub(crate) fn name_of(&self, id: Id) -> Option<(Id, String)> {
        let named = |dir: Id| self.entries(dir).iter().find(|(_, named)| **named == id).map(|(name, _)| name.clone());
        self.nodes.keys().find_map(|dir| Some((*dir, named(*dir)?)))
    }

    /// Whether a directory is in the volume, and not removed while it is open.
    fn is_reachable(&self, id: Id) -> bool {
        id == ROOT || self.names_of(id) > 0
    }

    /// Whether `inner` is `outer` or somewhere below it.
    fn is_within(&self, inner: Id, outer: Id) -> bool {
        inner == outer || self.entries(outer).values().any(|child| self.is_within(inner, *child))
    }

    /// Forgets the nodes for which `is_kept` is false and which have no name.
    pub(crate) fn forget_unnamed(&mut self, is_kept: impl Fn(Id) -> bool) {
        let unnamed: Vec<Id> = self.ids().filter(|id| !self.is_reachable(*id) && !is_kept(*id)).collect();
        unnamed.iter().for_each(|id| drop(self.nodes.remove(id)));
    }

    /// Makes a change, or none if it is refused. Returns the node that was made.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<Option<Id>, Refused> {
        match change {
            Change::Make { dir, name, what, mode } => {
                self.check_free(*dir, name)?;
                let body = match what {
                    NewNode::Directory => Body::Directory(BTreeMap::new()),
                    NewNode::Symlink(target) => Body::Symlink(target.to_str().expect("our own target").to_owned()),
                    NewNode::Special { type_bits, .. } => Body::Special(*type_bits),
                    NewNode::File | _ => Body::File(Arc::default()),
                };
                let made = self.add(body, *mode);
                self.entries_mut(*dir).insert(name.clone(), made);
                return Ok(Some(made));
            }
            Change::Tmpfile { dir } => {
                if !self.is_directory(*dir) || !self.is_reachable(*dir) {
                    return Err(Refused);
                }
                let made = self.add(Body::File(Arc::default()), 0o600);
                self.node_mut(made).awaits_name = true;
                return Ok(Some(made));
            }
            Change::Link { node, dir, name } => {
                self.check_free(*dir, name)?;
                if self.is_directory(*node) || self.names_of(*node) == 0 && !self.node(*node).awaits_name {
                    return Err(Refused);
                }
                self.node_mut(*node).awaits_name = false;
                self.entries_mut(*dir).insert(name.clone(), *node);
            }
            Change::Remove { dir, name, removal } => self.remove(*dir, name, *removal)?,
            Change::Rename { from, to, mode } => self.rename(from, to, *mode)?,
            Change::Chmod { node, mode } => self.node_mut(*node).mode = *mode,
            Change::Resize { node, size } => self.bytes_mut(*node)?.resize(*size as usize, 0),
            Change::Range { node, mode, offset, len } => self.range(*node, *mode, *offset as usize, *len as usize)?,
            Change::SetXattr { node, name, value } => {
                self.node_mut(*node).xattrs.insert(name.clone(), value.clone());
            }
            Change::RemoveXattr { node, name } => {
                self.node(*node).xattrs.get(name).ok_or(Refused)?;
                self.node_mut(*node).xattrs.remove(name);
            }
            Change::Write { node, offset, bytes } => {
                let (file, at) = (self.bytes_mut(*node)?, *offset as usize);
                file.resize(file.len().max(at + bytes.len()), 0);
                file[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        Ok(None)
    }

    fn check_free(&self, dir: Id, name: &str) -> Result<(), Refused> {
        let is_free = self.is_directory(dir) && self.is_reachable(dir) && !self.entries(dir).contains_key(name);
        if is_free { Ok(()) } else { Err(Refused) }
    }

    fn remove(&mut self, dir: Id, name: &str, removal: Removal) -> Result<(), Refused> {
        let node = *self.entries(dir).get(name).ok_or(Refused)?;
        let is_allowed = match removal {
            Removal::File => !self.is_directory(node),
            Removal::Directory => self.is_directory(node) && self.entries(node).is_empty(),
        };
        if !is_allowed {
            return Err(Refused);
        }
        self.entries_mut(dir).remove(name);
        Ok(())
    }

    fn rename(&mut self, from: &(Id, String), to: &(Id, String), mode: RenameMode) -> Result<(), Refused> {
        let node = *self.entries(from.0).get(&from.1).ok_or(Refused)?;
        if !self.is_directory(to.0) || !self.is_reachable(to.0) || self.is_within(to.0, node) {
            return Err(Refused);
        }
        let other = self.entries(to.0).get(&to.1).copied();
        let is_allowed = match (mode, other) {
            (RenameMode::Exchange, other) => other.is_some_and(|other| !self.is_within(from.0, other)),
            (RenameMode::NoReplace, other) => other.is_none(),
            (RenameMode::Replace | RenameMode::Whiteout, None) => true,
            (RenameMode::Replace | RenameMode::Whiteout, Some(other)) => {
                let both = (self.is_directory(node), self.is_directory(other));
                other == node || both == (false, false) || both == (true, true) && self.entries(other).is_empty()
            }
        };
        if !is_allowed {
            return Err(Refused);
        }
        if other == Some(node) {
            return Ok(());
        }
        self.entries_mut(from.0).remove(&from.1);
        self.entries_mut(to.0).insert(to.1.clone(), node);
        if let (RenameMode::Exchange, Some(other)) = (mode, other) {
            self.entries_mut(from.0).insert(from.1.clone(), other);
        }
        if mode == RenameMode::Whiteout {
            let whiteout = self.add(Body::Special(CHARACTER_DEVICE), 0);
            self.entries_mut(from.0).insert(from.1.clone(), whiteout);
        }
        Ok(())
    }

    fn range(&mut self, node: Id, mode: FallocateMode, offset: usize, len: usize) -> Result<(), Refused> {
        let bytes = self.bytes_mut(node)?;
        if matches!(mode, FallocateMode::Allocate | FallocateMode::Zero) {
            bytes.resize(bytes.len().max(offset + len), 0);
        }
        if !matches!(mode, FallocateMode::Allocate | FallocateMode::AllocateKeepSize) {
            let end = bytes.len().min(offset + len);
            bytes[offset.min(end)..end].fill(0);
        }
        Ok(())
    }

    /// The nodes that a walk of the volume finds, by path; see [`Seen`].
    pub(crate) fn seen(&self) -> BTreeMap<String, Seen> {
        let mut seen = BTreeMap::new();
        let mut first_names = BTreeMap::new();
        self.see(ROOT, "/".into(), &mut first_names, &mut seen);
        seen
    }

    fn see(&self, id: Id, path: String, first: &mut BTreeMap<Id, String>, seen: &mut BTreeMap<String, Seen>) {
        let first_name = first.entry(id).or_insert_with(|| path.clone()).clone();
        for (name, child) in self.entries(id) {
            self.see(*child, format!("{path}{name}/"), first, seen);
        }
        let node = self.node(id);
        let content = match &node.body {
            Body::File(bytes) => Content::File(bytes.clone()),
            Body::Directory(_) => Content::Directory,
            Body::Symlink(target) => Content::Symlink(target.clone()),
            Body::Special(type_bits) => Content::Special(*type_bits),
        };
        let subdirectories = self.entries(id).values().filter(|child| self.is_directory(**child)).count();
        let names = if self.is_directory(id) { 2 + subdirectories } else { self.names_of(id) };
        let (mode, xattrs) = (node.mode, node.xattrs.clone());
        seen.insert(path, Seen { first_name, content, mode, xattrs, names });
    }

    /// The node at a path of [`Tree::seen`].
    pub(crate) fn walk(&self, path: &str) -> Id {
        path.split('/').filter(|name| !name.is_empty()).fold(ROOT, |dir, name| self.entries(dir)[name])
    }
}

/// A node as a walk finds it.
#[derive(Clone, Eq, PartialEq)]
pub(crate) struct Seen {
    /// The first path of the walk that leads to this node: equal for hard links alone.
    pub(crate) first_name: String,
    pub(crate) content: Content,
    pub(crate) mode: u32,
    pub(crate) xattrs: BTreeMap<String, Vec<u8>>,
    /// The number of names as `stat` shows it.
    pub(crate) names: usize,
}

#[derive(Clone, Eq, PartialEq)]
pub(crate) enum Content {
    File(Arc<Vec<u8>>),
    Directory,
    Symlink(String),
    Special(u32),
}

/// The first difference between two walks; `None` if there is none.
pub(crate) fn difference(wanted: &BTreeMap<String, Seen>, found: &BTreeMap<String, Seen>) -> Option<String> {
    if let Some(path) = wanted.keys().find(|path| !found.contains_key(*path)) {
        return Some(format!("{path} is missing"));
    }
    if let Some(path) = found.keys().find(|path| !wanted.contains_key(*path)) {
        return Some(format!("{path} should not exist"));
    }
    wanted
        .iter()
        .zip(found)
        .find_map(|((path, wanted), (_, found))| Some(format!("{path}: {}", unlike(wanted, found)?)))
}

fn unlike(wanted: &Seen, found: &Seen) -> Option<String> {
    match (&wanted.content, &found.content) {
        (Content::File(wanted), Content::File(found)) => {
            if let Some(what) = unlike_bytes(wanted, found) {
                return Some(what);
            }
        }
        (wanted, found) if wanted != found => return Some("another kind or target".into()),
        _ => {}
    }
    if wanted.first_name != found.first_name || wanted.names != found.names {
        let names = |seen: &Seen| format!("{} names, first {}", seen.names, seen.first_name);
        return Some(format!("{}; should be {}", names(found), names(wanted)));
    }
    if wanted.mode != found.mode {
        return Some(format!("mode {:o}, should be {:o}", found.mode, wanted.mode));
    }
    let names = |seen: &Seen| seen.xattrs.iter().map(|(name, value)| (name.clone(), value.len())).collect::<Vec<_>>();
    (wanted.xattrs != found.xattrs).then(|| format!("attributes {:?}, should be {:?}", names(found), names(wanted)))
}

/// Without printing the bytes.
pub(crate) fn unlike_bytes(wanted: &[u8], found: &[u8]) -> Option<String> {
    if wanted == found {
        return None;
    }
    let at = wanted.iter().zip(found).position(|(wanted, found)| wanted != found);
    let bytes = at.map(|at| (wanted[at], found[at]));
    Some(format!("{} bytes, should be {}; first difference at {at:?}: {bytes:?}", found.len(), wanted.len()))
}

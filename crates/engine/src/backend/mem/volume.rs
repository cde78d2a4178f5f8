//! The volume as its callers see it: nodes, their names, and what each call does to them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use slackwater_sync::shim::Arc;

use crate::backend::mem::blocks::Blocks;
use crate::backend::mem::create::WHITEOUT;
use crate::backend::mem::node::{Body, Entries, MemNode};
use crate::backend::{
    Attr, AttrChange, DirEntry, DirEntryPlus, FileHandle, Found, Node, NodeKind, Protection, ReadUnit, Removal,
    RenameMode, Statfs, WriteUnit,
};
use crate::error::{BackendError, ErrorKind};
use crate::units::{NodeId, PAGE_BYTES, Timestamp};

/// Number of the root directory.
pub(super) const ROOT: u64 = 1;
/// Longest name in bytes, as on most file systems.
const NAME_MAX: usize = 255;
/// The most entries of one answer: small, so that readers have to call again.
const ENTRIES_PER_CALL: usize = 128;
/// Default size of a volume in blocks of a page: 1 TiB.
pub(super) const VOLUME_BLOCKS: u64 = 1 << 28;
/// Node slots that `Statfs` reports.
const VOLUME_FILES: u64 = 1 << 32;

pub(super) type Answer<T> = Result<T, BackendError>;

/// All nodes, as callers see them and as a crash leaves them. Boxed, because a map allocates space for eleven at once.
pub(super) struct Volume {
    pub(super) live: BTreeMap<u64, Box<Live>>,
    /// The state after a crash; see [`crate::backend::mem::durability`].
    pub(super) durable: BTreeMap<u64, Box<MemNode>>,
    /// Pairs of directories between which names were moved, not yet durable.
    pub(super) moved: Vec<(u64, u64)>,
    /// Nodes that lost something in a crash and have not yet failed a sync for it.
    pub(super) lost: BTreeSet<u64>,
    /// Whether a crash lost anything that no sync of the volume has failed for yet.
    pub(super) volume_lost: bool,
    /// Nodes without a name that are still open.
    pub(super) nameless: Vec<u64>,
    /// Numbers of nodes that were removed before they became durable.
    pub(super) free: Vec<u64>,
    pub(super) last_ino: u64,
    pub(super) last_generation: u64,
    /// Time is a count of changes, so that every test run sees the same times.
    changes: i64,
    pub(super) dev: u64,
    pub(super) max_file_bytes: u64,
    blocks: u64,
}

/// A node with the names that lead to it.
pub(super) struct Live {
    pub(super) node: MemNode,
    /// Directory and name, one pair for each link.
    pub(super) names: Vec<(u64, OsString)>,
    /// Whether it was made without a name and never had one.
    pub(super) may_get_a_name: bool,
    /// Shared by all open nodes of this file.
    pub(super) pin: Arc<()>,
}

/// The value in a [`Node`] of this backend: it keeps a file without a name alive.
struct Opened {
    ino: u64,
    pin: Arc<()>,
}

impl Volume {
    pub(super) fn new(dev: u64, max_file_bytes: u64, blocks: u64) -> Self {
        let mut volume = Self {
            live: BTreeMap::new(),
            durable: BTreeMap::new(),
            moved: Vec::new(),
            lost: BTreeSet::new(),
            volume_lost: false,
            nameless: Vec::new(),
            free: Vec::new(),
            last_ino: ROOT - 1,
            last_generation: 0,
            changes: 0,
            dev,
            max_file_bytes,
            blocks,
        };
        let root = volume.add(Body::Directory(Entries::default()), 0o755, (0, 0));
        volume.durable.insert(root, Box::new(volume.live[&root].node.clone()));
        volume
    }

    pub(super) fn found(&self, ino: u64) -> Answer<Found> {
        let live = &self.live[&ino];
        let mut handle = [0; 16];
        handle[..8].copy_from_slice(&ino.to_le_bytes());
        handle[8..].copy_from_slice(&live.node.generation.to_le_bytes());
        Ok(Found {
            node: Node::new(self.id(ino), Opened { ino, pin: live.pin.clone() }),
            handle: FileHandle::new(&handle).expect("16 bytes are not too many"),
            attr: self.attr(ino),
        })
    }

    pub(super) fn lookup(&self, dir: &Node, name: &OsStr) -> Answer<Found> {
        check_name(name)?;
        let (_, entries) = self.directory(dir)?;
        self.found(entries.get(name).ok_or(ErrorKind::NotFound)?)
    }

    pub(super) fn reopen(&self, handle: &FileHandle, id: Option<NodeId>, nameless: bool) -> Answer<Found> {
        let handle: &[u8; 16] = handle.as_bytes().try_into().map_err(|_| ErrorKind::Stale)?;
        let (ino, generation) = (u64::from_le_bytes(handle[..8].try_into().expect("8 bytes")), &handle[8..]);
        let live = self.live.get(&ino).ok_or(ErrorKind::Stale)?;
        let has_name = nameless || ino == ROOT || !live.names.is_empty();
        if !has_name || generation != live.node.generation.to_le_bytes() || id.is_some_and(|id| id != self.id(ino)) {
            return Err(ErrorKind::Stale.into());
        }
        self.found(ino)
    }

    pub(super) fn parent(&self, dir: &Node) -> Answer<Found> {
        let (ino, _) = self.directory(dir)?;
        let (parent, _) = self.live[&ino].names.first().ok_or(ErrorKind::Stale)?;
        self.found(*parent)
    }

    pub(super) fn getattr(&self, node: &Node) -> Answer<Attr> {
        Ok(self.attr(self.ino(node)?))
    }

    pub(super) fn setattr(&mut self, node: &Node, change: AttrChange) -> Answer<Attr> {
        let (ino, now) = (self.ino(node)?, self.tick());
        let max_file_bytes = self.max_file_bytes;
        let node = self.node_mut(ino);
        // All checks come first: all or none.
        if change.mode.is_some() && node.body.kind() == NodeKind::Symlink {
            return Err(ErrorKind::Unsupported.into());
        }
        if let Some(size_bytes) = change.size_bytes {
            let blocks = blocks_mut(&mut node.body)?;
            if size_bytes > max_file_bytes {
                return Err(ErrorKind::TooLarge.into());
            }
            blocks.resize(size_bytes);
            node.attrs.mtime = now;
        }
        let attrs = &mut node.attrs;
        attrs.permissions = change.mode.map_or(attrs.permissions, |mode| mode & 0o7777);
        attrs.uid = change.uid.unwrap_or(attrs.uid);
        attrs.gid = change.gid.unwrap_or(attrs.gid);
        attrs.atime = change.atime.unwrap_or(attrs.atime);
        attrs.mtime = change.mtime.unwrap_or(attrs.mtime);
        attrs.ctime = now;
        Ok(self.attr(ino))
    }

    pub(super) fn link(&mut self, node: &Node, dir: &Node, name: &OsStr) -> Answer<Attr> {
        let ino = self.ino(node)?;
        let dir = self.free_name(dir, name)?;
        if self.live[&ino].node.body.kind() == NodeKind::Directory {
            return Err(ErrorKind::NotPermitted.into());
        }
        if self.live[&ino].names.is_empty() && !self.live[&ino].may_get_a_name {
            return Err(ErrorKind::NotFound.into());
        }
        self.give_name(ino, dir, name);
        Ok(self.attr(ino))
    }

    pub(super) fn remove(&mut self, dir: &Node, name: &OsStr, removal: Removal) -> Answer<Found> {
        check_name(name)?;
        let (dir, entries) = self.directory(dir)?;
        let ino = entries.get(name).ok_or(ErrorKind::NotFound)?;
        match (&self.live[&ino].node.body, removal) {
            (Body::Directory(_), Removal::File) => return Err(ErrorKind::IsDirectory.into()),
            (Body::File(_) | Body::Symlink(_) | Body::Special { .. }, Removal::Directory) => {
                return Err(ErrorKind::NotDirectory.into());
            }
            (Body::Directory(entries), Removal::Directory) if !entries.is_empty() => {
                return Err(ErrorKind::NotEmpty.into());
            }
            (Body::Directory(_), Removal::Directory)
            | (Body::File(_) | Body::Symlink(_) | Body::Special { .. }, Removal::File) => {}
        }
        self.take_name(ino, dir, name);
        self.found(ino)
    }

    pub(super) fn rename(
        &mut self,
        (from_dir, from): (&Node, &OsStr),
        (to_dir, to): (&Node, &OsStr),
        mode: RenameMode,
    ) -> Answer<()> {
        check_name(from)?;
        check_name(to)?;
        let (from_dir, entries) = self.directory(from_dir)?;
        let ino = entries.get(from).ok_or(ErrorKind::NotFound)?;
        let to_dir = self.directory_with_a_name(to_dir)?;
        let replaced = self.directory_of(to_dir)?.get(to);
        self.check_rename((ino, from_dir), (replaced, to_dir), mode)?;
        if replaced == Some(ino) {
            return Ok(());
        }
        self.take_name(ino, from_dir, from);
        if let Some(replaced) = replaced {
            self.take_name(replaced, to_dir, to);
            if mode == RenameMode::Exchange {
                self.give_name(replaced, from_dir, from);
            }
        }
        self.give_name(ino, to_dir, to);
        if mode == RenameMode::Whiteout {
            let whiteout = self.add(WHITEOUT, 0, (0, 0));
            self.give_name(whiteout, from_dir, from);
        }
        if from_dir != to_dir {
            self.moved.push((from_dir, to_dir));
        }
        Ok(())
    }

    pub(super) fn readlink(&self, node: &Node) -> Answer<OsString> {
        match &self.live[&self.ino(node)?].node.body {
            Body::Symlink(target) => Ok(target.clone()),
            Body::File(_) | Body::Directory(_) | Body::Special { .. } => Err(ErrorKind::Invalid.into()),
        }
    }

    pub(super) fn readdir(&self, node: &Node, cookie: u64) -> Answer<Vec<DirEntry>> {
        let (_, entries) = self.directory(node)?;
        Ok(entries.after(cookie).take(ENTRIES_PER_CALL).cloned().collect())
    }

    pub(super) fn readdir_plus(&self, node: &Node, cookie: u64) -> Answer<Vec<DirEntryPlus>> {
        let plus = |entry: DirEntry| Ok(DirEntryPlus { found: Some(self.found(entry.ino)?), entry });
        self.readdir(node, cookie)?.into_iter().map(plus).collect()
    }

    pub(super) fn read(&self, unit: &mut ReadUnit) -> Answer<usize> {
        let Body::File(blocks) = &self.live[&self.ino(unit.node())?].node.body else {
            return Err(ErrorKind::Invalid.into());
        };
        let (mut at, mut read) = (unit.offset_bytes(), 0);
        for slice in unit.slices_mut() {
            read += blocks.read(at, slice);
            at += slice.len() as u64;
        }
        Ok(read)
    }

    pub(super) fn write(&mut self, unit: &WriteUnit) -> Answer<usize> {
        let (ino, now) = (self.ino(unit.node())?, self.tick());
        let end = unit.offset_bytes().saturating_add(unit.len_bytes() as u64);
        if end > self.max_file_bytes {
            return Err(ErrorKind::TooLarge.into());
        }
        self.reap();
        let free_bytes = self.blocks_free() * PAGE_BYTES;
        let node = self.node_mut(ino);
        let blocks = blocks_mut(&mut node.body)?;
        let mut at = unit.offset_bytes();
        let mut left = unit.len_bytes() as u64;
        if blocks.missing_bytes(at, left) > free_bytes {
            // As much as fits, in whole pages.
            left = (1..)
                .map(|pages| pages * PAGE_BYTES)
                .find(|len| blocks.missing_bytes(at, *len) > free_bytes)
                .map_or(0, |len| len - PAGE_BYTES);
            if left == 0 {
                return Err(ErrorKind::NoSpace.into());
            }
        }
        for slice in unit.slices() {
            let now = (slice.len() as u64).min(left);
            blocks.write(at, &slice[..now as usize]);
            at += now;
            left -= now;
        }
        (node.attrs.mtime, node.attrs.ctime) = (now, now);
        Ok((at - unit.offset_bytes()) as usize)
    }

    pub(super) fn statfs(&mut self) -> Answer<Statfs> {
        self.reap();
        let blocks_free = self.blocks_free();
        Ok(Statfs {
            block_bytes: PAGE_BYTES,
            fragment_bytes: PAGE_BYTES,
            blocks: self.blocks,
            blocks_free,
            blocks_available: blocks_free,
            files: VOLUME_FILES,
            files_free: VOLUME_FILES - self.live.len() as u64,
            name_max: NAME_MAX as u32,
        })
    }

    pub(super) fn blocks_free(&self) -> u64 {
        let used: u64 = self.live.values().map(|live| live.node.body.allocated_bytes()).sum();
        self.blocks.saturating_sub(used / PAGE_BYTES)
    }

    /// The number of an open node of this volume, which must still exist.
    pub(super) fn ino(&self, node: &Node) -> Answer<u64> {
        let opened: &Opened = node.get().ok_or(ErrorKind::Invalid)?;
        let is_it = |live: &Live| Arc::ptr_eq(&live.pin, &opened.pin);
        self.live.get(&opened.ino).filter(|live| is_it(live)).ok_or(ErrorKind::Stale)?;
        Ok(opened.ino)
    }

    pub(super) fn id(&self, ino: u64) -> NodeId {
        NodeId { dev: self.dev, ino, generation: self.live[&ino].node.generation }
    }

    pub(super) fn attr(&self, ino: u64) -> Attr {
        let Live { node, names, .. } = &*self.live[&ino];
        let (kind, attrs) = (node.body.kind(), node.attrs);
        let (nlink, size_bytes) = match &node.body {
            Body::File(blocks) => (names.len() as u32, blocks.size_bytes()),
            Body::Symlink(target) => (names.len() as u32, target.len() as u64),
            Body::Directory(_) if names.is_empty() && ino != ROOT => (0, PAGE_BYTES),
            Body::Directory(entries) => (2 + entries.subdirectories(), PAGE_BYTES),
            Body::Special { .. } => (names.len() as u32, 0),
        };
        let (type_bits, rdev) = match node.body {
            Body::Special { type_bits, rdev } => (type_bits, rdev),
            Body::File(_) | Body::Symlink(_) | Body::Directory(_) => (kind.type_bits(), 0),
        };
        Attr {
            id: self.id(ino),
            kind,
            mode: type_bits | attrs.permissions,
            nlink,
            uid: attrs.uid,
            gid: attrs.gid,
            rdev,
            size_bytes,
            allocated_bytes: node.body.allocated_bytes(),
            atime: attrs.atime,
            mtime: attrs.mtime,
            ctime: attrs.ctime,
            protection: Protection::None,
        }
    }

    fn directory(&self, node: &Node) -> Answer<(u64, &Entries)> {
        let ino = self.ino(node)?;
        Ok((ino, self.directory_of(ino)?))
    }

    pub(super) fn directory_of(&self, ino: u64) -> Answer<&Entries> {
        match &self.live[&ino].node.body {
            Body::Directory(entries) => Ok(entries),
            Body::File(_) | Body::Symlink(_) | Body::Special { .. } => Err(ErrorKind::NotDirectory.into()),
        }
    }

    /// A directory that can get new names: not one that was removed while open.
    pub(super) fn directory_with_a_name(&self, node: &Node) -> Answer<u64> {
        let (ino, _) = self.directory(node)?;
        if ino != ROOT && self.live[&ino].names.is_empty() {
            return Err(ErrorKind::NotFound.into());
        }
        Ok(ino)
    }

    /// The directory `dir`, in which `name` is free and valid.
    pub(super) fn free_name(&self, dir: &Node, name: &OsStr) -> Answer<u64> {
        check_name(name)?;
        let dir = self.directory_with_a_name(dir)?;
        match self.directory_of(dir)?.get(name) {
            Some(_) => Err(ErrorKind::Exists.into()),
            None => Ok(dir),
        }
    }

    /// Checks a rename, in the order of Linux: names, then loops, then kinds.
    fn check_rename(
        &self,
        (ino, from_dir): (u64, u64),
        (replaced, to_dir): (Option<u64>, u64),
        mode: RenameMode,
    ) -> Answer<()> {
        match (mode, replaced) {
            (RenameMode::Exchange, None) => return Err(ErrorKind::NotFound.into()),
            (RenameMode::NoReplace, Some(_)) => return Err(ErrorKind::Exists.into()),
            (_, _) => {}
        }
        let exchanged = replaced.filter(|_| mode == RenameMode::Exchange);
        if self.is_within(to_dir, ino) || exchanged.is_some_and(|other| self.is_within(from_dir, other)) {
            return Err(ErrorKind::Invalid.into());
        }
        let body = |ino: u64| &self.live[&ino].node.body;
        let is_directory = body(ino).kind() == NodeKind::Directory;
        match replaced.filter(|other| *other != ino && exchanged.is_none()) {
            Some(other) => match body(other) {
                Body::Directory(_) if !is_directory => Err(ErrorKind::IsDirectory.into()),
                Body::Directory(entries) if !entries.is_empty() => Err(ErrorKind::NotEmpty.into()),
                Body::File(_) | Body::Symlink(_) | Body::Special { .. } if is_directory => {
                    Err(ErrorKind::NotDirectory.into())
                }
                Body::Directory(_) | Body::File(_) | Body::Symlink(_) | Body::Special { .. } => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Whether the directory `inner` is `outer` or somewhere below it.
    fn is_within(&self, mut inner: u64, outer: u64) -> bool {
        while inner != outer {
            match self.live[&inner].names.first() {
                Some((parent, _)) => inner = *parent,
                None => return false,
            }
        }
        true
    }

    pub(super) fn node_mut(&mut self, ino: u64) -> &mut MemNode {
        &mut self.live.get_mut(&ino).expect("the number was looked up").node
    }

    pub(super) fn give_name(&mut self, ino: u64, dir: u64, name: &OsStr) {
        let live = self.live.get_mut(&ino).expect("the number was looked up");
        live.names.push((dir, name.into()));
        live.may_get_a_name = false;
        let kind = live.node.body.kind();
        self.change_entries(ino, dir, |entries| entries.insert(name, ino, kind));
    }

    fn take_name(&mut self, ino: u64, dir: u64, name: &OsStr) {
        let live = self.live.get_mut(&ino).expect("an entry leads to a node");
        live.names.retain(|(other_dir, other)| *other_dir != dir || other != name);
        if live.names.is_empty() {
            self.nameless.push(ino);
        }
        self.change_entries(ino, dir, |entries| entries.remove(name));
    }

    fn change_entries(&mut self, ino: u64, dir: u64, change: impl FnOnce(&mut Entries)) {
        let now = self.tick();
        self.node_mut(ino).attrs.ctime = now;
        let dir = self.node_mut(dir);
        (dir.attrs.mtime, dir.attrs.ctime) = (now, now);
        if let Body::Directory(entries) = &mut dir.body {
            change(entries);
        }
    }

    /// Frees nodes that have no name and are not open.
    pub(super) fn reap(&mut self) {
        let (live, durable, lost, free) = (&mut self.live, &self.durable, &mut self.lost, &mut self.free);
        self.nameless.retain(|ino| {
            let Some(node) = live.get(ino) else { return false };
            let is_open = Arc::strong_count(&node.pin) > 1;
            if node.names.is_empty() && !is_open {
                live.remove(ino);
                lost.remove(ino);
                // The number of a node that a crash would bring back must not be reused.
                if !durable.contains_key(ino) {
                    free.push(*ino);
                }
            }
            is_open && live[ino].names.is_empty()
        });
    }

    pub(super) fn tick(&mut self) -> Timestamp {
        self.changes += 1;
        Timestamp(self.changes)
    }
}

/// Checks that `name` is a single component.
fn check_name(name: &OsStr) -> Answer<()> {
    let bytes = name.as_bytes();
    match bytes {
        b"" | b"." | b".." => Err(ErrorKind::Invalid.into()),
        _ if bytes.contains(&b'/') || bytes.contains(&0) => Err(ErrorKind::Invalid.into()),
        _ if bytes.len() > NAME_MAX => Err(ErrorKind::NameTooLong.into()),
        _ => Ok(()),
    }
}

pub(super) fn blocks_mut(body: &mut Body) -> Answer<&mut Blocks> {
    match body {
        Body::File(blocks) => Ok(blocks),
        Body::Directory(_) => Err(ErrorKind::IsDirectory.into()),
        Body::Symlink(_) | Body::Special { .. } => Err(ErrorKind::Invalid.into()),
    }
}

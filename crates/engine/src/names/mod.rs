//! Operations on names. All of them call the backend: the engine caches no names.
//!
//! # Invariants
//! A1. A node that loses its last name stays open, because it could not be reopened without a name. The backend opens
//!     the node before it answers a removal with it, and a rename opens the node that it may replace. The inode is
//!     first marked nameless, so that its node is not released, and then gets the node if it has none. All of this
//!     precedes the end of the removal: a thread that found no name to open the node by looks again then.
//! A2. The cached attributes of a directory are out of date once a name in it has changed.
//!
//! # Blocking
//! Every method here waits for the backend.
//!
//! # Kernel counterpart
//! `inode_operations`, without a dentry cache, which belongs to the front end.

mod attributes;

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::time::Duration;

use slackwater_sync::gate;
use slackwater_sync::shim::Arc;

use crate::backend::{
    Call, Creator, DirEntry, DirEntryPlus, FileHandle, Found, NewNode, NodeKind, Removal, RenameMode, SyncScope,
};
use crate::cgroup::Memcg;
use crate::error::{BackendError, ErrorKind, FileError};
use crate::filemap;
use crate::inode::{InodeRef, too_many};
use crate::super_block::{NAME_PAGES, SuperBlock};

/// A directory entry and its node.
#[derive(Clone, Debug)]
pub struct NamedInode {
    /// The entry.
    pub entry: DirEntry,
    /// The node. `None` if its name was removed meanwhile, or it belongs to another volume.
    pub inode: Option<InodeRef>,
}

impl SuperBlock {
    /// Finds `name` in `dir`.
    ///
    /// # Errors
    /// The backend fails; `NotFound` if there is no such name.
    pub fn lookup(self: &Arc<Self>, dir: &InodeRef, name: impl AsRef<OsStr>) -> Result<InodeRef, FileError> {
        let inode = self.lookup_unchecked(dir, name)?;
        if inode.kind() == NodeKind::File {
            // Asks the backend only if the attributes look as if another program had changed the file.
            self.revalidate(&inode, Duration::MAX)?;
        }
        Ok(inode)
    }

    /// The same without a check whether another program has changed the file. The caller [checks](Self::revalidate)
    /// it, and so learns of the change.
    ///
    /// # Errors
    /// See [`lookup`](Self::lookup).
    pub fn lookup_unchecked(self: &Arc<Self>, dir: &InodeRef, name: impl AsRef<OsStr>) -> Result<InodeRef, FileError> {
        self.alive()?;
        let (dir, name) = (dir.node()?, name.as_ref().to_os_string());
        Ok(self.find_node(|done| Call::Lookup { dir, name, done })?)
    }

    /// Finds a node by the number of its handle ([`FileHandle::number`]), whichever process made the handle.
    ///
    /// # Errors
    /// The backend fails; `Stale` if it has no such node, or none with a name.
    pub fn find_numbered(self: &Arc<Self>, number: u64) -> Result<InodeRef, FileError> {
        self.alive()?;
        let handle = FileHandle::from_number(number);
        Ok(self.find_node(|done| Call::Reopen { handle, id: None, nameless: false, done })?)
    }

    /// Finds a node by its handle, also a file without a name that another process keeps open.
    ///
    /// # Errors
    /// The backend fails; `Stale` if it has no such node.
    pub fn find_kept(self: &Arc<Self>, handle: &FileHandle) -> Result<InodeRef, FileError> {
        self.alive()?;
        let handle = handle.clone();
        let asked = self.evictions();
        let found: Found = self.call(None, |done| Call::Reopen { handle, id: None, nameless: true, done })?;
        let (node, nlink) = (found.node.clone(), found.attr.nlink);
        let inode = self.iget(found, asked)?;
        if nlink == 0 {
            inode.record_names(0);
            inode.adopt_node(node); // nothing else leads to it
        }
        Ok(inode)
    }

    /// A descriptor of a file, which keeps it alive without a name. `None` if the backend has no such thing.
    ///
    /// # Errors
    /// The backend fails.
    pub fn descriptor(&self, inode: &InodeRef) -> Result<Option<OwnedFd>, FileError> {
        Ok(self.bdi().backend.descriptor(&inode.node()?))
    }

    /// Says that a call which removes the last name of a file is about to be made, or that it has failed. If the process
    /// dies within that call, the next one does not take the file for removed by another program. Without this, it may.
    pub fn note_removal(&self, inode: &InodeRef, is_coming: bool) {
        inode.record_removing(is_coming);
    }

    /// Drops the references to files without a name whose data survived. From now on such a file exists only while it is
    /// open.
    pub fn release_kept(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        drop(kept); // without the lock: it may be the last reference
    }

    /// Finds the parent of `dir`.
    ///
    /// # Errors
    /// The backend fails; `Stale` for the root.
    pub fn parent(self: &Arc<Self>, dir: &InodeRef) -> Result<InodeRef, FileError> {
        self.alive()?;
        let dir = dir.node()?;
        Ok(self.find_node(|done| Call::Parent { dir, done })?)
    }

    /// Walks `path`, names separated by slashes, from the root. Symbolic links are not followed.
    ///
    /// # Errors
    /// The backend fails.
    pub fn walk(self: &Arc<Self>, path: impl AsRef<OsStr>) -> Result<InodeRef, FileError> {
        let mut at = self.root()?;
        for name in path.as_ref().as_encoded_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            // A slash is ASCII, so splitting at it keeps the parts valid.
            let name = String::from_utf8(name.to_vec())
                .map_err(|_| FileError::from(BackendError::from(ErrorKind::Invalid)))?;
            at = self.lookup(&at, name)?;
        }
        Ok(at)
    }

    /// Makes a node. The name must be free. `mode` is used unchanged, and the owner is left to the backend.
    ///
    /// # Errors
    /// The backend fails, or the volume is frozen or unmounted.
    pub fn make(
        self: &Arc<Self>,
        dir: &InodeRef,
        name: impl AsRef<OsStr>,
        what: NewNode,
        mode: u32,
    ) -> Result<InodeRef, FileError> {
        self.make_for(dir, name.as_ref(), what, mode, None)
    }

    /// Makes a node for `creator`. The name must be free.
    ///
    /// # Errors
    /// The backend fails, or the volume is frozen or unmounted.
    pub fn make_as(
        self: &Arc<Self>,
        dir: &InodeRef,
        name: impl AsRef<OsStr>,
        what: NewNode,
        mode: u32,
        creator: Creator,
    ) -> Result<InodeRef, FileError> {
        self.make_for(dir, name.as_ref(), what, mode, Some(creator))
    }

    fn make_for(
        self: &Arc<Self>,
        dir: &InodeRef,
        name: &OsStr,
        what: NewNode,
        mode: u32,
        creator: Option<Creator>,
    ) -> Result<InodeRef, FileError> {
        self.writable()?;
        let (node, name) = (dir.node()?, name.to_os_string());
        let make = || self.find_node(|done| Call::Make { dir: node, name, what, mode, creator, done });
        Ok(self.claim_space(NAME_PAGES, || dir.change_names(make))?)
    }

    /// Makes a file without a name in `dir`. [`SuperBlock::link`] may give it one; otherwise it exists as long as it is
    /// referenced.
    ///
    /// # Errors
    /// The backend fails, or the volume is frozen or unmounted.
    pub fn make_tmpfile(self: &Arc<Self>, dir: &InodeRef, mode: u32, creator: Creator) -> Result<InodeRef, FileError> {
        self.writable()?;
        let node = dir.node()?;
        let creator = Some(creator);
        let asked = self.evictions();
        let make = || self.call(None, |done| Call::Tmpfile { dir: node, mode, creator, done });
        let found: Found = self.claim_space(NAME_PAGES, make)?;
        let node = found.node.clone();
        let inode = self.iget(found, asked)?;
        inode.record_names(0);
        inode.expect_opener();
        inode.adopt_node(node); // A1
        Ok(inode)
    }

    /// Gives `inode` another name.
    ///
    /// # Errors
    /// The backend fails, or the volume is frozen or unmounted.
    pub fn link(self: &Arc<Self>, inode: &InodeRef, dir: &InodeRef, name: impl AsRef<OsStr>) -> Result<(), FileError> {
        self.writable()?;
        let (node, dir_node, name) = (inode.node()?, dir.node()?, name.as_ref().to_os_string());
        let call = || self.call(None, |done| Call::Link { node, dir: dir_node, name, done });
        let attr = self.claim_space(NAME_PAGES, || dir.change_names(|| inode.change_with(call)))?;
        inode.record_names(attr.nlink);
        Ok(())
    }

    /// Removes a name. A file without names exists as long as it is referenced. Then its dirty pages are dropped.
    ///
    /// # Errors
    /// The backend fails, or the volume is frozen or unmounted.
    pub fn remove(
        self: &Arc<Self>,
        dir: &InodeRef,
        name: impl AsRef<OsStr>,
        removal: Removal,
    ) -> Result<(), FileError> {
        self.remove_for(self.root_memcg(), dir, name.as_ref(), removal)
    }

    /// Removes a name as [`remove`](Self::remove) does, for `memcg`.
    ///
    /// # Errors
    /// As [`remove`](Self::remove). `TooManyOpen` if the tenant has the file open itself and too many other open files
    /// without a name.
    pub fn remove_for(
        self: &Arc<Self>,
        memcg: &Arc<Memcg>,
        dir: &InodeRef,
        name: &OsStr,
        removal: Removal,
    ) -> Result<(), FileError> {
        self.writable()?;
        if removal == Removal::File && !self.may_hold(memcg) && !self.lookup(dir, name)?.may_unlink(memcg) {
            return Err(too_many().into());
        }
        let (dir_node, name) = (dir.node()?, name.to_os_string());
        // Which file changes is known only when the call is answered. Until then, no file is taken for foreign.
        let change = self.removals.begin();
        let asked = self.evictions();
        let victim = dir.change_names(|| self.call(None, |done| Call::Remove { dir: dir_node, name, removal, done }));
        gate::pass("removal.answered");
        let victim = victim.map(|victim: Found| {
            let (attr, node) = (victim.attr, victim.node.clone());
            let inode = self.iget(victim, asked).ok()?; // otherwise it is not in memory
            inode.refresh(&attr, inode.changes.quiet());
            inode.record_names(attr.nlink);
            inode.hold_nameless(memcg);
            inode.adopt_node(node); // A1
            Some(inode)
        });
        self.end_removal(change);
        drop(victim?);
        self.space.mark_stale();
        Ok(())
    }

    /// Moves a name. If a file replaces another, its data is written back first: a program that replaces a file expects
    /// the old or the new one after a crash, not an empty one.
    ///
    /// # Errors
    /// The backend fails, or the volume is frozen or unmounted.
    pub fn rename(
        self: &Arc<Self>,
        from_dir: &InodeRef,
        from: impl AsRef<OsStr>,
        to_dir: &InodeRef,
        to: impl AsRef<OsStr>,
        mode: RenameMode,
    ) -> Result<(), FileError> {
        self.rename_after(self.root_memcg(), (from_dir, from.as_ref()), (to_dir, to.as_ref()), mode, |_| {})
    }

    /// Renames as [`rename`](Self::rename) does, for `memcg`. If the file replaces another, `fetch` is called before
    /// its data is written back, to write data that is held elsewhere.
    ///
    /// # Errors
    /// As [`rename`](Self::rename), and those of [`remove_for`](Self::remove_for) for the replaced file.
    pub fn rename_after(
        self: &Arc<Self>,
        memcg: &Arc<Memcg>,
        (from_dir, from): (&InodeRef, &OsStr),
        (to_dir, to): (&InodeRef, &OsStr),
        mode: RenameMode,
        fetch: impl FnOnce(&InodeRef),
    ) -> Result<(), FileError> {
        self.writable()?;
        // Looked up first: a rename changes the file's ctime, which no answer reports.
        let source = self.lookup(from_dir, from)?;
        let other = match mode {
            RenameMode::Replace | RenameMode::Exchange | RenameMode::Whiteout => match self.lookup(to_dir, to) {
                Ok(other) => Some((other.node()?, other)),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            },
            RenameMode::NoReplace => None,
        };
        let replaces = matches!(mode, RenameMode::Replace | RenameMode::Whiteout);
        if replaces
            && let Some((_, other)) = &other
            && !self.may_hold(memcg)
            && !other.may_unlink(memcg)
        {
            return Err(too_many().into());
        }
        if other.is_some() && replaces && source.kind() == NodeKind::File {
            fetch(&source);
            filemap::write_back(source.arc())?;
        }
        let pages = if other.is_none() { NAME_PAGES } else { 0 };
        self.claim_space(pages, || {
            let (from_node, to_node) = (from_dir.node()?, to_dir.node()?);
            let (from, to) = (from.to_os_string(), to.to_os_string());
            // Which name the other file loses is known only from the answer. Until then, no file is taken for foreign.
            let removal = other.is_some().then(|| self.removals.begin());
            let changes = (source.changes.begin(), other.as_ref().map(|(_, other)| other.changes.begin()));
            let rename =
                || self.call(None, |done| Call::Rename { from_dir: from_node, from, to_dir: to_node, to, mode, done });
            let renamed = from_dir.change_names(|| to_dir.change_names(rename));
            gate::pass("removal.answered");
            source.end_change(changes.0, None);
            source.mark_stale();
            if let Some(((node, other), change)) = other.zip(changes.1) {
                let asked = node.clone();
                let attr = match renamed {
                    Ok(()) => self.call(None, |done| Call::Getattr { node: asked, done }).map(Some),
                    Err(_) => Ok(None),
                };
                match &attr {
                    Ok(Some(attr)) => other.record_names(attr.nlink),
                    // Unknown; as far as the engine knows, it was the last name.
                    Err(_) if replaces && other.attr().nlink <= 1 => other.record_names(0),
                    Ok(None) | Err(_) => {}
                }
                other.hold_nameless(memcg);
                other.adopt_node(node); // A1
                removal.into_iter().for_each(|removal| self.end_removal(removal));
                other.end_change(change, attr.as_ref().ok().and_then(Option::as_ref));
                renamed?;
                attr?;
                self.space.mark_stale();
                return Ok(());
            }
            renamed?;
            Ok(())
        })
    }

    /// Reads some entries of a directory after `cookie`; none at the end. Start with 0.
    ///
    /// # Errors
    /// The backend fails.
    pub fn readdir(&self, dir: &InodeRef, cookie: u64) -> Result<Vec<DirEntry>, FileError> {
        self.alive()?;
        let node = dir.node()?;
        Ok(self.call(None, |done| Call::Readdir { node, cookie, done })?)
    }

    /// Reads a directory as [`readdir`](Self::readdir) does, with the nodes.
    ///
    /// # Errors
    /// The backend fails.
    pub fn readdir_plus(self: &Arc<Self>, dir: &InodeRef, cookie: u64) -> Result<Vec<NamedInode>, FileError> {
        self.alive()?;
        let node = dir.node()?;
        let asked = self.evictions();
        let entries = self.call(None, |done| Call::ReaddirPlus { node, cookie, done })?;
        let named = |DirEntryPlus { entry, found }| {
            let inode = found.map(|found| self.iget(found, asked)).transpose()?;
            Ok(NamedInode { entry, inode })
        };
        entries.into_iter().map(named).collect()
    }

    /// Reads the target of a symbolic link.
    ///
    /// # Errors
    /// The backend fails.
    pub fn readlink(&self, link: &InodeRef) -> Result<OsString, FileError> {
        self.alive()?;
        let node = link.node()?;
        Ok(self.call(None, |done| Call::Readlink { node, done })?)
    }

    /// Makes a node durable. For a file it is like [`File::fsync`](crate::File::fsync), without reporting earlier
    /// errors.
    ///
    /// # Errors
    /// The backend fails.
    pub fn sync_node(&self, inode: &InodeRef, scope: SyncScope) -> Result<(), FileError> {
        self.alive()?;
        let node = inode.node()?;
        match inode.kind() {
            NodeKind::File => crate::writeback::sync::sync_inode(inode.arc(), scope, None)?,
            NodeKind::Directory | NodeKind::Symlink | NodeKind::Special => {
                self.call(None, |done| Call::Sync { node, scope, done })?;
            }
        }
        Ok(())
    }
}

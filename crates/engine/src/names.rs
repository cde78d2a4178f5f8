//! Operations on names and attributes. They go straight to the backend: the engine caches no names.
//!
//! # Blocking
//! Every method here waits for the backend.
//!
//! # Kernel counterpart
//! `inode_operations`, without a dentry cache; that belongs to whoever serves the names.

use std::ffi::{OsStr, OsString};

use slackwater_sync::shim::Arc;

use crate::backend::{Attr, AttrChange, Call, DirEntry, Found, NewNode, Node, Removal, RenameMode};
use crate::error::FileError;
use crate::filemap;
use crate::inode::{Inode, InodeRef, meta};
use crate::super_block::SuperBlock;
use crate::units::Timestamp;

impl SuperBlock {
    /// Finds `name` in `dir`.
    ///
    /// # Errors
    /// The backend's; `NotFound` if there is no such name.
    pub fn lookup(self: &Arc<Self>, dir: &InodeRef, name: impl AsRef<OsStr>) -> Result<InodeRef, FileError> {
        self.alive()?;
        let (dir, name) = (dir.node()?, name.as_ref().to_os_string());
        Ok(self.iget(self.call(None, |done| Call::Lookup { dir, name, done })?))
    }

    /// Walks `path`, names separated by slashes, from the root. Symbolic links are not followed.
    ///
    /// # Errors
    /// The backend's.
    pub fn walk(self: &Arc<Self>, path: impl AsRef<OsStr>) -> Result<InodeRef, FileError> {
        let mut at = self.root()?;
        for name in path.as_ref().as_encoded_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            // A slash is ASCII, so splitting at it keeps the parts well formed.
            let name = String::from_utf8(name.to_vec()).map_or_else(
                |_| Err(FileError::from(crate::error::BackendError::from(crate::error::ErrorKind::Invalid))),
                Ok,
            )?;
            at = self.lookup(&at, name)?;
        }
        Ok(at)
    }

    /// Makes a file, directory or symbolic link that must not exist. `mode` is taken as it is.
    ///
    /// # Errors
    /// The backend's, or the volume is frozen or gone.
    pub fn make(
        self: &Arc<Self>,
        dir: &InodeRef,
        name: impl AsRef<OsStr>,
        what: NewNode,
        mode: u32,
    ) -> Result<InodeRef, FileError> {
        self.writable()?;
        let (dir, name) = (dir.node()?, name.as_ref().to_os_string());
        let found: Found = self.call(None, |done| Call::Make { dir, name, what, mode, creator: None, done })?;
        Ok(self.iget(found))
    }

    /// Gives `inode` another name.
    ///
    /// # Errors
    /// The backend's, or the volume is frozen or gone.
    pub fn link(&self, inode: &InodeRef, dir: &InodeRef, name: impl AsRef<OsStr>) -> Result<(), FileError> {
        self.writable()?;
        let (node, dir, name) = (inode.node()?, dir.node()?, name.as_ref().to_os_string());
        let attr = self.call(None, |done| Call::Link { node, dir, name, done })?;
        inode.refresh(&attr);
        Ok(())
    }

    /// Removes a name. A file without names left lives on while somebody has it, and then its dirty pages
    /// are dropped.
    ///
    /// # Errors
    /// The backend's, or the volume is frozen or gone.
    pub fn remove(
        self: &Arc<Self>,
        dir: &InodeRef,
        name: impl AsRef<OsStr>,
        removal: Removal,
    ) -> Result<(), FileError> {
        self.writable()?;
        let (dir, name) = (dir.node()?, name.as_ref().to_os_string());
        let victim: Found = self.call(None, |done| Call::Remove { dir, name, removal, done })?;
        let (node, attr) = (victim.node.clone(), victim.attr);
        self.iget(victim).lost_a_name(node, &attr);
        Ok(())
    }

    /// Moves a name.
    ///
    /// # Errors
    /// The backend's, or the volume is frozen or gone.
    pub fn rename(
        self: &Arc<Self>,
        from_dir: &InodeRef,
        from: impl AsRef<OsStr>,
        to_dir: &InodeRef,
        to: impl AsRef<OsStr>,
        mode: RenameMode,
    ) -> Result<(), FileError> {
        self.writable()?;
        let replaced = match mode {
            RenameMode::Replace => self
                .lookup(to_dir, to.as_ref())
                .ok()
                .map(|inode| Ok::<_, FileError>((inode.node()?, inode)))
                .transpose()?,
            RenameMode::NoReplace | RenameMode::Exchange => None,
        };
        let (from_node, to_node) = (from_dir.node()?, to_dir.node()?);
        let (from, to) = (from.as_ref().to_os_string(), to.as_ref().to_os_string());
        self.call(None, |done| Call::Rename { from_dir: from_node, from, to_dir: to_node, to, mode, done })?;
        let Some((node, inode)) = replaced else { return Ok(()) };
        let asked = node.clone();
        let attr = self.call(None, |done| Call::Getattr { node: asked, done })?;
        inode.lost_a_name(node, &attr);
        Ok(())
    }

    /// Reads some entries of a directory behind `cookie`; none at the end. Start with 0.
    ///
    /// # Errors
    /// The backend's.
    pub fn readdir(&self, dir: &InodeRef, cookie: u64) -> Result<Vec<DirEntry>, FileError> {
        self.alive()?;
        let node = dir.node()?;
        Ok(self.call(None, |done| Call::Readdir { node, cookie, done })?)
    }

    /// Reads the target of a symbolic link.
    ///
    /// # Errors
    /// The backend's.
    pub fn readlink(&self, link: &InodeRef) -> Result<OsString, FileError> {
        self.alive()?;
        let node = link.node()?;
        Ok(self.call(None, |done| Call::Readlink { node, done })?)
    }

    /// Changes attributes. A size goes the way of [`File::set_len`](crate::File::set_len); times set here
    /// are what a later flush leaves in the backend.
    ///
    /// # Errors
    /// The backend's, or the volume is frozen or gone.
    pub fn setattr(&self, inode: &InodeRef, change: AttrChange) -> Result<(), FileError> {
        self.writable()?;
        if let Some(size_bytes) = change.size_bytes {
            filemap::truncate(inode.arc(), size_bytes)?;
        }
        let change = AttrChange { size_bytes: None, ..change };
        if change == AttrChange::default() {
            return Ok(());
        }
        let node = inode.node()?;
        let earlier = inode.attr();
        inode.promise(change.mtime, change.mode);
        let result = self.call(None, |done| Call::Setattr { node, change, done });
        match result {
            Ok(attr) => inode.refresh(&attr),
            Err(error) => {
                inode.promise(change.mtime.map(|_| earlier.mtime), change.mode.map(|_| earlier.mode));
                return Err(error.into());
            }
        }
        Ok(())
    }
}

impl Inode {
    /// Sets the mtime and permission bits that the backend is to end up with. A flush may be carrying older ones
    /// just now and may arrive last: then they are sent again.
    fn promise(&self, mtime: Option<Timestamp>, mode: Option<u32>) {
        if let Some(mtime) = mtime {
            self.set_mtime(mtime);
        }
        let mut state = self.state.lock();
        if let Some(mode) = mode {
            state.attr.mode = (state.attr.mode & !0o7777) | (mode & 0o7777);
        }
        if state.meta_in_flight && (mtime.is_some() || mode.is_some()) {
            state.meta |= meta::DIRTY_SYNC;
        }
    }

    /// Takes the attributes that came with the loss of a name. `node` was opened while it had one: without a
    /// name it could not be opened again.
    fn lost_a_name(&self, node: Node, attr: &Attr) {
        let mut state = self.state.lock();
        state.attr = *attr;
        let spare = match state.node {
            Some(_) => Some(node),
            None => state.node.replace(node),
        };
        drop(state); // before a spare one is closed
        drop(spare);
    }
}

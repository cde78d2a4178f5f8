//! Operations on attributes, named ones among them.
//!
//! # Invariants
//! A3. Mode and mtime set here are what the backend ends up with, also if a flush carries older ones just now.
//! A4. So is `security.capability`. A write takes it from the file, so what was written before must be in the backend
//!     before it is set. From the write on it is gone, though the backend takes it away with the bytes only: else
//!     whoever may write to a program could run what was written with the capabilities of the program.

use std::ffi::{OsStr, OsString};

use slackwater_sync::shim::Arc;

use crate::backend::{AttrChange, Call, NodeKind, SyncScope, XattrMode, file_flags};
use crate::error::{BackendError, ErrorKind, FileError};
use crate::filemap;
use crate::inode::{Inode, InodeRef};
use crate::super_block::{SuperBlock, pages_of};
use crate::units::Timestamp;
use crate::writeback::SetattrTurn;
use crate::writeback::sync::sync_inode;

/// The extended attribute that any write to the file takes away.
const CAPABILITY: &str = "security.capability";

/// What a change of owner clears of a mode: setuid, and setgid where it means that and not mandatory locking.
const fn suidgid_bits(mode: u32) -> u32 {
    let (suid, sgid, group_exec) = (0o4000, 0o2000, 0o010);
    mode & (suid | if mode & group_exec != 0 { sgid } else { 0 })
}

impl SuperBlock {
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
        let turn = SetattrTurn::wait(inode.arc());
        let earlier = inode.attr();
        // A change of owner takes them, whoever makes it; and a flush may be about to restore what the cache has.
        let taken = match change {
            AttrChange { uid: None, gid: None, .. } => 0,
            _ if inode.kind() != NodeKind::File => 0,
            _ => suidgid_bits(earlier.mode),
        };
        let mode = change.mode.or((taken != 0).then_some(earlier.mode & 0o7777 & !taken));
        let change = AttrChange { mode, ..change };
        inode.promise(change.mtime, change.mode);
        if let Err(error) = turn.send(node, change) {
            inode.promise(change.mtime.map(|_| earlier.mtime), change.mode.map(|_| earlier.mode));
            return Err(error.into());
        }
        Ok(())
    }

    /// Clears setuid and setgid in the backend, as a write by somebody who must not keep them does. It is called before the
    /// bytes are taken: neither the backend nor an arena ever has them under the old mode.
    ///
    /// Setgid goes from a file without group execution too, as Linux has it for a writer outside the file's group: who
    /// writes is not known here.
    ///
    /// # Errors
    /// The backend's, or the volume is frozen or gone.
    ///
    /// # Blocking
    /// For the backend, if there is something to clear.
    pub fn kill_suidgid(&self, inode: &InodeRef) -> Result<(), FileError> {
        const SUIDGID: u32 = 0o6000;
        if inode.kind() != NodeKind::File || inode.attr().mode & SUIDGID == 0 {
            return Ok(());
        }
        self.writable()?;
        let node = inode.node()?;
        let turn = SetattrTurn::wait(inode.arc());
        let mode = inode.attr().mode & 0o7777 & !SUIDGID;
        match turn.send(node, AttrChange { mode: Some(mode), ..AttrChange::default() }) {
            // Who may not change the mode may not keep the bits either: the write itself clears them.
            Err(error) if error.kind() == ErrorKind::Permission => Ok(()),
            sent => Ok(sent.map(drop)?),
        }
    }

    /// Reads the flags of a file or directory: the bits of `FS_IOC_GETFLAGS`.
    ///
    /// # Errors
    /// The backend's; `Unsupported` if it has none.
    pub fn flags(&self, inode: &InodeRef) -> Result<u32, FileError> {
        self.alive()?;
        let node = inode.node()?;
        Ok(self.call(None, |done| Call::Getflags { node, done })?)
    }

    /// Sets all flags of a file or directory. A file is made durable before it becomes immutable or append-only:
    /// afterwards the backend takes nothing. The caller sees to it that nobody writes meanwhile.
    ///
    /// # Errors
    /// The backend's, also those of making the file durable; or the volume is frozen or gone.
    pub fn set_flags(&self, inode: &InodeRef, flags: u32) -> Result<(), FileError> {
        self.writable()?;
        if flags & (file_flags::IMMUTABLE | file_flags::APPEND) != 0 && inode.kind() == NodeKind::File {
            sync_inode(inode.arc(), SyncScope::All, None)?;
        }
        let node = inode.node()?;
        inode.change_with(|| self.call(None, |done| Call::Setflags { node, flags, done }))?;
        Ok(())
    }

    /// Reads an extended attribute.
    ///
    /// # Errors
    /// The backend's; `NoData` if there is no such attribute.
    pub fn getxattr(&self, inode: &InodeRef, name: impl AsRef<OsStr>) -> Result<Vec<u8>, FileError> {
        self.alive()?;
        if name.as_ref() == CAPABILITY && inode.mapping.is_unwritten() {
            return Err(BackendError::new(ErrorKind::NoData, "taken by a write").into()); // A4
        }
        let (node, name) = (inode.node()?, name.as_ref().to_os_string());
        Ok(self.call(None, |done| Call::Getxattr { node, name, done })?)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// The backend's, or the volume is frozen or gone. For `security.capability` also those of writing the file back
    /// (A4).
    pub fn setxattr(
        self: &Arc<Self>,
        inode: &InodeRef,
        name: impl AsRef<OsStr>,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FileError> {
        self.writable()?;
        if name.as_ref() == CAPABILITY && inode.kind() == NodeKind::File {
            filemap::write_back(inode.arc())?;
        }
        let (node, name, value) = (inode.node()?, name.as_ref().to_os_string(), value.to_vec());
        let pages = pages_of(value.len() as u64);
        let call = || self.call(None, |done| Call::Setxattr { node, name, value, mode, done });
        self.claim_space(pages, || inode.change_with(call))?;
        Ok(())
    }

    /// The names of the extended attributes.
    ///
    /// # Errors
    /// The backend's.
    pub fn listxattr(&self, inode: &InodeRef) -> Result<Vec<OsString>, FileError> {
        self.alive()?;
        let node = inode.node()?;
        let is_unwritten = inode.mapping.is_unwritten();
        let mut names = self.call(None, |done| Call::Listxattr { node, done })?;
        names.retain(|name| name != CAPABILITY || !is_unwritten); // A4
        Ok(names)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// The backend's, `NoData` if there is no such attribute; or the volume is frozen or gone.
    pub fn removexattr(&self, inode: &InodeRef, name: impl AsRef<OsStr>) -> Result<(), FileError> {
        self.writable()?;
        let (node, name) = (inode.node()?, name.as_ref().to_os_string());
        inode.change_with(|| self.call(None, |done| Call::Removexattr { node, name, done }))?;
        Ok(())
    }
}

impl Inode {
    /// Sets the mtime and permission bits that the backend is to end up with: a flush from now on sends them (A3).
    fn promise(&self, mtime: Option<Timestamp>, mode: Option<u32>) {
        if let Some(mtime) = mtime {
            self.set_mtime(mtime);
        }
        let mut state = self.state.lock();
        if mtime.is_some() {
            state.chosen_mtime = mtime;
        }
        if let Some(mode) = mode {
            state.attr.mode = (state.attr.mode & !0o7777) | (mode & 0o7777);
        }
    }
}

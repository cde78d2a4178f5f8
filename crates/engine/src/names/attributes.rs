//! Operations on attributes and extended attributes.
//!
//! # Invariants
//! A3. A mode or mtime set here is what the backend ends up with, even if a flush is carrying an older one at the
//!     moment.
//! A4. The same holds for `security.capability`. A write removes it from the file, so earlier data must be in the
//!     backend before it is set. It reads as removed from the write on, although the backend removes it only with the
//!     bytes. Otherwise a user who may write to a program could run what was written with the program's capabilities.

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

/// The extended attribute that any write to the file removes.
const CAPABILITY: &str = "security.capability";

/// The mode bits that a change of owner clears: setuid, and setgid unless it means mandatory locking.
const fn suidgid_bits(mode: u32) -> u32 {
    let (suid, sgid, group_exec) = (0o4000, 0o2000, 0o010);
    mode & (suid | if mode & group_exec != 0 { sgid } else { 0 })
}

impl SuperBlock {
    /// Changes attributes. A size is changed as by [`File::set_len`](crate::File::set_len). Times set here are what a
    /// later flush leaves in the backend.
    ///
    /// # Errors
    /// The backend fails, or the volume is frozen or unmounted.
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
        // Any change of owner clears them, and a flush may be about to restore the cached mode.
        let taken = match change {
            AttrChange { uid: None, gid: None, .. } => 0,
            _ if matches!(inode.kind(), NodeKind::Directory | NodeKind::Symlink) => 0,
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

    /// Clears setuid and setgid in the backend, as a write by an unprivileged user does. Call it before the bytes are
    /// taken, so that neither the backend nor an arena has them under the old mode.
    ///
    /// Setgid is cleared even without group execution, as Linux does for a writer outside the file's group, because the
    /// writer is not known here.
    ///
    /// # Errors
    /// The backend fails, or the volume is frozen or unmounted.
    ///
    /// # Blocking
    /// Waits for the backend, if there is something to clear.
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
            // A process that may not change the mode may not keep the bits either: the write itself clears them.
            Err(error) if error.kind() == ErrorKind::Permission => Ok(()),
            sent => Ok(sent.map(drop)?),
        }
    }

    /// Reads the flags of a file or directory: the bits of `FS_IOC_GETFLAGS`.
    ///
    /// # Errors
    /// The backend fails; `Unsupported` if it has no flags.
    pub fn flags(&self, inode: &InodeRef) -> Result<u32, FileError> {
        self.alive()?;
        let node = inode.node()?;
        Ok(self.call(None, |done| Call::Getflags { node, done })?)
    }

    /// Sets all flags of a file or directory. A file is made durable before it becomes immutable or append-only,
    /// because the backend accepts nothing afterwards. The caller makes sure that no write comes in between.
    ///
    /// # Errors
    /// The backend fails, also to make the file durable, or the volume is frozen or unmounted.
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
    /// The backend fails; `NoData` if there is no such attribute.
    pub fn getxattr(&self, inode: &InodeRef, name: impl AsRef<OsStr>) -> Result<Vec<u8>, FileError> {
        self.alive()?;
        if name.as_ref() == CAPABILITY && inode.mapping.is_unwritten() {
            return Err(BackendError::new(ErrorKind::NoData, "removed by a write").into()); // A4
        }
        let (node, name) = (inode.node()?, name.as_ref().to_os_string());
        Ok(self.call(None, |done| Call::Getxattr { node, name, done })?)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// The backend fails, or the volume is frozen or unmounted. For `security.capability`, also the errors of writing
    /// the file back (A4).
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
    /// The backend fails.
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
    /// The backend fails, or the volume is frozen or unmounted; `NoData` if there is no such attribute.
    pub fn removexattr(&self, inode: &InodeRef, name: impl AsRef<OsStr>) -> Result<(), FileError> {
        self.writable()?;
        let (node, name) = (inode.node()?, name.as_ref().to_os_string());
        inode.change_with(|| self.call(None, |done| Call::Removexattr { node, name, done }))?;
        Ok(())
    }
}

impl Inode {
    /// Sets the mtime and permission bits that the backend is to end up with: flushes send them from now on (A3).
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

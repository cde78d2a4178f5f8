//! Directories: finding, linking, removing and moving names.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{AtFlags, RenameFlags, linkat, readlinkat, renameat, renameat_with, statat, unlinkat};
use rustix::io::{self, Errno};
use slackwater::backend::{Attr, Found, Node, NodeKind, Removal, RenameMode};
use slackwater::{BackendError, ErrorKind};

use super::descriptors::NodeFd;
use super::errno::failed;
use super::volume::{AfterRemoval, Answer, Volume};

impl Volume {
    pub(super) fn lookup(&self, dir: &Node, name: &OsStr) -> Answer<Found> {
        let dir = self.dir_and_name(dir, name)?;
        self.found(self.open_name(dir, name).map_err(failed("openat2"))?)
    }

    pub(super) fn link(&self, node: &Node, dir: &Node, name: &OsStr) -> Answer<Attr> {
        let dir = self.dir_and_name(dir, name)?;
        // Through /proc: linking a path descriptor itself needs a capability.
        let (fds, fd_name) = self.fds.name_of(&self.node(node)?.path);
        linkat(fds, fd_name, dir, name, AtFlags::SYMLINK_FOLLOW).map_err(failed("linkat"))?;
        // It may be the first name of a node that was created without one.
        self.handles.name_given(node.id().ino, &self.node(node)?.path);
        self.getattr(node)
    }

    /// Removes a name, and returns the node with its remaining links. The node and its handle are opened before, which
    /// may need the name.
    pub(super) fn remove(&self, dir: &Node, name: &OsStr, removal: Removal) -> Answer<Found> {
        let dir = self.dir_and_name(dir, name)?;
        let flags = match removal {
            Removal::File => AtFlags::empty(),
            Removal::Directory => AtFlags::REMOVEDIR,
        };
        let victim = match self.open_name(dir, name) {
            Err(Errno::XDEV) => return Err(BackendError::new(ErrorKind::Busy, "a mount point")), // R1
            opened => opened.map_err(failed("openat2"))?,
        };
        let kernel_handle = self.handles.kernel_handle(&victim).map_err(failed("name_to_handle_at"))?;
        unlinkat(dir, name, flags).map_err(failed("unlinkat"))?;
        self.found_with(victim, kernel_handle, AfterRemoval::Yes)
    }

    pub(super) fn rename(
        &self,
        (from_dir, from): (&Node, &OsStr),
        (to_dir, to): (&Node, &OsStr),
        mode: RenameMode,
    ) -> Answer<()> {
        let from_dir = self.dir_and_name(from_dir, from)?;
        let to_dir = self.dir_and_name(to_dir, to)?;
        let replaced = self.ino_if_pinned(to_dir, to);
        match mode {
            RenameMode::Replace => renameat(from_dir, from, to_dir, to),
            RenameMode::NoReplace => renameat_with(from_dir, from, to_dir, to, RenameFlags::NOREPLACE),
            RenameMode::Exchange => renameat_with(from_dir, from, to_dir, to, RenameFlags::EXCHANGE),
            RenameMode::Whiteout => renameat_with(from_dir, from, to_dir, to, RenameFlags::WHITEOUT),
        }
        .map_err(failed("renameat2"))?;
        self.unpin(replaced);
        Ok(())
    }

    pub(super) fn readlink(&self, node: &Node) -> Answer<OsString> {
        let node = self.node(node)?;
        if node.kind != NodeKind::Symlink {
            return Err(ErrorKind::Invalid.into());
        }
        let target = readlinkat(&node.path, c"", Vec::new()).map_err(failed("readlinkat"))?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    pub(super) fn unlink(&self, dir: &NodeFd, name: &OsStr, flags: AtFlags) -> io::Result<()> {
        let ino = self.ino_if_pinned(dir, name);
        unlinkat(dir, name, flags)?;
        self.unpin(ino);
        Ok(())
    }

    fn ino_if_pinned(&self, dir: &NodeFd, name: &OsStr) -> Option<u64> {
        let stat = self.handles.are_pinned().then(|| statat(dir, name, AtFlags::SYMLINK_NOFOLLOW));
        stat?.ok().map(|stat| stat.st_ino)
    }

    fn unpin(&self, ino: Option<u64>) {
        if let Some(ino) = ino {
            self.handles.name_removed(ino);
        }
    }
}

//! Directories: finding, making, linking, removing and moving names.

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, RawDirEntry, RenameFlags, SeekFrom, fchmod, linkat, mkdirat, openat,
    readlinkat, renameat, renameat_with, seek, statat, symlinkat, unlinkat,
};
use rustix::io::{self, Errno};
use slackwater::ErrorKind;
use slackwater::backend::{Attr, Creator, DirEntry, Found, NewNode, Node, NodeKind, Removal, RenameMode};

use super::attributes::node_kind;
use super::errno::failed;
use super::node::DirNode;
use super::volume::{Answer, Volume, check_name};

/// Bytes of directory entries fetched by one call: some 800 names of middling length.
const ENTRIES_BYTES: usize = 32 << 10;

impl Volume {
    pub(super) fn lookup(&self, dir: &Node, name: &OsStr) -> Answer<Found> {
        let dir = self.dir_and_name(dir, name)?;
        self.found(self.open_name(dir, name).map_err(failed("openat2"))?)
    }

    /// Makes a node with exactly the mode asked for. A directory keeps the setgid bit it inherits, as it
    /// keeps the group: both are the file system's to give.
    pub(super) fn make(
        &self,
        dir: &Node,
        name: &OsStr,
        what: &NewNode,
        mode: u32,
        creator: Option<Creator>,
    ) -> Answer<Found> {
        let owner = creator.map(|creator| (creator.uid, creator.gid));
        let dir = self.dir_and_name(dir, name)?;
        let permissions = Mode::from_raw_mode(mode & 0o7777);
        let mut writer = None;
        match what {
            NewNode::File => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                writer = Some(openat(dir, name, flags, permissions).map_err(failed("openat"))?);
            }
            NewNode::Directory => mkdirat(dir, name, permissions).map_err(failed("mkdirat"))?,
            NewNode::Symlink(target) => symlinkat(target.as_os_str(), dir, name).map_err(failed("symlinkat"))?,
            _ => return Err(ErrorKind::Unsupported.into()),
        }
        let made = self.finish_make(dir, name, writer, permissions, owner);
        if made.is_err() {
            let flags = if *what == NewNode::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            // The failure is what is reported; a name that cannot be removed either is left behind.
            self.unlink(dir, name, flags).ok();
        }
        made
    }

    /// Gives a new node owner and mode: owner first, since its change clears setuid and setgid.
    fn finish_make(
        &self,
        dir: &OwnedFd,
        name: &OsStr,
        writer: Option<OwnedFd>,
        permissions: Mode,
        owner: Option<(u32, u32)>,
    ) -> Answer<Found> {
        let path = match &writer {
            Some(writer) => self.fds.reopen(writer, OFlags::PATH).map_err(failed("openat /proc/self/fd"))?,
            None => self.open_name(dir, name).map_err(failed("openat2"))?,
        };
        let mut found = self.found(path)?;
        let node = self.node(&found.node)?;
        let (uid, gid) = owner.unzip();
        self.set_owner(node, uid, gid)?;
        let is_directory = node.kind == NodeKind::Directory;
        let inherited = if is_directory { Mode::SGID } else { Mode::empty() };
        let permissions = permissions | (Mode::from_raw_mode(found.attr.mode) & inherited);
        let is_exact = owner.is_none() && found.attr.mode & 0o7777 == permissions.as_raw_mode();
        if let Some(writer) = writer {
            if !is_exact {
                fchmod(&writer, permissions).map_err(failed("fchmod"))?;
            }
            node.set_writer(writer);
        } else if !is_exact && is_directory {
            self.set_mode(node, permissions.as_raw_mode())?;
        }
        if !is_exact {
            found.attr = self.getattr(&found.node)?;
        }
        Ok(found)
    }

    pub(super) fn link(&self, node: &Node, dir: &Node, name: &OsStr) -> Answer<Attr> {
        let dir = self.dir_and_name(dir, name)?;
        // By way of /proc: to link a path descriptor itself takes a capability.
        let (fds, fd_name) = self.fds.name_of(&self.node(node)?.path);
        linkat(fds, fd_name, dir, name, AtFlags::SYMLINK_FOLLOW).map_err(failed("linkat"))?;
        self.getattr(node)
    }

    pub(super) fn remove(&self, dir: &Node, name: &OsStr, removal: Removal) -> Answer<Found> {
        let dir = self.dir_and_name(dir, name)?;
        let flags = match removal {
            Removal::File => AtFlags::empty(),
            Removal::Directory => AtFlags::REMOVEDIR,
        };
        let victim = self.open_name(dir, name).map_err(failed("openat2"))?;
        unlinkat(dir, name, flags).map_err(failed("unlinkat"))?;
        self.found(victim)
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

    /// Reads on behind `cookie`, the offset the file system gave, on a descriptor of its own: file systems
    /// keep an offset good while entries come and go, and readers do not disturb each other.
    pub(super) fn readdir(&self, node: &Node, cookie: u64) -> Answer<Vec<DirEntry>> {
        let stream = self.open_directory(self.node(node)?)?;
        seek(&stream, SeekFrom::Start(cookie)).map_err(failed("lseek"))?;
        let mut buffer = [MaybeUninit::uninit(); ENTRIES_BYTES];
        let mut stream = RawDir::new(stream, &mut buffer);
        let mut entries = Vec::new();
        // One buffer full, unless it held nothing but the two entries that are left out.
        while entries.is_empty() || !stream.is_buffer_empty() {
            match stream.next() {
                Some(Ok(entry)) => entries.extend(dir_entry(&entry)),
                // ENOENT: the directory was removed, so it has no entries.
                None | Some(Err(Errno::NOENT)) => break,
                Some(Err(errno)) => return Err(failed("getdents")(errno)),
            }
        }
        Ok(entries)
    }

    /// A descriptor that reads or syncs a directory.
    pub(super) fn open_directory(&self, node: &DirNode) -> Answer<OwnedFd> {
        self.fds.reopen(&node.path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed("openat"))
    }

    fn unlink(&self, dir: &OwnedFd, name: &OsStr, flags: AtFlags) -> io::Result<()> {
        let ino = self.ino_if_pinned(dir, name);
        unlinkat(dir, name, flags)?;
        self.unpin(ino);
        Ok(())
    }

    fn ino_if_pinned(&self, dir: &OwnedFd, name: &OsStr) -> Option<u64> {
        let stat = self.handles.are_pinned().then(|| statat(dir, name, AtFlags::SYMLINK_NOFOLLOW));
        stat?.ok().map(|stat| stat.st_ino)
    }

    fn unpin(&self, ino: Option<u64>) {
        if let Some(ino) = ino {
            self.handles.name_removed(ino);
        }
    }
}

fn dir_entry(entry: &RawDirEntry<'_>) -> Option<DirEntry> {
    let name = OsStr::from_bytes(entry.file_name().to_bytes());
    // Whatever else the kernel hands out that is not a name is nothing a caller could ask for.
    check_name(name).ok()?;
    let kind = Some(entry.file_type()).filter(|kind| *kind != FileType::Unknown).map(node_kind);
    Some(DirEntry { cookie: entry.next_entry_cookie(), name: name.into(), ino: entry.ino(), kind })
}

//! An open node: its path descriptor, and data descriptors once they are needed.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, chmodat, openat, statx};
use rustix::io::{self, Errno};
use rustix::path::DecInt;
use rustix::process::geteuid;
use slackwater::PAGE_BYTES;
use slackwater::backend::NodeKind;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::{Arc, OnceLock, Weak};

use super::acls::NoDefaultAcl;
use super::descriptors::NodeFd;
use crate::BACKEND;

/// The descriptors of a node. Dropping it closes them all, which may wait for a server.
pub(super) struct DirNode {
    /// An `O_PATH` descriptor, which is enough for names and attributes and needs no permission on the file. Or the
    /// descriptor with which the file was created.
    pub(super) path: Arc<NodeFd>,
    pub(super) kind: NodeKind,
    reader: OnceLock<NodeFd>,
    /// Contains `None` if it is `path`.
    writer: OnceLock<Option<NodeFd>>,
    /// Contains `None` if the file system does not accept direct I/O in whole pages on this file, or if the mode
    /// forbids opening it again: then the descriptor with which it was created is used.
    direct_reader: OnceLock<Option<NodeFd>>,
    direct_writer: OnceLock<Option<NodeFd>>,
    /// Held while the mode is changed.
    mode: Mutex<()>,
    /// The default ACL, if the node is a directory: whether there is none.
    pub(super) no_default_acl: NoDefaultAcl,
}

impl DirNode {
    pub(super) fn new(path: Arc<NodeFd>, kind: NodeKind) -> Self {
        Self {
            path,
            kind,
            reader: OnceLock::new(),
            writer: OnceLock::new(),
            direct_reader: OnceLock::new(),
            direct_writer: OnceLock::new(),
            mode: Mutex::new(BACKEND, ()),
            no_default_acl: NoDefaultAcl::default(),
        }
    }

    /// Stores the descriptor with which a new node was created, if that is not its path descriptor.
    pub(super) fn set_writer(&self, writer: Option<NodeFd>) {
        self.writer.set(writer).ok();
    }

    /// A descriptor for writing, if there is one already.
    pub(super) fn known_writer(&self) -> Option<&NodeFd> {
        self.writer.get().map(|writer| writer.as_ref().unwrap_or(&self.path))
    }

    /// Whether data may have been written to it.
    pub(super) fn has_writer(&self) -> bool {
        self.writer.get().is_some()
    }

    /// A descriptor for reading: the writer if there is one.
    pub(super) fn reader(&self, fds: &ProcFds) -> io::Result<&NodeFd> {
        self.reader_by(|| self.reopen(fds, OFlags::RDONLY))
    }

    /// The descriptor of [`reader`](Self::reader), for which the mode is never changed.
    pub(super) fn permitted_reader(&self, fds: &ProcFds) -> io::Result<&NodeFd> {
        self.reader_by(|| fds.reopen(self.file()?, OFlags::RDONLY))
    }

    fn reader_by(&self, open: impl FnOnce() -> io::Result<NodeFd>) -> io::Result<&NodeFd> {
        self.known_writer().map_or_else(|| open_once(&self.reader, open), Ok)
    }

    /// A descriptor for writing. A refusal is not remembered: it may pass, and the engine tries again.
    pub(super) fn writer(&self, fds: &ProcFds) -> io::Result<&NodeFd> {
        let writer = open_once(&self.writer, || self.reopen(fds, OFlags::RDWR).map(Some))?;
        Ok(writer.as_ref().unwrap_or(&self.path))
    }

    /// Opens the file. The engine does so for programs that have opened it already, perhaps when it was created, and whose
    /// mode may forbid it since. Its owner may change the mode, so it is changed for that moment.
    fn reopen(&self, fds: &ProcFds, access: OFlags) -> io::Result<NodeFd> {
        let file = self.file()?;
        match fds.reopen(file, access) {
            Err(Errno::ACCESS) => {}
            opened => return opened,
        }
        let _only = self.mode.lock();
        let stat = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::UID | StatxFlags::MODE)?;
        let mode = Mode::from_raw_mode(u32::from(stat.stx_mode) & 0o7777);
        let wider = mode | Mode::RUSR | Mode::WUSR;
        // The kernel may drop the set-group-ID bit at a change.
        if stat.stx_uid != geteuid().as_raw() || wider == mode || mode.contains(Mode::SGID) {
            return Err(Errno::ACCESS);
        }
        let change_mode = |mode| {
            let (dir, name) = fds.name_of(file);
            chmodat(dir, name, mode, AtFlags::empty())
        };
        change_mode(wider)?;
        let opened = fds.reopen(file, access);
        change_mode(mode)?;
        opened
    }

    /// Sets the mode.
    pub(super) fn set_mode(&self, fds: &ProcFds, mode: Mode) -> io::Result<()> {
        let _only = self.mode.lock();
        let (dir, name) = fds.name_of(&self.path);
        chmodat(dir, name, mode, AtFlags::empty())
    }

    pub(super) fn direct_reader(&self, fds: &ProcFds) -> io::Result<Option<&NodeFd>> {
        match self.direct_writer.get() {
            Some(writer) => Ok(writer.as_ref()),
            None => Ok(open_once(&self.direct_reader, || self.direct(fds, OFlags::RDONLY))?.as_ref()),
        }
    }

    pub(super) fn direct_writer(&self, fds: &ProcFds) -> io::Result<Option<&NodeFd>> {
        Ok(open_once(&self.direct_writer, || self.direct(fds, OFlags::RDWR))?.as_ref())
    }

    fn direct(&self, fds: &ProcFds, access: OFlags) -> io::Result<Option<NodeFd>> {
        let file = match fds.reopen(self.file()?, access | OFlags::DIRECT) {
            Err(Errno::INVAL | Errno::ACCESS | Errno::PERM) => return Ok(None),
            opened => opened?,
        };
        Ok(takes_pages(&file)?.then_some(file))
    }

    /// The path descriptor, if opening the file for data cannot wait for a peer or act on a device.
    fn file(&self) -> io::Result<&NodeFd> {
        match self.kind {
            NodeKind::File => Ok(&self.path),
            NodeKind::Directory => Err(Errno::ISDIR),
            NodeKind::Symlink | NodeKind::Special => Err(Errno::INVAL),
        }
    }
}

/// Whether direct I/O in whole pages is possible. If the kernel does not report it, it is tried: the kernel answers
/// `EINVAL`.
fn takes_pages(file: &NodeFd) -> io::Result<bool> {
    let stat = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
    let fits = |align: u32| align != 0 && PAGE_BYTES.is_multiple_of(u64::from(align));
    let is_known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
    Ok(!is_known || (fits(stat.stx_dio_mem_align) && fits(stat.stx_dio_offset_align)))
}

/// The value of `slot`, created first if necessary. Of two that are created at once, one is dropped.
fn open_once<T>(slot: &OnceLock<T>, open: impl FnOnce() -> io::Result<T>) -> io::Result<&T> {
    match slot.get() {
        Some(value) => Ok(value),
        None => open().map(|value| slot.get_or_init(|| value)),
    }
}

/// `/proc/self/fd`: here a descriptor has a path, through which it can be opened with other access modes. The volumes
/// of a process share it, and the last one closes it.
pub(super) struct ProcFds(OwnedFd);

impl ProcFds {
    pub(super) fn open() -> io::Result<Arc<Self>> {
        static SHARED: Mutex<Weak<ProcFds>> = Mutex::new(BACKEND, Weak::new());
        if let Some(shared) = SHARED.lock().upgrade() {
            return Ok(shared);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = Arc::new(Self(openat(rustix::fs::CWD, c"/proc/self/fd", flags, Mode::empty())?));
        let mut shared = SHARED.lock();
        // Of two that are opened at once, one is dropped.
        let earlier = shared.upgrade();
        if earlier.is_none() {
            *shared = Arc::downgrade(&opened);
        }
        drop(shared);
        Ok(earlier.unwrap_or(opened))
    }

    /// The file of `fd` again, opened with `flags`.
    pub(super) fn reopen(&self, fd: impl AsFd, flags: OFlags) -> io::Result<NodeFd> {
        openat(&self.0, DecInt::from_fd(fd), flags | OFlags::CLOEXEC, Mode::empty()).map(NodeFd::new)
    }

    /// The path of the file of `fd`, for system calls that accept only paths. For a symbolic link it leads to the link
    /// itself.
    pub(super) fn path_of(&self, fd: impl AsFd) -> String {
        format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
    }

    /// Directory and name of the file of `fd`, for system calls that do not accept a path descriptor.
    pub(super) fn name_of(&self, fd: impl AsFd) -> (&OwnedFd, DecInt) {
        (&self.0, DecInt::from_fd(fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_a_process_share_one_proc_descriptor() {
        let first = ProcFds::open().expect("/proc");
        assert!((0..3).all(|_| Arc::ptr_eq(&first, &ProcFds::open().expect("/proc"))));
    }
}

//! The open root, and making nodes from descriptors.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat, openat2, readlinkat, statx};
use rustix::io::{self, Errno, fcntl_dupfd_cloexec};
use slackwater::backend::{FileHandle, Found, Limits, Node, NodeKind};
use slackwater::{BackendError, ErrorKind, NodeId};
use slackwater_sync::shim::{Arc, thread};
use thiserror::Error;

use super::acls::Acls;
use super::attributes::{attr_of, device_of};
use super::closer::{Closer, OpenNode};
use super::creator::OwnUser;
use super::descriptors::{self, NodeFd};
use super::errno::failed;
use super::file_system::FileSystem;
use super::handles::{Handles, Reopening};
use super::limits::limits_of;
use super::node::{DirNode, ProcFds};
use super::sys::KernelHandle;
use super::transfer::IoPaths;
use super::unsynced::Unsynced;

pub(super) type Answer<T> = Result<T, BackendError>;

const NAME_MAX: usize = 255;

/// Failure to open a directory as a volume.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The directory could not be opened, or is not a directory.
    #[error("cannot open {path:?} as a directory: {source}")]
    Root {
        /// The requested directory.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The limits of the directory's file system could not be determined.
    #[error("cannot determine the limits of the file system of {path:?}: {source}")]
    Limits {
        /// The requested directory.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// `/proc/self/fd`, through which descriptors are reopened, is missing.
    #[error("cannot open /proc/self/fd: {source}")]
    NoProc {
        /// The reason.
        source: std::io::Error,
    },
}

/// Whether a node has just lost a name.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum AfterRemoval {
    Yes,
    No,
}

/// An open root directory and the properties of its file system. The calls are methods, in files named after the
/// objects they act on.
pub(super) struct Volume {
    /// Open from first to last, so that each `syncfs` on it reports every write error of the file system since the last.
    pub(super) root: OwnedFd,
    pub(super) fds: Arc<ProcFds>,
    pub(super) handles: Handles,
    pub(super) io_paths: IoPaths,
    pub(super) acls: Acls,
    pub(super) own_user: OwnUser,
    /// R4.
    pub(super) unsynced: Unsynced,
    has_openat2: bool,
    limits: Limits,
    pub(super) file_system: FileSystem,
    dev: u64,
    /// R5; `None` where a close never waits. Last field, since its drop waits for nodes that the other fields drop.
    pub(super) closer: Option<Closer>,
}

impl Volume {
    pub(super) fn open(path: &Path, reopening: Reopening) -> Result<Self, OpenError> {
        let cannot_open = |errno: Errno| OpenError::Root { path: path.into(), source: errno.into() };
        let no_limits = |errno: Errno| OpenError::Limits { path: path.into(), source: errno.into() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty()).map_err(cannot_open)?;
        let stat = statx(&root, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).map_err(cannot_open)?;
        let dev = device_of(&stat);
        let file_system = FileSystem::of(&root).map_err(no_limits)?;
        let handles = Handles::probe(&root, file_system, reopening);
        descriptors::learn_limit();
        Ok(Self {
            fds: ProcFds::open().map_err(|errno| OpenError::NoProc { source: errno.into() })?,
            io_paths: IoPaths::default(),
            acls: Acls::default(),
            own_user: OwnUser::learn(),
            unsynced: Unsynced::new(file_system.syncs(dev)),
            has_openat2: openat2(&root, c".", PATH_ONLY, Mode::empty(), WITHIN).is_ok(),
            limits: Limits { reopens: !handles.keep_nodes_open(), ..limits_of(file_system, dev) },
            handles,
            file_system,
            dev,
            closer: file_system.close_may_wait().then(Closer::new),
            root,
        })
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits.clone()
    }

    /// The node of this backend behind `node`.
    pub(super) fn node<'a>(&self, node: &'a Node) -> Answer<&'a DirNode> {
        let node = node.get().and_then(OpenNode::get);
        node.ok_or_else(|| BackendError::new(ErrorKind::Invalid, "a node of another backend"))
    }

    /// Another descriptor of a node, which keeps the file alive.
    pub(super) fn descriptor(&self, node: &Node) -> Option<OwnedFd> {
        fcntl_dupfd_cloexec(&*self.node(node).ok()?.path, 3).ok()
    }

    /// The path that the kernel shows for a removed file.
    pub(super) fn last_path(&self, node: &Node) -> Option<PathBuf> {
        let (fds, name) = self.fds.name_of(&self.node(node).ok()?.path);
        let mut shown = readlinkat(fds, name, Vec::new()).ok()?.into_bytes();
        shown.truncate(shown.strip_suffix(b" (deleted)").map_or(shown.len(), <[u8]>::len));
        Some(PathBuf::from(OsString::from_vec(shown)))
    }

    /// The directory behind `node`, and `name` if it may be one in it.
    pub(super) fn dir_and_name<'a>(&self, dir: &'a Node, name: &OsStr) -> Answer<&'a NodeFd> {
        let dir = self.node(dir)?;
        check_name(name)?;
        match dir.kind {
            NodeKind::Directory => Ok(&dir.path),
            NodeKind::File | NodeKind::Symlink | NodeKind::Special => Err(ErrorKind::NotDirectory.into()),
        }
    }

    /// A path descriptor of `name` in `dir`, which must not be a mount point; a link is not followed (R1).
    pub(super) fn open_name(&self, dir: &NodeFd, name: &OsStr) -> io::Result<Arc<NodeFd>> {
        let opened = match self.has_openat2 {
            true => openat2(dir, name, PATH_ONLY, Mode::empty(), WITHIN),
            false => openat(dir, name, PATH_ONLY, Mode::empty()),
        };
        opened.map(|fd| Arc::new(NodeFd::new(fd)))
    }

    /// The node open at `path`.
    pub(super) fn found(&self, path: Arc<NodeFd>) -> Answer<Found> {
        let kernel_handle = self.handles.kernel_handle(&path).map_err(failed("name_to_handle_at"))?;
        self.found_with(path, kernel_handle, AfterRemoval::No)
    }

    /// The node open at `path`, with its kernel handle.
    pub(super) fn found_with(
        &self,
        path: Arc<NodeFd>,
        kernel_handle: Option<KernelHandle>,
        after_removal: AfterRemoval,
    ) -> Answer<Found> {
        let stat = match (stat(&path, AtFlags::empty()), after_removal) {
            // A server may not know a node without a name; the kernel still does.
            (Err(Errno::STALE | Errno::NOENT), AfterRemoval::Yes) => stat(&path, AtFlags::STATX_DONT_SYNC),
            (answer, AfterRemoval::Yes | AfterRemoval::No) => answer,
        }
        .map_err(failed("statx"))?;
        self.found_as(path, kernel_handle, &stat)
    }

    /// The node that another process had open. Its attributes are as the kernel has them.
    pub(super) fn adopt(&self, descriptor: OwnedFd) -> Answer<Found> {
        let path = Arc::new(NodeFd::new(descriptor));
        let kernel_handle = self.handles.kernel_handle(&path).map_err(failed("name_to_handle_at"))?;
        let stat = stat(&path, AtFlags::STATX_DONT_SYNC).map_err(failed("statx"))?;
        let found = self.found_as(Arc::clone(&path), kernel_handle, &stat)?;
        self.handles.adopt(stat.stx_ino, &path);
        Ok(found)
    }

    fn found_as(&self, path: Arc<NodeFd>, kernel_handle: Option<KernelHandle>, stat: &Statx) -> Answer<Found> {
        if device_of(stat) != self.dev {
            return Err(BackendError::new(ErrorKind::CrossDevice, "a mount point")); // R1
        }
        let has_name = stat.stx_nlink > 0;
        let (generation, handle) = self.handles.describe(kernel_handle, &path, stat.stx_ino, has_name);
        let id = NodeId { dev: self.dev, ino: stat.stx_ino, generation };
        let attr = attr_of(stat, id);
        let node = OpenNode::new(DirNode::new(path, attr.kind), self.closer.as_ref());
        Ok(Found { node: Node::new(id, node), handle, attr })
    }

    pub(super) fn open_root(&self) -> Answer<Found> {
        let flags = PATH_ONLY | OFlags::DIRECTORY;
        let opened = openat(&self.root, c".", flags, Mode::empty()).map_err(failed("openat"))?;
        self.found(Arc::new(NodeFd::new(opened)))
    }

    /// Opens by handle. While a directory is being removed, the kernel may answer that it is busy; a moment later it
    /// answers that it does not exist.
    fn open_handle(&self, handle: &FileHandle) -> io::Result<Arc<NodeFd>> {
        const TRIES: u32 = 50;
        for _ in 1..TRIES {
            match self.handles.open(&self.root, handle) {
                Err(Errno::BUSY | Errno::AGAIN | Errno::NOMEM) => thread::yield_now(),
                other => return other,
            }
        }
        self.handles.open(&self.root, handle)
    }

    pub(super) fn reopen(&self, handle: &FileHandle, id: Option<NodeId>, nameless: bool) -> Answer<Found> {
        // A handle of another or a reformatted file system may be malformed here, and is stale too.
        let gone = |errno| match errno {
            Errno::STALE | Errno::NOENT | Errno::INVAL => ErrorKind::Stale.into(),
            other => failed("open_by_handle_at")(other),
        };
        let found = self.found(self.open_handle(handle).map_err(gone)?)?;
        // A node without a name may exist for a moment longer, since the kernel holds it while it syncs.
        let is_meant = match id {
            Some(id) => found.attr.id == id,
            None => found.handle == *handle && self.may_be_within(&found)?,
        };
        match is_meant && (nameless || found.attr.nlink > 0) {
            true => Ok(found),
            false => Err(ErrorKind::Stale.into()),
        }
    }
}

fn stat(path: &NodeFd, flags: AtFlags) -> io::Result<Statx> {
    statx(path, c"", AtFlags::EMPTY_PATH | flags, StatxFlags::BASIC_STATS)
}

pub(super) const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// R1, also enforced by the kernel. `NO_SYMLINKS` allows a link at the end, where `O_PATH | O_NOFOLLOW` opens the link
/// itself.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Checks that `name` is a single component (R1).
pub(super) fn check_name(name: &OsStr) -> Answer<()> {
    let bytes = name.as_bytes();
    match bytes {
        b"" | b"." | b".." => Err(BackendError::new(ErrorKind::Invalid, "not a name")),
        _ if bytes.contains(&b'/') || bytes.contains(&0) => {
            Err(BackendError::new(ErrorKind::Invalid, "a name with a slash or NUL"))
        }
        _ if bytes.len() > NAME_MAX => Err(ErrorKind::NameTooLong.into()),
        _ => Ok(()),
    }
}

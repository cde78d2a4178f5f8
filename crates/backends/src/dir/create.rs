//! New nodes: created in the name of their owner. Where that is not possible, created by this process and then given to
//! their owner. A process that dies in between leaves a node of its own user.
//!
//! # Invariants
//! C1. A node whose owner could not be set is removed again.
//! C2. The umask of the process is never changed. If it cleared bits that the creator's umask does not clear, a change
//!     of mode sets them again.
//! C3. The node found under the name of a new node gets another owner or mode only if it can be the new one. Another
//!     process with permission for the directory may have put a different node there in the meantime.
//! C4. setuid and setgid are set in the last step: at no moment does a file have these bits and another owner.
//! C5. A node that was created in the name of its owner has its owner and mode from the first moment. The mode is completed
//!     later if the umask of this process clears bits of it (C2), or if a directory is to have setuid or setgid.

use std::ffi::OsStr;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, fchmod, mkdirat, mknodat, openat, statx, symlinkat};
use rustix::io::{self, Errno};
use rustix::process::{getegid, geteuid};
use slackwater::backend::{Attr, Creator, Found, NewNode, Node, NodeKind};
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;

use super::descriptors::NodeFd;
use super::errno::failed;
use super::node::DirNode;
use super::volume::{Answer, Volume};

const SETGID: u32 = 0o2000;

/// The requested properties of a new node.
struct Wanted {
    /// The requested mode.
    mode: u32,
    creator: Option<Creator>,
    /// The permissions follow from the directory's default ACL, not from the umask.
    by_acl: bool,
}

/// How to reach a node that was just created.
enum Made<'a> {
    Open(NodeFd),
    /// By its name, which must belong to a node of this kind.
    Named(&'a OsStr, NodeKind),
}

/// The user in whose name a node was created.
#[derive(Copy, Clone, Eq, PartialEq)]
enum By {
    Creator,
    Process,
}

impl Wanted {
    /// Permissions without an ACL.
    fn permissions(&self) -> u32 {
        let umask = self.creator.map_or(0, |creator| creator.umask);
        self.mode & !umask & 0o777
    }

    /// The mode for the system call (C4).
    fn first_mode(&self, by: By) -> Mode {
        let mode = match self.by_acl {
            true => self.mode & 0o777,
            false => self.permissions(),
        };
        let special = if by == By::Creator { 0o7000 } else { 0o1000 };
        Mode::from_raw_mode(mode | (self.mode & special))
    }

    /// The final mode of a node that was created as `made`. A directory keeps the setgid bit it inherits.
    fn last_mode(&self, made: &Attr) -> u32 {
        let permissions = match self.by_acl {
            true => made.mode & 0o777,
            false => self.permissions(),
        };
        let inherited = if made.kind == NodeKind::Directory { made.mode & SETGID } else { 0 };
        (self.mode & 0o7000) | permissions | inherited
    }
}

impl Volume {
    pub(super) fn make(
        &self,
        dir: &Node,
        name: &OsStr,
        what: &NewNode,
        mode: u32,
        creator: Option<Creator>,
    ) -> Answer<Found> {
        let dir_node = self.node(dir)?;
        let dir = self.dir_and_name(dir, name)?;
        let wanted = self.wanted(dir_node, mode, creator, !matches!(what, NewNode::Symlink(_)))?;
        let (made, by) = match what {
            NewNode::File => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = self.create(&wanted, |mode| openat(dir, name, flags, mode));
                let (file, by) = made.map_err(failed("openat"))?;
                (Made::Open(NodeFd::new(file)), by)
            }
            NewNode::Directory => {
                let made = self.create(&wanted, |mode| mkdirat(dir, name, mode));
                (Made::Named(name, NodeKind::Directory), made.map_err(failed("mkdirat"))?.1)
            }
            NewNode::Symlink(target) => {
                let made = self.create(&wanted, |_| symlinkat(target.as_os_str(), dir, name));
                (Made::Named(name, NodeKind::Symlink), made.map_err(failed("symlinkat"))?.1)
            }
            NewNode::Special { type_bits, rdev } => {
                let kind = FileType::from_raw_mode(*type_bits);
                let is_special = kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device();
                if !is_special || kind.as_raw_mode() != *type_bits {
                    return Err(BackendError::new(ErrorKind::Invalid, "not the type of a special file"));
                }
                let made = self.create(&wanted, |mode| mknodat(dir, name, kind, mode, *rdev));
                (Made::Named(name, NodeKind::Special), made.map_err(failed("mknodat"))?.1)
            }
            _ => return Err(ErrorKind::Unsupported.into()),
        };
        let made = self.hand_over(dir, made, by, &wanted);
        if made.is_err() {
            let flags = if *what == NewNode::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            // The first failure is reported. If the name cannot be removed either, it is left behind (C1).
            self.unlink(dir, name, flags).ok();
        }
        made
    }

    pub(super) fn tmpfile(&self, dir: &Node, mode: u32, creator: Option<Creator>) -> Answer<Found> {
        let dir_node = self.node(dir)?;
        if dir_node.kind != NodeKind::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        let wanted = self.wanted(dir_node, mode, creator, true)?;
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let (writer, by) = match self.create(&wanted, |mode| openat(&dir_node.path, c".", flags, mode)) {
            // The answer of a file system without O_TMPFILE that takes the flag for O_DIRECTORY.
            Err(Errno::ISDIR) => return Err(ErrorKind::Unsupported.into()),
            opened => opened.map_err(failed("openat O_TMPFILE"))?,
        };
        self.hand_over(&dir_node.path, Made::Open(NodeFd::new(writer)), by, &wanted)
    }

    /// Makes a system call that creates a node, in the name of its creator if possible.
    fn create<T>(&self, wanted: &Wanted, make: impl Fn(Mode) -> io::Result<T>) -> io::Result<(T, By)> {
        let creator = wanted.creator.filter(|_| self.file_system.permits_as_the_kernel());
        match creator.and_then(|creator| self.own_user.act_as(creator, || make(wanted.first_mode(By::Creator)))) {
            // It may be permitted to this process: a file system may have rules of its own, or not know that user.
            None | Some(Err(Errno::ACCESS | Errno::PERM | Errno::OVERFLOW)) => {
                make(wanted.first_mode(By::Process)).map(|made| (made, By::Process))
            }
            Some(made) => made.map(|made| (made, By::Creator)),
        }
    }

    fn wanted(&self, dir: &DirNode, mode: u32, creator: Option<Creator>, takes_mode: bool) -> Answer<Wanted> {
        if creator.is_some_and(|creator| creator.uid == u32::MAX || creator.gid == u32::MAX) {
            return Err(BackendError::new(ErrorKind::Invalid, "an owner of -1"));
        }
        let by_acl = creator.is_some() && takes_mode && self.has_default_acl(dir)?;
        Ok(Wanted { mode, creator, by_acl })
    }

    /// Sets the owner and mode of a new node, as far as they differ (C5): owner first, since its change clears setuid and setgid.
    fn hand_over(&self, dir: &NodeFd, made: Made<'_>, by: By, wanted: &Wanted) -> Answer<Found> {
        let (path, writer, named) = match made {
            Made::Named(name, kind) => (self.open_name(dir, name).map_err(failed("openat2"))?, None, Some(kind)),
            // One descriptor serves all purposes. If nodes stay open as long as they are known, it must not be one that
            // holds the file open for writing.
            Made::Open(writer) if !self.handles.keep_nodes_open() => (Arc::new(writer), Some(None), None),
            Made::Open(writer) => {
                let path = self.fds.reopen(&writer, OFlags::PATH).map_err(failed("openat /proc/self/fd"))?;
                (Arc::new(path), Some(Some(writer)), None)
            }
        };
        let mut found = self.found(path)?;
        let node = self.node(&found.node)?;
        if let Some(writer) = writer {
            node.set_writer(writer);
        }
        let (uid, gid) = match wanted.creator {
            // Its group is the one that the directory or the file system gives.
            Some(creator) if by == By::Creator && found.attr.uid == creator.uid => (None, None),
            Some(creator) => new_owner(dir, &found.attr, creator)?,
            None => (None, None),
        };
        if named.is_some() && by == By::Creator && uid.is_some() {
            return Err(BackendError::new(ErrorKind::NotPermitted, "a new node with another owner")); // C3
        }
        let mode = wanted.last_mode(&found.attr);
        let owner_differs = uid.is_some() || gid.is_some();
        let mode_differs = node.kind != NodeKind::Symlink && found.attr.mode & 0o7777 != mode;
        if let Some(kind) = named
            && ((mode_differs && !is_fresh(&found.attr, kind)) || (owner_differs && !is_ours(&found.attr, kind)))
        {
            return Err(BackendError::new(ErrorKind::Busy, "another node in place of the new one")); // C3
        }
        self.set_owner(node, uid, gid)?;
        match node.known_writer() {
            Some(writer) if mode_differs => fchmod(writer, Mode::from_raw_mode(mode)).map_err(failed("fchmod"))?,
            None if mode_differs => self.set_mode(node, mode)?,
            Some(_) | None => {}
        }
        if owner_differs || mode_differs {
            found.attr = self.getattr(&found.node)?;
        }
        Ok(found)
    }
}

/// The necessary changes of the owner and group of a new node.
fn new_owner(dir: &NodeFd, made: &Attr, creator: Creator) -> Answer<(Option<u32>, Option<u32>)> {
    let uid = (made.uid != creator.uid).then_some(creator.uid);
    let keeps_group = made.gid == creator.gid || group_is_inherited(dir, made)?;
    Ok((uid, (!keeps_group).then_some(creator.gid)))
}

/// Whether this may be a new node of `kind`: it has only the name with which it was created.
fn is_fresh(made: &Attr, kind: NodeKind) -> bool {
    // On some file systems, a directory also links to itself.
    made.kind == kind && made.nlink <= if kind == NodeKind::Directory { 2 } else { 1 }
}

/// Whether this may be a new node of `kind` that this thread made.
fn is_ours(made: &Attr, kind: NodeKind) -> bool {
    is_fresh(made, kind) && made.uid == geteuid().as_raw()
}

/// Whether the group of a new node is the directory's rather than this process's.
fn group_is_inherited(dir: &NodeFd, made: &Attr) -> Answer<bool> {
    if made.gid != getegid().as_raw() {
        return Ok(true);
    }
    let stat = statx(dir, c"", AtFlags::EMPTY_PATH, StatxFlags::MODE).map_err(failed("statx"))?;
    Ok(u32::from(stat.stx_mode) & SETGID != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater::backend::Protection;
    use slackwater::{NodeId, Timestamp};

    #[test]
    fn a_node_put_in_place_of_a_new_one_keeps_its_owner() {
        let (id, time) = (NodeId { dev: 1, ino: 2, generation: 3 }, Timestamp(0));
        let (uid, kind) = (geteuid().as_raw(), NodeKind::Special);
        let (mode, nlink, gid, rdev, size_bytes, allocated_bytes) = (0o010_600, 1, 0, 0, 0, 0);
        let (atime, mtime, ctime) = (time, time, time);
        let protection = Protection::None;
        let made = Attr {
            id,
            kind,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size_bytes,
            allocated_bytes,
            atime,
            mtime,
            ctime,
            protection,
        };
        assert!(is_ours(&made, NodeKind::Special));
        assert!(!is_ours(&Attr { uid: uid + 1, ..made }, NodeKind::Special), "of another user");
        assert!(!is_fresh(&Attr { kind: NodeKind::File, ..made }, NodeKind::Special), "of another kind");
        assert!(!is_fresh(&Attr { nlink: 2, ..made }, NodeKind::Special), "with a name elsewhere");
        let dir = Attr { kind: NodeKind::Directory, nlink: 2, ..made };
        assert!(is_ours(&dir, NodeKind::Directory) && !is_ours(&Attr { nlink: 3, ..dir }, NodeKind::Directory));
    }
}

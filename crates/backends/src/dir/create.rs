//! New nodes: made by this process, and handed over to the one they were made for.
//!
//! # Invariants
//! C1. A node that could not be handed over is removed again.
//! C2. The umask of the process is never changed. Where it took bits that the creator's does not take, a
//!     change of mode gives them back.
//! C3. setuid and setgid come with the last step: no moment has a file with these bits and another owner.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, StatxFlags, fchmod, getxattr_query, mkdirat, mknodat, openat, statx, symlinkat,
};
use rustix::io::Errno;
use rustix::process::getegid;
use slackwater::backend::{Attr, Creator, Found, NewNode, Node, NodeKind};
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};

use super::errno::failed;
use super::node::DirNode;
use super::volume::{Answer, Volume};

const SETGID: u32 = 0o2000;

/// Whether the file system was seen to have no ACLs.
#[derive(Default)]
pub(super) struct Acls {
    are_missing: AtomicBool,
}

/// What a new node is to be.
struct Wanted {
    /// As it was asked for.
    mode: u32,
    creator: Option<Creator>,
    /// The directory's default ACL gives the permissions, not the umask.
    by_acl: bool,
}

/// How to get at a node that was just made.
enum Made<'a> {
    Open(OwnedFd),
    Named(&'a OsStr),
}

impl Wanted {
    /// Permissions without an ACL.
    fn permissions(&self) -> u32 {
        let umask = self.creator.map_or(0, |creator| creator.umask);
        self.mode & !umask & 0o777
    }

    /// What the kernel is asked for (C3).
    fn first_mode(&self) -> Mode {
        let mode = match self.by_acl {
            true => self.mode & 0o777,
            false => self.permissions(),
        };
        Mode::from_raw_mode(mode | (self.mode & 0o1000))
    }

    /// What a node that became `made` is to have in the end. A directory keeps the setgid bit it inherits.
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
        let dir = self.dir_and_name(dir, name)?;
        let wanted = self.wanted(dir, mode, creator, !matches!(what, NewNode::Symlink(_)))?;
        let mode = wanted.first_mode();
        let mut made = Made::Named(name);
        match what {
            NewNode::File => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                made = Made::Open(openat(dir, name, flags, mode).map_err(failed("openat"))?);
            }
            NewNode::Directory => mkdirat(dir, name, mode).map_err(failed("mkdirat"))?,
            NewNode::Symlink(target) => symlinkat(target.as_os_str(), dir, name).map_err(failed("symlinkat"))?,
            NewNode::Special { type_bits, rdev } => {
                let kind = FileType::from_raw_mode(*type_bits);
                let is_special = kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device();
                if !is_special || kind.as_raw_mode() != *type_bits {
                    return Err(BackendError::new(ErrorKind::Invalid, "not the type of a special file"));
                }
                mknodat(dir, name, kind, mode, *rdev).map_err(failed("mknodat"))?;
            }
            _ => return Err(ErrorKind::Unsupported.into()),
        }
        let made = self.hand_over(dir, made, &wanted);
        if made.is_err() {
            let flags = if *what == NewNode::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            // The failure is what is reported; a name that cannot be removed either is left behind (C1).
            self.unlink(dir, name, flags).ok();
        }
        made
    }

    pub(super) fn tmpfile(&self, dir: &Node, mode: u32, creator: Option<Creator>) -> Answer<Found> {
        let dir_node = self.node(dir)?;
        if dir_node.kind != NodeKind::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        let wanted = self.wanted(&dir_node.path, mode, creator, true)?;
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let writer = match openat(&dir_node.path, c".", flags, wanted.first_mode()) {
            // What a file system without it answers that takes the flag for O_DIRECTORY.
            Err(Errno::ISDIR) => return Err(ErrorKind::Unsupported.into()),
            opened => opened.map_err(failed("openat O_TMPFILE"))?,
        };
        self.hand_over(&dir_node.path, Made::Open(writer), &wanted)
    }

    fn wanted(&self, dir: &OwnedFd, mode: u32, creator: Option<Creator>, takes_mode: bool) -> Answer<Wanted> {
        if creator.is_some_and(|creator| creator.uid == u32::MAX || creator.gid == u32::MAX) {
            return Err(BackendError::new(ErrorKind::Invalid, "an owner of -1"));
        }
        let by_acl = creator.is_some() && takes_mode && self.has_default_acl(dir)?;
        Ok(Wanted { mode, creator, by_acl })
    }

    /// Whether permissions of new nodes in `dir` come from its ACL.
    fn has_default_acl(&self, dir: &OwnedFd) -> Answer<bool> {
        if self.acls.are_missing.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match getxattr_query(self.fds.path_of(dir), c"system.posix_acl_default") {
            Ok(_) => Ok(true),
            Err(Errno::NODATA) => Ok(false),
            Err(Errno::OPNOTSUPP) => {
                self.acls.are_missing.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(errno) => Err(failed("getxattr posix_acl_default")(errno)),
        }
    }

    /// Gives a new node owner and mode: owner first, since its change clears setuid and setgid.
    fn hand_over(&self, dir: &OwnedFd, made: Made<'_>, wanted: &Wanted) -> Answer<Found> {
        let (path, writer) = match made {
            Made::Named(name) => (self.open_name(dir, name).map_err(failed("openat2"))?, None),
            Made::Open(writer) => {
                let path = self.fds.reopen(&writer, OFlags::PATH).map_err(failed("openat /proc/self/fd"))?;
                (path, Some(writer))
            }
        };
        let mut found = self.found(path)?;
        let node = self.node(&found.node)?;
        let owner_changed = match wanted.creator {
            Some(creator) => self.give_owner(dir, node, &found.attr, creator)?,
            None => false,
        };
        let mode = wanted.last_mode(&found.attr);
        let mode_differs = node.kind != NodeKind::Symlink && found.attr.mode & 0o7777 != mode;
        match &writer {
            Some(writer) if mode_differs => fchmod(writer, Mode::from_raw_mode(mode)).map_err(failed("fchmod"))?,
            None if mode_differs => self.set_mode(node, mode)?,
            Some(_) | None => {}
        }
        if let Some(writer) = writer {
            node.set_writer(writer);
        }
        if owner_changed || mode_differs {
            found.attr = self.getattr(&found.node)?;
        }
        Ok(found)
    }

    /// Makes the creator the owner where the kernel did not; says whether there was anything to do.
    fn give_owner(&self, dir: &OwnedFd, node: &DirNode, made: &Attr, creator: Creator) -> Answer<bool> {
        let uid = (made.uid != creator.uid).then_some(creator.uid);
        let gid = match made.gid != creator.gid && !group_is_inherited(dir, made)? {
            true => Some(creator.gid),
            false => None,
        };
        self.set_owner(node, uid, gid)?;
        Ok(uid.is_some() || gid.is_some())
    }
}

/// Whether the group of a new node is the directory's rather than this process's.
fn group_is_inherited(dir: &OwnedFd, made: &Attr) -> Answer<bool> {
    if made.gid != getegid().as_raw() {
        return Ok(true);
    }
    let stat = statx(dir, c"", AtFlags::EMPTY_PATH, StatxFlags::MODE).map_err(failed("statx"))?;
    Ok(u32::from(stat.stx_mode) & SETGID != 0)
}

//! Attributes of nodes and of the file system.

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, Statx, StatxAttributes, StatxFlags, StatxTimestamp, Timespec, Timestamps, UTIME_OMIT,
    Uid, chownat, fstatvfs, ftruncate, makedev, statx, utimensat,
};
use slackwater::backend::{Attr, AttrChange, Node, NodeKind, Protection, Statfs};
use slackwater::{BackendError, ErrorKind, NodeId, Timestamp};

use super::errno::failed;
use super::node::DirNode;
use super::volume::{Answer, Volume};

impl Volume {
    pub(super) fn getattr(&self, node: &Node) -> Answer<Attr> {
        let path = &self.node(node)?.path;
        let stat = statx(path, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).map_err(failed("statx"))?;
        Ok(attr_of(&stat, node.id()))
    }

    /// Changes attributes in the only order that ends with the requested values. A change of owner or of size clears
    /// the setuid bit, so the mode follows both. Each of these changes the times, so the times come last. The owner is
    /// first because it is refused most often, and a truncation cannot be undone.
    pub(super) fn setattr(&self, node: &Node, change: AttrChange) -> Answer<Attr> {
        let dir_node = self.node(node)?;
        if change.mode.is_some() && dir_node.kind == NodeKind::Symlink {
            return Err(BackendError::new(ErrorKind::Unsupported, "a link has no mode of its own"));
        }
        let writer = match change.size_bytes {
            Some(_) => Some(dir_node.writer(&self.fds).map_err(failed("open for truncate"))?),
            None => None,
        };
        self.set_owner(dir_node, change.uid, change.gid)?;
        if let (Some(writer), Some(size_bytes)) = (writer, change.size_bytes) {
            ftruncate(writer, size_bytes).map_err(failed("ftruncate"))?;
        }
        if let Some(mode) = change.mode {
            self.set_mode(dir_node, mode)?;
        }
        if change.atime.is_some() || change.mtime.is_some() {
            let times = Timestamps { last_access: time(change.atime), last_modification: time(change.mtime) };
            utimensat(&dir_node.path, c"", &times, AtFlags::EMPTY_PATH).map_err(failed("utimensat"))?;
        }
        self.getattr(node)
    }

    pub(super) fn set_owner(&self, node: &DirNode, uid: Option<u32>, gid: Option<u32>) -> Answer<()> {
        if uid.is_none() && gid.is_none() {
            return Ok(());
        }
        if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
            return Err(BackendError::new(ErrorKind::Invalid, "an owner of -1"));
        }
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        chownat(&node.path, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(failed("fchownat"))
    }

    pub(super) fn set_mode(&self, node: &DirNode, mode: u32) -> Answer<()> {
        node.set_mode(&self.fds, Mode::from_raw_mode(mode & 0o7777)).map_err(failed("fchmodat"))
    }

    /// The available space is what the file system reports, less the space that it needs for itself.
    pub(super) fn statfs(&self) -> Answer<Statfs> {
        let stat = fstatvfs(&self.root).map_err(failed("fstatfs"))?;
        let own_bytes = self.file_system.own_bytes(stat.f_bavail.saturating_mul(stat.f_frsize));
        let own = own_bytes.div_ceil(stat.f_frsize.max(1));
        Ok(Statfs {
            block_bytes: stat.f_bsize,
            fragment_bytes: stat.f_frsize,
            blocks: stat.f_blocks,
            blocks_free: stat.f_bfree,
            blocks_available: stat.f_bavail.saturating_sub(own),
            files: stat.f_files,
            files_free: stat.f_ffree,
            name_max: u32::try_from(stat.f_namemax).unwrap_or(u32::MAX),
        })
    }
}

pub(super) fn attr_of(stat: &Statx, id: NodeId) -> Attr {
    let mode = u32::from(stat.stx_mode);
    Attr {
        id,
        kind: node_kind(FileType::from_raw_mode(mode)),
        mode,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        size_bytes: stat.stx_size,
        allocated_bytes: stat.stx_blocks * 512,
        atime: stamp(stat.stx_atime),
        mtime: stamp(stat.stx_mtime),
        ctime: stamp(stat.stx_ctime),
        protection: protection_of(stat.stx_attributes),
    }
}

/// The protection reported by `statx`. A file system that does not report it has neither flag.
fn protection_of(attributes: StatxAttributes) -> Protection {
    if attributes.contains(StatxAttributes::IMMUTABLE) {
        Protection::Immutable
    } else if attributes.contains(StatxAttributes::APPEND) {
        Protection::AppendOnly
    } else {
        Protection::None
    }
}

pub(super) fn device_of(stat: &Statx) -> u64 {
    makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

pub(super) fn node_kind(kind: FileType) -> NodeKind {
    if kind.is_file() {
        NodeKind::File
    } else if kind.is_dir() {
        NodeKind::Directory
    } else if kind.is_symlink() {
        NodeKind::Symlink
    } else {
        NodeKind::Special
    }
}

fn stamp(time: StatxTimestamp) -> Timestamp {
    Timestamp::from_parts(time.tv_sec, time.tv_nsec)
}

fn time(change: Option<Timestamp>) -> Timespec {
    let (tv_sec, tv_nsec) = change.map_or((0, UTIME_OMIT), |time| {
        let (sec, nsec) = time.to_parts();
        (sec, nsec.into())
    });
    Timespec { tv_sec, tv_nsec }
}

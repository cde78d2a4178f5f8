//! The place of a directory: the directory itself and all directories above it.
//!
//! A directory is identified by device and inode number, never by its path: a bind mount, a link or `..` would hide
//! that two paths lead to the same directory. The directories above are found through `..`, across mounts, without
//! opening anything for reading.
//!
//! Two directories overlap if that walk finds one above the other, or if their paths inside one file system do. The
//! walk does not see above the root of a bind mount, and a mount namespace may consist of bind mounts only; the
//! kernel's mount table shows which part of its file system each of them shows. That path is the current one: if a
//! directory above is renamed later, only the walk remains.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, open, openat, statx};
use serde::{Deserialize, Serialize};
use slackwater_control::os::mount_table::{MountTable, is_slackwater};

use crate::registry::Entry;

/// The identity of a directory.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash, Serialize, Deserialize)]
pub(crate) struct DirId {
    pub(crate) dev: u64,
    ino: u64,
}

/// A directory and the directories above it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Directory {
    /// The path, absolute and without symbolic links.
    pub(crate) path: PathBuf,
    pub(crate) id: DirId,
    /// The directories above, nearest first, the root last.
    above: Vec<DirId>,
    /// The place in the file system; `None` if the kernel does not show it.
    #[serde(default)]
    in_file_system: Option<InFileSystem>,
}

/// A directory by its path from the root of its file system, independent of mounts.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
struct InFileSystem {
    /// Major and minor number.
    device: String,
    path: PathBuf,
}

impl InFileSystem {
    /// The path inside its file system of a directory whose path is absolute and without symbolic links.
    fn named(path: &Path, mounts: &MountTable) -> Option<Self> {
        let mount = path.ancestors().find_map(|above| mounts.at(above))?;
        let below = path.strip_prefix(&mount.point).ok()?;
        Some(Self { device: mount.device.clone(), path: mount.root.join(below) })
    }

    fn contains(&self, other: &Self) -> bool {
        self.device == other.device && other.path.starts_with(&self.path)
    }
}

/// `STATX_MNT_ID_UNIQUE`, Linux 6.8.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Prefix of the identity of a directory on one of our mounts. Its files have another device number after each mount.
pub(crate) const ON_A_MOUNT: &str = "on-";
/// Maximum length of the name of a volume in an arena.
const IDENTITY_MAX: usize = 120;

/// Maximum number of levels that are walked: more than any path can have.
const LEVELS_MAX: usize = 4096;

impl Directory {
    /// Finds a directory, and opens it with `access`.
    pub(crate) fn open(path: &Path, access: OFlags) -> io::Result<(Self, OwnedFd)> {
        let flags = access | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty())?;
        let path = path.canonicalize()?;
        let id = id_of(&fd)?;
        let in_file_system = InFileSystem::named(&path, &MountTable::now());
        let mut above = Vec::new();
        let mut level = open_above(&fd)?;
        loop {
            let last = above.last().copied().unwrap_or(id);
            match id_of(&level)? {
                next if next == last => return Ok((Self { path, id, above, in_file_system }, fd)),
                _ if above.len() == LEVELS_MAX => return Err(rustix::io::Errno::NAMETOOLONG.into()),
                next => above.push(next),
            }
            level = open_above(&level)?;
        }
    }

    /// Whether `other` is this directory or is inside it.
    pub(crate) fn contains(&self, other: &Directory) -> bool {
        let both = self.in_file_system.as_ref().zip(other.in_file_system.as_ref());
        let in_file_system = both.is_some_and(|(outer, inner)| outer.contains(inner));
        self.id == other.id || other.above.contains(&self.id) || in_file_system
    }

    /// Whether one of the two is inside the other.
    pub(crate) fn overlaps(&self, other: &Directory) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// Whether an absolute path without symbolic links names this directory, or one of the two is inside the other.
    /// Looks only at the table of `mounts`.
    pub(crate) fn overlaps_path(&self, path: &Path, mounts: &MountTable) -> bool {
        let both = self.in_file_system.as_ref().zip(InFileSystem::named(path, mounts));
        both.is_some_and(|(own, other)| own.contains(&other) || other.contains(own))
    }

    /// The name of the volume in an arena, and part of the name of its file. Two directories never share it, and a
    /// directory keeps it as long as its file system exists.
    ///
    /// For a file system with neither a device nor an id (FUSE), the kernel reuses the device number after an unmount,
    /// and all roots may have the same inode number. Therefore the unique id of the mount is part of the identity. A
    /// directory on one of `mounts`, which are our live mounts, is identified through the source of that mount: if both
    /// have died, it is the same directory once that source is mounted again.
    pub(crate) fn identity(&self, mounts: &[&Entry]) -> io::Result<String> {
        let fd = open(&self.path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let fsid = rustix::fs::fstatvfs(&fd)?.f_fsid;
        if let Some(lower) = self.lower(mounts) {
            let identity = format!("{ON_A_MOUNT}{:x}-{}", self.id.ino, lower.identity);
            if !lower.identity.is_empty() && identity.len() <= IDENTITY_MAX {
                return Ok(identity);
            }
        }
        let mut identity = format!("{}{fsid:x}", self.identity_start());
        // XFS, F2FS and FAT use the device number as the id, so the next image on that device has the same one. The
        // creation time of the directory, in nanoseconds, distinguishes them.
        if fsid == encoded(self.id.dev)
            && let Some((sec, nsec)) = made_at(&fd)?
        {
            identity += &format!("-{sec:x}.{nsec:x}");
        }
        if fsid == 0 && rustix::fs::major(self.id.dev) == 0 {
            let mount = statx(&fd, c"", AtFlags::EMPTY_PATH, MNT_ID_UNIQUE)?.stx_mnt_id;
            identity += &format!("-{mount:x}");
        }
        Ok(identity)
    }

    /// The mount of ours that the directory is on.
    fn lower<'a>(&self, mounts: &[&'a Entry]) -> Option<&'a Entry> {
        if rustix::fs::major(self.id.dev) != 0 {
            return None; // a disk
        }
        let listed = MountTable::now();
        let mount = self.path.ancestors().find_map(|above| listed.at(above))?;
        let is_lower = |entry: &&&Entry| is_slackwater(mount) && entry.mountpoint == mount.point;
        mounts.iter().find(is_lower).copied()
    }

    /// Whether an identity is one of this directory, whatever file system had that number.
    pub(crate) fn is_meant_by(&self, identity: &[u8]) -> bool {
        identity.starts_with(self.identity_start().as_bytes())
    }

    fn identity_start(&self) -> String {
        format!("{:x}-{:x}-", self.id.dev, self.id.ino)
    }

    /// Device and inode as `/proc/locks` writes them. The device is that of the file system, which on btrfs differs
    /// from that of its files.
    pub(crate) fn lock_name(&self) -> String {
        let numbers = || {
            let (major, minor) = self.in_file_system.as_ref()?.device.split_once(':')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let of_files = (rustix::fs::major(self.id.dev), rustix::fs::minor(self.id.dev));
        let (major, minor): (u32, u32) = numbers().unwrap_or(of_files);
        format!("{major:02x}:{minor:02x}:{}", self.id.ino)
    }
}

/// A device number as the kernel encodes it into an id. Kernel: `huge_encode_dev`.
fn encoded(dev: u64) -> u64 {
    let (major, minor) = (u64::from(rustix::fs::major(dev)), u64::from(rustix::fs::minor(dev)));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The creation time of a directory, if its file system stores it.
fn made_at(fd: impl AsFd) -> io::Result<Option<(i64, u32)>> {
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
    let is_known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    Ok(is_known.then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)))
}

fn open_above(fd: impl AsFd) -> io::Result<OwnedFd> {
    Ok(openat(fd, c"..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn id_of(fd: impl AsFd) -> io::Result<DirId> {
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::INO)?;
    Ok(DirId { dev: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), ino: stat.stx_ino })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::fs::OFlags;

    use super::Directory;

    fn place(path: &Path) -> Directory {
        Directory::open(path, OFlags::PATH).unwrap().0
    }

    #[test]
    fn containment_follows_identity_and_not_the_path() {
        let outer = std::env::temp_dir().join(format!("slackwater-place-{}", std::process::id()));
        let inner = outer.join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::os::unix::fs::symlink(&inner, outer.join("link")).unwrap();
        let (a, b, link) = (place(&outer.join("a")), place(&inner), place(&outer.join("link")));
        assert_eq!(b, link);
        assert!(a.contains(&link) && b.contains(&link) && !b.contains(&a));
        assert!(place(Path::new("/")).contains(&b));
        assert_ne!(a.identity(&[]).unwrap(), b.identity(&[]).unwrap());
        assert!(
            a.is_meant_by(a.identity(&[]).unwrap().as_bytes()) && !b.is_meant_by(a.identity(&[]).unwrap().as_bytes())
        );
        std::fs::remove_dir_all(&outer).unwrap();
    }

    #[test]
    fn files_and_missing_directories_have_no_location() {
        assert!(Directory::open(Path::new("/proc/self/status"), OFlags::PATH).is_err());
        assert!(Directory::open(Path::new("/nonexistent"), OFlags::PATH).is_err());
    }
}

//! The kernel's mount table. Reading it touches no file system, so a hung mount does not block it.
//!
//! The table is long on machines with thousands of mounts, so it is cached.
//!
//! # Invariants
//! M1. It is read again when the kernel reports a change. The report is checked before the table is read, so a change
//!     in between is seen by the next caller.
//! M2. The kernel does not report the rename of a directory above a mount point. So no caller gets a table that is
//!     older than `AGE_MAX`.
//!
//! # Kernel counterpart
//! `mounts_poll`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use slackwater_host::MountInfo;

/// Maximum age of a table (M2).
const AGE_MAX: Duration = Duration::from_secs(1);

/// The mounts of this mount namespace, by their mount points.
#[derive(Default)]
pub struct MountTable(HashMap<PathBuf, MountInfo>);

/// The table as last read.
struct Known {
    list: File,
    read_at: Instant,
    mounts: Arc<MountTable>,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

impl MountTable {
    /// The current table (M2). Empty if it cannot be read.
    pub fn now() -> Arc<Self> {
        // A thread that panicked has left all or nothing.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let current = known.take().map_or_else(Known::read, Known::refreshed);
        *known = current.ok();
        known.as_ref().map(|known| Arc::clone(&known.mounts)).unwrap_or_default()
    }

    fn parse(mountinfo: &[u8]) -> Self {
        // The last of several mounts at one place hides the others.
        Self(MountInfo::all(mountinfo).map(|mount| (mount.point.clone(), mount)).collect())
    }

    /// The mount at exactly this path.
    pub fn at(&self, path: &Path) -> Option<&MountInfo> {
        self.0.get(path)
    }

    /// All of our mounts.
    pub fn of_slackwater(&self) -> impl Iterator<Item = &MountInfo> {
        self.0.values().filter(|mount| is_slackwater(mount))
    }

    /// Whether one of our mounts is at exactly this path.
    pub fn has_slackwater_at(&self, path: &Path) -> bool {
        self.at(path).is_some_and(is_slackwater)
    }
}

impl Known {
    fn read() -> io::Result<Self> {
        Self::read_from(File::open("/proc/self/mountinfo")?)
    }

    fn read_from(mut list: File) -> io::Result<Self> {
        let (read_at, mut text) = (Instant::now(), Vec::new());
        list.rewind()?;
        list.read_to_end(&mut text)?;
        Ok(Self { list, read_at, mounts: Arc::new(MountTable::parse(&text)) })
    }

    fn refreshed(self) -> io::Result<Self> {
        // Always checked: changes count from here on.
        let has_changed = self.has_changed();
        if has_changed || self.read_at.elapsed() >= AGE_MAX { Self::read_from(self.list) } else { Ok(self) }
    }

    /// Whether the table has changed since the last check, or since it was opened (M1).
    fn has_changed(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut [PollFd::new(&self.list, PollFlags::PRI)], Some(&at_once)), Ok(0))
    }
}

/// The mount at exactly this path. Always reads the table.
pub fn mount_at(path: &Path) -> Option<MountInfo> {
    Known::read().ok()?.mounts.at(path).cloned()
}

/// Whether a mount is one of ours.
pub fn is_slackwater(mount: &MountInfo) -> bool {
    mount.kind == "fuse.slackwater"
}

/// Whether `path` leads to a directory or file on which certainly nothing is mounted. A mount on a fresh directory then
/// need not read the table. It asks only what the kernel knows, but follows the path: on a hung or dead mount it may
/// fail or not return.
pub fn is_no_mount_point(path: &Path) -> bool {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let root = StatxAttributes::MOUNT_ROOT;
    statx(CWD, path, flags, StatxFlags::INO)
        .is_ok_and(|stat| stat.stx_attributes_mask.contains(root) && !stat.stx_attributes.contains(root))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn the_topmost_of_several_mounts_counts() {
        let text = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                    40 22 0:41 / /mnt/a\\040b rw,nosuid - tmpfs none rw\n\
                    41 40 0:42 / /mnt/a\\040b rw,nosuid master:3 - fuse.slackwater /srv/x\\134y rw\n";
        let mounts = MountTable::parse(text.as_bytes());
        let mount = mounts.at(Path::new("/mnt/a b")).unwrap();
        assert!(is_slackwater(mount));
        assert_eq!(mount.source, Path::new("/srv/x\\y"));
        assert_eq!(mounts.at(Path::new("/mnt")), None);
        assert_eq!(MountTable::parse(b"nonsense\n1 2 3 - \n\n4 5 6 / /x rw").at(Path::new("/")), None);
    }

    #[test]
    fn a_name_that_is_not_utf8_hides_no_other_mount() {
        let text = b"40 22 0:41 / /mnt/caf\xe9 rw - tmpfs none rw\n41 22 0:42 / /mnt/b rw - fuse.slackwater /srv rw\n";
        let mounts = MountTable::parse(text);
        assert!(mounts.has_slackwater_at(Path::new("/mnt/b")));
        assert!(mounts.at(Path::new(std::ffi::OsStr::from_bytes(b"/mnt/caf\xe9"))).is_some());
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mount_at(Path::new("/")).is_some());
        assert!(!is_no_mount_point(Path::new("/")) && !is_no_mount_point(Path::new("/proc/")));
        assert!(is_no_mount_point(Path::new("/proc/self/fd")) && !is_no_mount_point(Path::new("/nonexistent")));
    }
}

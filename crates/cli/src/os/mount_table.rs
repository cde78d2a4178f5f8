//! What the kernel says is mounted where. Asking it touches no file system: a mount that hangs answers too.
//!
//! The list is long where thousands are mounted, so it is not read for each question.
//!
//! # Invariants
//! M1. It is read again when the kernel says that it has changed. That is asked before it is read: what changes in between is
//!     seen by the next who asks.
//! M2. A directory above a mount point may be renamed, of which the kernel says nothing: so nobody gets a list that is older
//!     than [`AGE_MAX`].
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
use slackwater_arena::MountInfo;

/// M2.
const AGE_MAX: Duration = Duration::from_secs(1);

/// All that is mounted.
#[derive(Default)]
pub(crate) struct MountTable(HashMap<PathBuf, MountInfo>);

/// The list as it was read last.
struct Known {
    list: File,
    read_at: Instant,
    mounts: Arc<MountTable>,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

impl MountTable {
    /// As of now (M2). Nothing, where the list cannot be had.
    pub(crate) fn now() -> Arc<Self> {
        // A thread that panicked has left all or nothing.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let current = known.take().map_or_else(Known::read, Known::brought_up_to_date);
        *known = current.ok();
        known.as_ref().map(|known| Arc::clone(&known.mounts)).unwrap_or_default()
    }

    fn parse(mountinfo: &[u8]) -> Self {
        // The last of several on one place hides the others.
        Self(MountInfo::all(mountinfo).map(|mount| (mount.point.clone(), mount)).collect())
    }

    /// The mount that a path of exactly this name leads to, if one is there.
    pub(crate) fn at(&self, path: &Path) -> Option<&MountInfo> {
        self.0.get(path)
    }

    /// All of ours.
    pub(crate) fn of_slackwater(&self) -> impl Iterator<Item = &MountInfo> {
        self.0.values().filter(|mount| is_slackwater(mount))
    }

    /// Whether one of ours is at exactly this path.
    pub(crate) fn has_slackwater_at(&self, path: &Path) -> bool {
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

    fn brought_up_to_date(self) -> io::Result<Self> {
        // Asked in any case: what it says counts from here on.
        let has_changed = self.has_changed();
        if has_changed || self.read_at.elapsed() >= AGE_MAX { Self::read_from(self.list) } else { Ok(self) }
    }

    /// Since this was asked last, or the list was opened (M1).
    fn has_changed(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut [PollFd::new(&self.list, PollFlags::PRI)], Some(&at_once)), Ok(0))
    }
}

/// The mount that a path of exactly this name leads to, if one is there. Reads the list, whatever is known of it.
pub(crate) fn mount_at(path: &Path) -> Option<MountInfo> {
    Known::read().ok()?.mounts.at(path).cloned()
}

/// Whether it is one of ours.
pub(crate) fn is_slackwater(mount: &MountInfo) -> bool {
    mount.kind == "fuse.slackwater"
}

/// Whether `path` leads to a directory or file on which certainly nothing is mounted. Who mounts on a fresh directory need not
/// read the list, which is long where thousands are mounted. Asks for nothing that the kernel does not know, but follows the
/// path: of a mount that hangs, or whose process died, it may not come back with an answer.
pub(crate) fn is_no_mount_point(path: &Path) -> bool {
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
    fn a_name_that_is_no_text_hides_no_other() {
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

//! What the kernel says is mounted where. Asking it touches no file system: a mount that hangs answers too.
//!
//! The list is long where thousands are mounted, so it is read again only when the kernel says that it has changed.
//!
//! # Invariants
//! M1. Whether it has changed is asked before it is read: what changes in between is seen by the next who asks.
//!
//! # Kernel counterpart
//! `mounts_poll`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use slackwater_arena::unescape_mount_field;

/// One mount.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    pub(crate) kind: String,
    pub(crate) source: PathBuf,
}

/// All that is mounted.
#[derive(Default)]
pub(crate) struct Mounts(HashMap<PathBuf, Mount>);

/// The list as it was read last.
struct Known {
    list: File,
    mounts: Arc<Mounts>,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

impl Mounts {
    /// As of now. Nothing, where the list cannot be had.
    pub(crate) fn now() -> Arc<Self> {
        // A thread that panicked has left all or nothing.
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let current = match known.take() {
            Some(known) => known.brought_up_to_date(),
            None => Known::read(),
        };
        let current = known.insert(match current {
            Ok(current) => current,
            Err(_) => return Arc::default(),
        });
        Arc::clone(&current.mounts)
    }

    fn parse(mountinfo: &str) -> Self {
        // The last of several on one place hides the others.
        Self(mountinfo.lines().filter_map(parse).map(|mount| (mount.point.clone(), mount)).collect())
    }

    /// The mount that a path of exactly this name leads to, if one is there.
    pub(crate) fn at(&self, path: &Path) -> Option<&Mount> {
        self.0.get(path)
    }

    /// Whether one of ours is at exactly this path.
    pub(crate) fn has_slackwater_at(&self, path: &Path) -> bool {
        self.at(path).is_some_and(Mount::is_slackwater)
    }
}

impl Known {
    fn read() -> io::Result<Self> {
        let mut list = File::open("/proc/self/mountinfo")?;
        let mounts = Arc::new(read(&mut list)?);
        Ok(Self { list, mounts })
    }

    fn brought_up_to_date(mut self) -> io::Result<Self> {
        if self.has_changed() {
            self.mounts = Arc::new(read(&mut self.list)?);
        }
        Ok(self)
    }

    /// Since this was asked last, or the list was opened (M1).
    fn has_changed(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        !matches!(poll(&mut [PollFd::new(&self.list, PollFlags::PRI)], Some(&at_once)), Ok(0))
    }
}

fn read(list: &mut File) -> io::Result<Mounts> {
    let mut text = String::new();
    list.rewind()?;
    list.read_to_string(&mut text)?;
    Ok(Mounts::parse(&text))
}

impl Mount {
    /// The mount that a path of exactly this name leads to now, if one is there.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        Mounts::now().at(path).cloned()
    }

    /// Whether it is one of ours.
    pub(crate) fn is_slackwater(&self) -> bool {
        self.kind == "fuse.slackwater"
    }
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

/// Number, parent, device, root, mount point, options, any number of fields, `-`, type, source, options.
fn parse(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let point = unescape_mount_field(left.split(' ').nth(4)?);
    let mut right = right.split(' ');
    Some(Mount { point, kind: right.next()?.to_owned(), source: unescape_mount_field(right.next()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_of_several_mounts_counts() {
        let text = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                    40 22 0:41 / /mnt/a\\040b rw,nosuid - tmpfs none rw\n\
                    41 40 0:42 / /mnt/a\\040b rw,nosuid master:3 - fuse.slackwater /srv/x\\134y rw\n";
        let mounts = Mounts::parse(text);
        let mount = mounts.at(Path::new("/mnt/a b")).unwrap();
        assert!(mount.is_slackwater());
        assert_eq!(mount.source, Path::new("/srv/x\\y"));
        assert_eq!(mounts.at(Path::new("/mnt")), None);
        assert_eq!(Mounts::parse("nonsense\n1 2 3 - \n").at(Path::new("/")), None);
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(Mount::at(Path::new("/")).is_some());
        assert!(!is_no_mount_point(Path::new("/")) && !is_no_mount_point(Path::new("/proc/")));
        assert!(is_no_mount_point(Path::new("/proc/self/fd")) && !is_no_mount_point(Path::new("/nonexistent")));
    }
}

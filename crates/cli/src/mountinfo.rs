//! What the kernel says is mounted where. Asking it touches no file system: a mount that hangs answers too.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use slackwater_arena::unescape_mount_field;

/// One mount.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    pub(crate) kind: String,
    pub(crate) source: PathBuf,
}

/// All that is mounted.
pub(crate) struct Mounts(HashMap<PathBuf, Mount>);

impl Mounts {
    pub(crate) fn now() -> Self {
        let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        // The last of several on one place hides the others.
        Self(text.lines().filter_map(parse).map(|mount| (mount.point.clone(), mount)).collect())
    }

    /// Whether one of ours is at exactly this path.
    pub(crate) fn has_slackwater_at(&self, path: &Path) -> bool {
        self.0.get(path).is_some_and(Mount::is_slackwater)
    }
}

impl Mount {
    /// The mount that a path of exactly this name leads to, if one is there.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let text = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        topmost(&text, path)
    }

    /// Whether it is one of ours.
    pub(crate) fn is_slackwater(&self) -> bool {
        self.kind == "fuse.slackwater"
    }
}

/// The last of several on one place hides the others.
fn topmost(mountinfo: &str, path: &Path) -> Option<Mount> {
    mountinfo.lines().filter_map(parse).rfind(|mount| mount.point == path)
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
        let mount = topmost(text, Path::new("/mnt/a b")).unwrap();
        assert!(mount.is_slackwater());
        assert_eq!(mount.source, Path::new("/srv/x\\y"));
        assert_eq!(topmost(text, Path::new("/mnt")), None);
        assert_eq!(topmost("nonsense\n1 2 3 - \n", Path::new("/")), None);
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(Mount::at(Path::new("/")).is_some());
    }
}

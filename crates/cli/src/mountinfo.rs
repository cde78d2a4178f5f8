//! What the kernel says is mounted where. Asking it touches no file system: a mount that hangs answers too.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    pub(crate) kind: String,
    pub(crate) source: PathBuf,
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
    let point = unescape(left.split(' ').nth(4)?);
    let mut right = right.split(' ');
    Some(Mount { point, kind: right.next()?.to_owned(), source: unescape(right.next()?) })
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if *first == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
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

//! The mounts that the kernel lists for a process: the only parser of `/proc/PID/mountinfo`.
//!
//! A line is: number, parent, device, root, mount point, options, any number of optional fields, `-`, type, source,
//! options of the file system. Paths are bytes, in which the kernel writes blanks, newlines and backslashes as three
//! octal digits. A line of another form is skipped and does not affect the others.
//!
//! # Kernel counterpart
//! `show_mountinfo`, `mangle_path`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A mount.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MountInfo {
    /// Major and minor number of the file system, with a colon.
    pub device: String,
    /// The part of the file system that it shows, as a path from the root of the file system.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// The options of this mount, with commas; others of the same file system may have other ones.
    pub options: String,
    /// The type of the file system.
    pub kind: String,
    /// The source, as named by the file system.
    pub source: PathBuf,
    /// The file system's own options, with commas.
    pub super_options: String,
}

impl MountInfo {
    /// All mounts of a list, in its order. Of several at one mount point, the last hides the others.
    pub fn all(mountinfo: &(impl AsRef<[u8]> + ?Sized)) -> impl Iterator<Item = Self> {
        mountinfo.as_ref().split(|byte| *byte == b'\n').filter_map(Self::parse)
    }

    /// Parses one line without its newline. `None` if it is not a mount.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let _number: u64 = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let device = text(fields.nth(1)?);
        let (root, point) = (Self::path(fields.next()?), Self::path(fields.next()?));
        let options = text(fields.next()?);
        let mut after = fields.skip_while(|field| *field != b"-").skip(1);
        let (kind, source) = (text(after.next()?), Self::path(after.next()?));
        Some(Self { device, root, point, options, kind, source, super_options: text(after.next()?) })
    }

    /// The path in a field of this list, or of another one with the same escapes: three octal digits after a backslash.
    #[must_use]
    pub fn path(field: &[u8]) -> PathBuf {
        let mut rest = field;
        let mut bytes = Vec::with_capacity(rest.len());
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

    /// Whether this mount has this option.
    #[must_use]
    pub fn has_option(&self, wanted: &str) -> bool {
        self.options.split(',').any(|option| option == wanted)
    }

    /// Whether the file system has this option.
    #[must_use]
    pub fn has_super_option(&self, wanted: &str) -> bool {
        self.super_options.split(',').any(|option| option == wanted)
    }
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    const LINES: &[u8] = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        41 40 0:42 /in\\040it /mnt/a\\040b rw,nosuid master:3 propagate_from:2 - fuse.slackwater /srv/x\\134y rw,memory,x\n\
        43 22 0:43 / /mnt/caf\xe9\\99 rw - tmpfs none rw\n";

    #[test]
    fn a_list_is_read_with_its_escapes() {
        let mounts: Vec<_> = MountInfo::all(LINES).collect();
        let [root, second, third] = &mounts[..] else { panic!("{mounts:?}") };
        assert_eq!((root.device.as_str(), root.point.as_path()), ("254:0", Path::new("/")));
        assert_eq!((second.root.as_path(), second.point.as_path()), (Path::new("/in it"), Path::new("/mnt/a b")));
        assert_eq!((second.kind.as_str(), second.source.as_path()), ("fuse.slackwater", Path::new("/srv/x\\y")));
        assert!(second.has_option("nosuid") && !second.has_option("ro"));
        assert!(second.has_super_option("memory") && !second.has_super_option("mem"));
        assert_eq!(third.point, Path::new(OsStr::from_bytes(b"/mnt/caf\xe9\\99")));
    }

    #[test]
    fn an_invalid_line_is_skipped() {
        let text = b"nonsense\n1 2 3 - \n\n4 5 6 / /x rw\nx 5 0:1 / /x rw - a b c\n22 1 0:1 / /- - - ext4 a rw\n\xff\n";
        let mounts: Vec<_> = MountInfo::all(text).collect();
        assert_eq!(mounts.iter().map(|mount| mount.point.as_path()).collect::<Vec<_>>(), [Path::new("/-")]);
        assert_eq!(mounts[0].kind, "ext4", "options of a dash do not end the optional fields");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

        /// Any path that the kernel escapes is read back, and a damaged line does not affect the others.
        #[test]
        fn any_path_comes_back(path in prop::collection::vec(1_u8.., 1..40)) {
            let escape = |byte: &u8| match byte {
                b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
                _ => vec![*byte],
            };
            let field: Vec<u8> = path.iter().flat_map(escape).collect();
            let line = [b"1 2 0:3 / ", &field[..], b" rw - tmpfs none rw"].concat();
            let mount = MountInfo::parse(&line).expect("a line");
            prop_assert_eq!(mount.point.as_os_str().as_bytes(), path);
        }

        #[test]
        fn a_damaged_list_is_read(
            changes in prop::collection::vec((0_usize..LINES.len(), any::<u8>()), 0..10),
            cut in 0_usize..LINES.len(),
        ) {
            let mut text = LINES.to_vec();
            for (at, byte) in changes {
                text[at] = byte;
            }
            text.truncate(cut);
            text.extend_from_slice(b"\n9 1 0:9 / /last rw - tmpfs none rw\n");
            let last = MountInfo::all(&text).last().expect("the last is whole");
            prop_assert_eq!(last.point, Path::new("/last"));
        }
    }
}

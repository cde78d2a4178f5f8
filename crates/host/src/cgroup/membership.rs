//! The contents of `/proc/PID/cgroup`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Kind;

/// The cgroups of a thread, as paths in their hierarchies.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Membership {
    /// The cgroup in the unified hierarchy.
    pub unified: Option<PathBuf>,
    /// The cgroup in the v1 hierarchy with the memory controller.
    pub memory: Option<PathBuf>,
}

impl Membership {
    /// Parses the file. Lines are `number:controllers:path`; cgroup2 has number 0 and no controllers. Names may contain any byte but
    /// newline.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        let mut membership = Self::default();
        for line in text.split(|byte| *byte == b'\n') {
            let mut fields = line.splitn(3, |byte| *byte == b':');
            let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let path = PathBuf::from(OsStr::from_bytes(path));
            if number == b"0" && controllers.is_empty() {
                membership.unified = Some(path);
            } else if controllers.split(|byte| *byte == b',').any(|controller| controller == b"memory") {
                membership.memory = Some(path);
            }
        }
        membership
    }

    /// The cgroup in the hierarchy of this kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> Option<&Path> {
        match kind {
            Kind::Unified => self.unified.as_deref(),
            Kind::Memory => self.memory.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &[u8]) -> (Option<PathBuf>, Option<PathBuf>) {
        let Membership { unified, memory } = Membership::parse(text);
        (unified, memory)
    }

    #[test]
    fn both_versions_are_read() {
        let hybrid = b"9:name=systemd:/memory\n5:cpu,memory:/jobs/a:b\n1:cpuset:/c\n0::/user.slice\n";
        assert_eq!(paths(hybrid), (Some("/user.slice".into()), Some("/jobs/a:b".into())));
        assert_eq!(paths(b"0::/\n"), (Some("/".into()), None));
        assert_eq!(paths(b"4:memory:/docker/4f1c\n"), (None, Some("/docker/4f1c".into())));
    }

    #[test]
    fn any_bytes_are_parsed_as_a_path_or_ignored() {
        assert_eq!(paths(b"0::/\xff/x\n").0.unwrap().as_os_str().as_bytes(), b"/\xff/x");
        assert_eq!(paths(b""), (None, None));
        assert_eq!(paths(b"nonsense\n:\n1:memory\n"), (None, None));
    }
}

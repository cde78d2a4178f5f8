//! The kernel's version, and what depends on it.

use slackwater_control::exit::Failure;

/// A version, as far as features depend on it.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
}

impl Version {
    pub(crate) const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The running kernel's version; `None` if its name is not a version.
    pub(crate) fn running() -> Option<Self> {
        Self::parse(rustix::system::uname().release().to_str().ok()?)
    }

    /// Parses, for example, `6.18.44-fc`.
    fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
        Some(Self { major: numbers.next()?.parse().ok()?, minor: numbers.next()?.parse().ok()? })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Mounts are refused on older kernels: direct writes beside cached readers of one file came with this version.
pub(crate) const FLOOR: Version = Version::new(6, 9);
/// The version on which every release is tested.
pub(crate) const TESTED: Version = Version::new(6, 18);

/// Fails on a kernel that is too old.
pub(crate) fn check(running: Option<Version>) -> Result<(), Failure> {
    match running {
        Some(running) if running < FLOOR => {
            let what = format!("Linux {running} is too old: mounting needs {FLOOR} (tested: {TESTED})");
            Err(Failure::failed(what)
                .advise("on older kernels, concurrent reads and writes of a file could return stale data")
                .advise("the engine as a library runs here; the mount command does not"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_whatever_follows_them() {
        for (release, expected) in [
            ("6.18.44-fc-v669", Some(Version::new(6, 18))),
            ("6.9.0", Some(Version::new(6, 9))),
            ("7.2-rc1", Some(Version::new(7, 2))),
            ("10.0", Some(Version::new(10, 0))),
            ("custom", None),
            ("", None),
        ] {
            assert_eq!(Version::parse(release), expected, "{release}");
        }
    }

    #[test]
    fn kernels_below_the_floor_are_refused_by_name() {
        let error = check(Some(Version::new(6, 8))).unwrap_err();
        assert!(error.what.contains("Linux 6.8") && error.what.contains("6.9"), "{error}");
        assert!(check(Some(Version::new(5, 15))).is_err());
        for fine in [Some(FLOOR), Some(TESTED), Some(Version::new(7, 0)), None] {
            check(fine).unwrap();
        }
        check(Version::running()).unwrap();
    }
}

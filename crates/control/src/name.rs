//! Names of volumes, which can be used unchanged in paths, labels, commands and log lines; and words that name a source.

use std::borrow::Borrow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};

use crate::exit::Failure;

/// Longer names break the lines of a table.
const BYTES_MAX: usize = 64;

/// The name of a volume: 1 to 64 ASCII letters, digits, dots, dashes and underscores, beginning with a letter or digit.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct VolumeName(String);

impl VolumeName {
    /// # Errors
    /// It is not a valid name.
    pub fn new(name: &str) -> Result<Self, Failure> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let begins_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if begins_well && name.len() <= BYTES_MAX && name.bytes().all(is_plain) {
            return Ok(Self(name.to_owned()));
        }
        let shown: String = name.chars().take(BYTES_MAX).flat_map(char::escape_default).collect();
        let more = if name.chars().count() > BYTES_MAX { "..." } else { "" };
        Err(Failure::usage(format!("\"{shown}{more}\" is not a valid volume name")).advise(format!(
            "use 1 to {BYTES_MAX} letters, digits, dots, dashes and underscores, beginning with a letter or digit"
        )))
    }

    /// The last component of a mount point.
    ///
    /// # Errors
    /// It is not a valid name for a volume.
    pub fn of(mountpoint: &Path) -> Result<Self, Failure> {
        let name = mountpoint.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        Self::new(&name).map_err(|failure| failure.advise("or choose a name with --name"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Borrow<str> for VolumeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for VolumeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::new(&name).map_err(|failure| serde::de::Error::custom(failure.to_string().replace("\n  ", "; ")))
    }
}

/// Whether a source on the command line or in a configuration is a URL. A directory with such a name can be written as
/// `./NAME`.
pub fn is_url(word: &Path) -> bool {
    is_in_memory(word) || word.to_str().is_some_and(|word| word.contains("://") || word.starts_with("file:/"))
}

/// Whether a source is an object volume in the memory of the process that mounts it, which ends with that process.
pub fn is_in_memory(word: &Path) -> bool {
    word.to_str().is_some_and(|word| word.starts_with("memory:"))
}

/// Whether a source names the same place in every process: an absolute path or a URL.
pub fn is_complete(word: &Path) -> bool {
    word.is_absolute() || is_url(word)
}

/// The absolute path of a directory; a URL as it is.
///
/// # Errors
/// `word` is not a path.
pub fn absolute(word: &Path) -> io::Result<PathBuf> {
    if is_url(word) { Ok(word.to_path_buf()) } else { std::path::absolute(word) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_names_need_no_quoting() {
        for name in ["web", "a", "7", "a.b-c_D9", &"x".repeat(64)] {
            assert_eq!(VolumeName::new(name).unwrap().as_str(), name);
        }
        for name in ["", ".", "..", ".x", "-x", "_x", "a/b", "a b", "a\0b", "a\nb", "\u{e9}", &"x".repeat(65)] {
            assert!(VolumeName::new(name).unwrap_err().what.contains("is not a valid volume name"), "{name}");
        }
        let long = VolumeName::new(&"\u{1}".repeat(300)).unwrap_err().to_string();
        assert!(long.len() < 700 && long.is_ascii() && !long.contains('\u{1}'), "{long}");
    }

    #[test]
    fn a_mount_point_gives_its_last_name() {
        assert_eq!(VolumeName::of(Path::new("/mnt/web")).unwrap().as_str(), "web");
        assert!(VolumeName::of(Path::new("/mnt/my files")).unwrap_err().to_string().contains("--name"));
        assert!(VolumeName::of(Path::new("/")).is_err());
    }
}

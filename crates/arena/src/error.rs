//! Errors of creating and opening an arena.

use std::fmt;
use std::io;

/// A field with an invalid value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mismatch {
    /// The name of the field, such as `inode[17].handle_len`.
    pub field: String,
    /// The value of the field.
    pub found: String,
    /// The valid values.
    pub expected: String,
}

impl Mismatch {
    pub(crate) fn new(field: impl Into<String>, found: impl ToString, expected: impl Into<String>) -> Self {
        Self { field: field.into(), found: found.to_string(), expected: expected.into() }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, expected {}", self.field, self.found, self.expected)
    }
}

/// Why [`Arena::create`](crate::Arena::create) or [`Arena::open`](crate::Arena::open) failed. An arena that fails to
/// open is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The configuration is out of range.
    #[error("{0}")]
    Config(Mismatch),
    /// The arena would not fit into memory.
    #[error("the arena needs {needed_bytes} bytes, more than the {limit_bytes} that {limit_name} allows")]
    TooLarge {
        /// Size of the whole file.
        needed_bytes: u64,
        /// The smallest limit that applies.
        limit_bytes: u64,
        /// The origin of that limit: the machine, or a cgroup file.
        limit_name: String,
    },
    /// The file system does not have enough space for the whole file.
    #[error("the file system of the arena does not have {needed_bytes} bytes free")]
    NoSpace {
        /// Size of the whole file.
        needed_bytes: u64,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is on a file system that writes to a disk or a network.
    #[error("an arena cannot be on {found}; expected tmpfs or hugetlbfs")]
    FileSystem {
        /// Name or magic number of the file system.
        found: String,
    },
    /// The file belongs to another user, or other users may write to it: they could change or cut it at any time.
    #[error("not an arena of this user alone: {0}")]
    NotPrivate(Mismatch),
    /// The watcher cancelled the creation of the arena. Nothing is left of it.
    #[error("the creation of the arena was cancelled")]
    GivenUp,
    /// Another open arena holds this file.
    #[error("the arena is in use by another process")]
    InUse,
    /// Not an arena, or one of a machine with the opposite byte order.
    #[error("not an arena of this machine: {0}")]
    Foreign(Mismatch),
    /// An arena of a format that this build does not support.
    #[error("unknown arena format: {0}")]
    Version(Mismatch),
    /// The length of the file differs from the one in its header.
    #[error("arena file of the wrong length: {0}")]
    Length(Mismatch),
    /// A header that no crash can leave. Damaged records are no error: [`Survivors`](crate::Survivors) lists them.
    #[error("damaged arena: {0}")]
    Damaged(Mismatch),
    /// A system call failed.
    #[error("{call} failed for the arena")]
    Os {
        /// The call.
        call: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl ArenaError {
    /// Makes the error of a call without an error variant of its own, for `map_err`.
    pub(crate) fn os(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::Os { call, source: errno.into() }
    }

    pub(crate) fn damaged(field: String, found: impl ToString, expected: impl Into<String>) -> Self {
        Self::Damaged(Mismatch::new(field, found, expected))
    }
}

#[cfg(test)]
mod tests {
    use super::ArenaError;

    #[test]
    fn damage_names_field_found_and_expected() {
        let error = ArenaError::damaged("header.inodes".into(), 0, "1 or more");
        assert_eq!(error.to_string(), "damaged arena: header.inodes is 0, expected 1 or more");
    }
}

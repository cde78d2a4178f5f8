//! The result of a check.

use serde::Serialize;

/// The most findings that a report lists.
pub(crate) const FINDINGS_MAX: usize = 10_000;

/// How to check a volume.
#[derive(Copy, Clone, Debug, Default)]
pub struct FsckOptions {
    /// Repair what can be repaired. Needs the volume for writing; fails with
    /// [`VolumeError::InUse`](crate::VolumeError::InUse) otherwise.
    pub repair: bool,
    /// Also read all data and compare it with its checksums.
    pub data: bool,
}

/// The result of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FsckReport {
    /// Files, symbolic links and special files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Names of both.
    pub names: u64,
    /// Inodes without a name that were open, or are not freed yet. They are no errors.
    pub orphans: u64,
    /// Segments that the tree knows.
    pub segments: u64,
    /// Bytes in them that files use.
    pub live_bytes: u64,
    /// Bytes of data that were read and compared with their checksums.
    pub verified_bytes: u64,
    /// Objects of segments that the tree does not know. They are no errors: `gc` removes them.
    pub garbage_objects: u64,
    /// Bytes of these objects.
    pub garbage_bytes: u64,
    /// Errors, the first ones only if there are many.
    pub findings: Vec<FsckFinding>,
    /// Errors that are not in `findings`.
    pub more_findings: u64,
    /// Errors in all that are left, those in `findings` included.
    pub errors_left: u64,
}

/// An error of a volume.
#[derive(Clone, Eq, PartialEq, Debug, Serialize)]
pub struct FsckFinding {
    /// The error's effect on files.
    pub severity: Severity,
    /// A line for people, with the inode number, the path or the object.
    pub text: String,
    /// Whether it is repaired.
    pub is_repaired: bool,
}

/// The effect of an error on files.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A count is wrong, or a record is left over. All files can be read.
    Count,
    /// Names and inodes contradict each other. All data is there, maybe without its name.
    Structure,
    /// Bytes of a file, or an attribute, are lost.
    Data,
}

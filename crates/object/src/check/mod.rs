//! Checking a volume, and repairing it.
//!
//! A check reads every key of one state of the volume, without a claim, and lists the objects of its segments. Streams in
//! the order of keys are merged, so what it keeps in memory is about 24 bytes per inode, 40 more per directory, 64 per
//! segment, and [`FINDINGS_MAX`](report::FINDINGS_MAX) findings.
//!
//! ```text
//! snapshot  streams of records, all of the same state
//! segments  the records of segments, their objects and blobs; what files use of them
//! inodes    inodes with their chunks, large attributes and orphans: one pass in the order of numbers
//! names     directory entries: links, parents, and whether the root leads to everything
//! checksums the bytes of extents against their checksums
//! repair    changes by calls of the tree, then the check again, until nothing is left to repair
//! ```
//!
//! # Invariants
//! K1. Without `repair` nothing in the store is changed.
//! K2. A repair never removes an inode, or data that can be read. An inode without a name gets one in `lost+found`.
//! K3. A record that cannot be decoded is reported and left alone: a newer version may have written it. Nothing counts as
//!     lost, unused or nameless because of it.
//! K4. A segment is missing if the store says so when it is asked for it by name, and if the file still uses it then.

mod checksums;
mod fsck;
mod inodes;
mod names;
mod problem;
mod repair;
mod report;
mod run;
mod segments;
mod snapshot;
#[cfg(test)]
mod tests;

pub use fsck::fsck;
pub use report::{FsckFinding, FsckOptions, FsckReport, Severity};

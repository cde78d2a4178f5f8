//! A volume in an object store: metadata in SlateDB, file data in immutable segments.
//!
//! # Layout
//! - `format`: the objects, keys and values of a volume, as docs/FORMAT.md describes them.
//! - `tree`: the keys and values of a volume as one ordered map with atomic changes, answered from memory.
//! - `backend`: the calls of the storage interface, each of which goes to one of the others.
//! - `nodes`: open nodes, and the end of those without a name.
//! - `names`: calls on names, attributes and extended attributes, as functions on a `tree::View`.
//! - `store`: locations, credentials, retries, and what errors of a store mean.
//! - `contents`: the bytes of files: the map from ranges of files to segments, writing, reading.
//! - `segments`: the objects of segments.
//! - `space`: compaction of segments, and removal of what nothing refers to.
//! - `writer`: claims on a volume, and how another process takes it over.
//! - `maintenance`: repairs and collections, as the writer of a volume that is not mounted.
//! - `paths`: paths of inodes for messages.
//! - `delete`: the deletion of a whole volume.
//! - `check`: whether a volume is sound, and how it is repaired.

mod backend;
mod check;
mod clock;
mod contents;
mod delete;
mod format;
mod maintenance;
mod names;
mod nodes;
mod opened;
mod paths;
mod pieces;
mod runtime;
mod segments;
mod space;
mod store;
mod tree;
mod volume;
mod writer;

pub use check::{FsckFinding, FsckOptions, FsckReport, Severity};
pub use volume::{
    GcOptions, GcReport, ObjectBackend, OpenOptions, Progress, Requests, Role, VolumeError, VolumeInfo, VolumeStatus,
    delete, fsck, gc, names_below,
};

pub use store::{Environment, Location, StoreCheck, check_store};
pub use writer::Holder;

/// Layers around a store, for [`Location::layered`]: they count requests, or let them fail.
pub mod layers {
    pub use crate::store::{Count, Counts, Failure, Fault, Layer, Layered, Operation, Patience, Request, Rule};
}

//! A volume in an object store: metadata in SlateDB, file data in immutable segments.
//!
//! # Layout
//! Each module uses only those below it.
//!
//! - `volume`: an open volume as a backend of the engine, for writing or to follow the writer.
//! - `space`: compaction of segments, and removal of what nothing refers to.
//! - `check`: whether a volume is sound, and how it is repaired.
//! - `mkfs`, `delete`: a new volume, and the deletion of a whole one.
//! - `claimed`: the tree of a volume, open for writing under a claim.
//! - `look`: which volume is at a place.
//! - `backend`: the calls of the storage interface, each of which goes to one of the next.
//! - `nodes`: open nodes, and the end of those without a name.
//! - `paths`: paths of inodes for messages.
//! - `names`: calls on names, attributes and extended attributes, as functions on a `tree::View`.
//! - `contents`: the bytes of files: the map from ranges of files to segments, writing, reading.
//! - `tree`: the keys and values of a volume as one ordered map with atomic changes, answered from memory.
//! - `segments`: the objects of segments.
//! - `writer`: claims on a volume, and how another process takes it over.
//! - `store`: locations, credentials, retries, and what errors of a store mean.
//! - `format`: the objects, keys and values of a volume, as docs/FORMAT.md describes them.
//! - `runtime`, `clock`, `pieces`, `progress`: threads, time, bytes in pieces, and the progress of long calls.
//! - `error`, `holder`: why a volume cannot be used, and who has it.

mod backend;
mod check;
mod claimed;
mod clock;
mod contents;
mod delete;
mod error;
mod format;
mod holder;
mod look;
mod mkfs;
mod names;
mod nodes;
mod paths;
mod pieces;
mod progress;
mod runtime;
mod segments;
mod space;
mod store;
mod tree;
mod volume;
mod writer;

pub use check::{FsckFinding, FsckOptions, FsckReport, Severity, fsck};
pub use delete::delete;
pub use error::VolumeError;
pub use holder::Holder;
pub use progress::Progress;
pub use space::{GcOptions, GcReport, gc};
pub use store::{Environment, Location, StoreCheck, check_store, names_below};
pub use volume::{ObjectBackend, OpenOptions, Requests, Role, VolumeInfo, VolumeStatus};

/// Layers around a store, for [`Location::layered`], which let requests fail.
pub mod layers {
    pub use crate::store::{Failure, Fault, Layer, Layered, Operation, Patience, Request, Rule};
}

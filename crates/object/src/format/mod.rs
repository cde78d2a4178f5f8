//! The objects, keys and values of a volume. docs/FORMAT.md describes them for other programs.
//!
//! ```text
//! PREFIX/volume.json          version, identity, when created; written once
//! PREFIX/deleted.json         only while a deletion is under way, or was interrupted
//! PREFIX/writer/NUMBER.json   one claim of a writer each; the highest number counts
//! PREFIX/meta/...             SlateDB: the keys of `Key` and their values
//! PREFIX/seg/XX/SEGMENT_ID    file data, written once
//! ```
//!
//! # Invariants
//! F1. Keys are compared as bytes; the order of [`Key`] is the order of its bytes.
//! F2. Every value starts with its version. A value of a newer version is an error, never a guess.
//! F3. A number of an inode or a segment is never used twice in one volume.

mod chunk;
mod codec;
mod entries;
mod inode;
mod key;
mod segment;
#[cfg(test)]
mod tests;
mod volume;

pub(crate) use chunk::{CHECKSUM_BLOCK_BYTES, CHUNK_BYTES, Chunk, Extent, FILE_BYTES_MAX, Source, Stored};
pub(crate) use codec::{Corrupt, Decode, Encode, Input, put_bytes, put_varint};
pub(crate) use entries::{Entries, Entry, hash_of_name};
pub(crate) use inode::{Inode, Orphan, ROOT, Xattr};
pub(crate) use key::{Key, VolumeKey};
pub(crate) use segment::{Collected, FOOTER_TAIL_BYTES, Footer, FooterEntry, SegmentId, SegmentPlace, SegmentRecord};
pub(crate) use volume::{DELETED_OBJECT, VOLUME_OBJECT, VolumeRecord};

//! The bytes of files.
//!
//! - [`map`]: which parts of which segments are the bytes of a file, as functions on a [`View`](crate::tree::View).
//! - [`mod@write`]: from units of write-back to segments.
//! - [`read`]: from extents to frames.

pub(crate) mod checksum;
pub(crate) mod map;
mod read;
#[cfg(test)]
pub(crate) mod tests;
mod write;

pub(crate) use read::Reader;
pub(crate) use write::Writer;

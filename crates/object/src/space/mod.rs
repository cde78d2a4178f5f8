//! Space: moving what is left of old segments together, and removing what nothing refers to.
//!
//! - [`compact`] copies the live bytes of sparse and of small segments into new ones, and lets their extents refer to
//!   those. The old segments are dead then.
//! - [`collect`] removes dead segments, and objects that belong to no segment: what a failed upload or a crash left.
//! - [`background`] does both in an open volume, and [`gc()`] collects in one that is not mounted.
//!
//! # Invariants
//! G1. An object is removed only after a commit of this writer succeeded that came after the object was found unused:
//!     so at that time no other writer had the volume. Objects of a later writer are known by their ids, and are kept.
//! G2. A segment is dead if its record counts no live bytes, and no call that is not committed adds any. Nothing ever
//!     refers to a dead segment again: extents are only made for segments that are being written or compacted, and
//!     those are kept. They were named within the grace time by the monotonic clock: the wall clock may jump, and goes
//!     on while the machine sleeps, but uploads do not.
//! G3. The grace time begins with the commit with which a segment died. A reader that is not older finds all objects.
//! G4. The record of a segment goes first, then its object. A crash in between leaves an object without a record, which
//!     the next collection finds.
//! G5. A new segment of a compaction is stored before an extent refers to it. An extent is changed only if it is what it
//!     was when its bytes were read.

mod background;
mod collect;
mod compact;
mod gc;
mod records;
mod report;
#[cfg(test)]
mod tests;

pub(crate) use background::start;
pub use gc::gc;
pub use report::{GcOptions, GcReport};

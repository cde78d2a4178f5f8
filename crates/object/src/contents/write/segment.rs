//! A segment of the units of one batch.

use bytes::Bytes;

use super::lent::Lent;
use super::queue::Batch;
use crate::contents::checksum;
use crate::format::{Footer, SegmentId, Stored};

/// A segment to store, and the units that wait for it.
pub(super) struct Builder {
    pub(super) id: SegmentId,
    pub(super) data: Vec<Bytes>,
    pub(super) len_bytes: u64,
    pub(super) footer: Footer,
    pub(super) units: Vec<Placed>,
}

/// A unit with its place in the segment.
pub(super) struct Placed {
    pub(super) ino: u64,
    pub(super) offset_bytes: u64,
    pub(super) stored: Stored,
    pub(super) lent: Lent,
}

impl Builder {
    /// Places the units one after the other.
    pub(super) fn build(id: SegmentId, batch: Batch) -> Self {
        let mut segment = Self { id, data: Vec::new(), len_bytes: 0, footer: Footer::default(), units: Vec::new() };
        for (ino, unit) in batch.0 {
            let (offset_bytes, stored_len) = (unit.offset_bytes(), unit.len_bytes() as u32);
            let crc32c = checksum::of_pieces(unit.slices());
            let offset = segment.len_bytes as u32;
            let stored = Stored { segment: id, offset, stored_len, skip: 0, crc32c };
            segment.footer.add(ino, offset_bytes, &stored);
            segment.len_bytes += u64::from(stored_len);
            let lent = Lent::new(unit);
            segment.data.extend(lent.bytes());
            segment.units.push(Placed { ino, offset_bytes, stored, lent });
        }
        segment
    }
}

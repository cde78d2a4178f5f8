//! Taking ranges out of a chunk, and putting extents in.

use crate::format::{CHECKSUM_BLOCK_BYTES, Chunk, Extent, Source, Stored};

impl Extent {
    pub(crate) fn end(&self) -> u32 {
        self.at + self.len
    }

    /// The part of it from `at` to `end`, which lie within it.
    pub(crate) fn part(&self, at: u32, end: u32) -> Self {
        let source = match &self.source {
            Source::Zero => Source::Zero,
            Source::Segment(stored) => Source::Segment(stored.part(at - self.at, end - at)),
        };
        Self { at, len: end - at, source }
    }
}

impl Stored {
    /// `len` bytes of it from `from` on, without the blocks that they do not touch.
    pub(crate) fn part(&self, from: u32, len: u32) -> Self {
        let first = self.skip + from;
        let (block, skip) = (first / CHECKSUM_BLOCK_BYTES, first % CHECKSUM_BLOCK_BYTES);
        let blocks = (skip + len).div_ceil(CHECKSUM_BLOCK_BYTES);
        let before = block * CHECKSUM_BLOCK_BYTES;
        Self {
            segment: self.segment,
            offset: self.offset + before,
            stored_len: (self.stored_len - before).min(blocks * CHECKSUM_BLOCK_BYTES),
            skip,
            crc32c: self.crc32c[block as usize..(block + blocks) as usize].to_vec(),
        }
    }
}

impl Chunk {
    /// The parts of extents between `at` and `end`.
    pub(crate) fn parts(&self, at: u32, end: u32) -> Vec<Extent> {
        let first = self.extents.partition_point(|extent| extent.end() <= at);
        let within = self.extents[first..].iter().take_while(|extent| extent.at < end);
        within.map(|extent| extent.part(extent.at.max(at), extent.end().min(end))).collect()
    }

    /// Removes what lies between `at` and `end`, and returns it.
    pub(super) fn take(&mut self, at: u32, end: u32) -> Vec<Extent> {
        let first = self.extents.partition_point(|extent| extent.end() <= at);
        let last = self.extents.partition_point(|extent| extent.at < end).max(first);
        let taken = self.parts(at, end);
        let touched = &self.extents[first..last];
        let before = touched.first().filter(|extent| extent.at < at).map(|extent| extent.part(extent.at, at));
        let after = touched.last().filter(|extent| extent.end() > end).map(|extent| extent.part(end, extent.end()));
        self.extents.splice(first..last, before.into_iter().chain(after));
        taken
    }

    /// Inserts an extent into a hole.
    pub(super) fn insert(&mut self, extent: Extent) {
        let index = self.extents.partition_point(|other| other.at < extent.at);
        self.extents.insert(index, extent);
    }

    /// Fills the holes between `at` and `end` with zeroes, and returns how many bytes that were.
    pub(super) fn fill(&mut self, at: u32, end: u32) -> u32 {
        let (mut filled, mut next) = (0, at);
        let mut extents = Vec::with_capacity(self.extents.len() + 1);
        for extent in self.extents.drain(..) {
            let hole_end = extent.at.min(end);
            if next < hole_end {
                filled += hole_end - next;
                push_zeroes(&mut extents, next, hole_end);
            }
            next = next.max(extent.end());
            match extent.source {
                Source::Zero => push_zeroes(&mut extents, extent.at, extent.end()),
                Source::Segment(_) => extents.push(extent),
            }
        }
        if next < end {
            filled += end - next;
            push_zeroes(&mut extents, next, end);
        }
        self.extents = extents;
        filled
    }
}

/// Appends zeroes, as part of the last extent if it ends there and is of zeroes too.
fn push_zeroes(extents: &mut Vec<Extent>, at: u32, end: u32) {
    match extents.last_mut() {
        Some(last) if last.source == Source::Zero && last.end() == at => last.len += end - at,
        _ => extents.push(Extent { at, len: end - at, source: Source::Zero }),
    }
}

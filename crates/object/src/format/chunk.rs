//! The map from one chunk of a file to segments.

use bytes::{BufMut, BytesMut};

use crate::format::SegmentId;
use crate::format::codec::{Corrupt, Decode, Encode, Input, put_varint};

/// The part of a file that one record maps.
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;
/// The largest size of a file.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// The part of a stored range that one checksum covers. The last block of a range may be shorter.
pub(crate) const CHECKSUM_BLOCK_BYTES: u32 = 64 << 10;

/// The extents of a chunk, in order and without overlap. Bytes of no extent are a hole.
#[derive(Clone, Eq, PartialEq, Debug, Default)]
pub(crate) struct Chunk {
    pub(crate) extents: Vec<Extent>,
}

/// A range of a chunk.
#[derive(Clone, Eq, PartialEq, Debug)]
pub(crate) struct Extent {
    /// Offset in the chunk.
    pub(crate) at: u32,
    pub(crate) len: u32,
    pub(crate) source: Source,
}

/// Where the bytes of an extent are.
#[derive(Clone, Eq, PartialEq, Debug)]
pub(crate) enum Source {
    /// Allocated, and reads as zeroes.
    Zero,
    Segment(Stored),
}

/// A part of a stored range. A range is verified in blocks of [`CHECKSUM_BLOCK_BYTES`], counted from the start of the
/// range; an extent keeps the blocks that it touches, whole.
#[derive(Clone, Eq, PartialEq, Debug)]
pub(crate) struct Stored {
    pub(crate) segment: SegmentId,
    /// Offset of the first block in the segment.
    pub(crate) offset: u32,
    /// Bytes of the blocks together.
    pub(crate) stored_len: u32,
    /// Bytes of the first block before the extent.
    pub(crate) skip: u32,
    /// The checksums of the blocks.
    pub(crate) crc32c: Vec<u32>,
}

impl Encode for Chunk {
    fn encode_to(&self, out: &mut BytesMut) {
        // Segments are named once per record: most extents of a chunk share one.
        let mut segments: Vec<SegmentId> = Vec::new();
        for extent in &self.extents {
            if let Source::Segment(stored) = &extent.source
                && !segments.contains(&stored.segment)
            {
                segments.push(stored.segment);
            }
        }
        put_varint(out, segments.len() as u64);
        for segment in &segments {
            out.put_slice(&segment.to_bytes());
        }
        put_varint(out, self.extents.len() as u64);
        for extent in &self.extents {
            put_varint(out, u64::from(extent.at));
            put_varint(out, u64::from(extent.len));
            match &extent.source {
                Source::Zero => put_varint(out, 0),
                Source::Segment(stored) => {
                    let index = segments.iter().position(|segment| *segment == stored.segment);
                    put_varint(out, index.map_or(0, |index| index as u64 + 1));
                    put_varint(out, u64::from(stored.offset));
                    put_varint(out, u64::from(stored.stored_len));
                    put_varint(out, u64::from(stored.skip));
                    for crc in &stored.crc32c {
                        out.put_u32_le(*crc);
                    }
                }
            }
        }
    }
}

impl Decode for Chunk {
    fn decode_from(input: &mut Input<'_>) -> Result<Self, Corrupt> {
        let mut segments = Vec::new();
        for _ in 0..input.varint()? {
            segments.push(SegmentId::from_bytes(input.array()?));
        }
        let mut extents = Vec::new();
        let mut end = 0;
        for _ in 0..input.varint()? {
            let (at, len) = (input.varint_u32()?, input.varint_u32()?);
            let fits = at.checked_add(len).is_some_and(|end| u64::from(end) <= CHUNK_BYTES);
            if len == 0 || at < end || !fits {
                return Err(Corrupt("extents overlap or leave their chunk"));
            }
            end = at + len;
            let source = match input.varint()? {
                0 => Source::Zero,
                number => {
                    let index = usize::try_from(number - 1).map_err(|_| Corrupt("number too large"))?;
                    let segment = *segments.get(index).ok_or(Corrupt("unknown segment"))?;
                    let (offset, stored_len) = (input.varint_u32()?, input.varint_u32()?);
                    let skip = input.varint_u32()?;
                    let within = skip.checked_add(len).is_some_and(|end| end <= stored_len);
                    if !within || skip >= CHECKSUM_BLOCK_BYTES || offset.checked_add(stored_len).is_none() {
                        return Err(Corrupt("an extent is longer than what is stored"));
                    }
                    let blocks = stored_len.div_ceil(CHECKSUM_BLOCK_BYTES);
                    let mut crc32c = Vec::new();
                    for _ in 0..blocks {
                        crc32c.push(input.u32()?);
                    }
                    Source::Segment(Stored { segment, offset, stored_len, skip, crc32c })
                }
            };
            extents.push(Extent { at, len, source });
        }
        Ok(Self { extents })
    }
}

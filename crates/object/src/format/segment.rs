//! Segments: objects with file data, written once.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use crate::format::chunk::{CHECKSUM_BLOCK_BYTES, Stored};
use crate::format::codec::{Corrupt, Decode, Encode, Input, put_varint};

/// The name of a segment: ordered by time, and unique in a volume (F3).
///
/// 6 bytes milliseconds since the Unix epoch, 4 bytes the epoch of the writer, 6 bytes a number that the writer counts.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub(crate) struct SegmentId(u128);

impl SegmentId {
    pub(crate) fn new(unix_ms: u64, writer_epoch: u32, number: u64) -> Self {
        let low = 1_u64 << 48;
        Self(u128::from(unix_ms % low) << 80 | u128::from(writer_epoch) << 48 | u128::from(number % low))
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The id after it.
    pub(crate) fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    pub(crate) fn unix_ms(self) -> u64 {
        (self.0 >> 80) as u64
    }

    /// A number that grows with each id of a volume, whatever the clocks of its writers say.
    pub(crate) fn order(self) -> u128 {
        self.0 & ((1 << 80) - 1)
    }

    #[cfg(test)]
    pub(crate) fn writer_epoch(self) -> u32 {
        (self.0 >> 48) as u32
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SegmentId({self})")
    }
}

/// Where the bytes of a segment are.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum SegmentPlace {
    /// The object `seg/XX/SEGMENT_ID`.
    Object,
    /// The value of [`Key::Blob`](super::Key::Blob).
    Blob,
}

/// The tree's record of a segment. A segment without record is garbage.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct SegmentRecord {
    pub(crate) place: SegmentPlace,
    /// Bytes of file data in it.
    pub(crate) total_bytes: u64,
    /// Bytes of it that extents refer to.
    pub(crate) live_bytes: u64,
    /// When the commit was made with which the last extent was gone, in ms since the Unix epoch. 0: there are extents,
    /// or there has never been one.
    pub(crate) dead_unix_ms: u64,
}

impl SegmentRecord {
    /// The record of a segment to which no extent refers yet.
    pub(crate) fn new(place: SegmentPlace, total_bytes: u64) -> Self {
        Self { place, total_bytes, live_bytes: 0, dead_unix_ms: 0 }
    }
}

impl Encode for SegmentRecord {
    fn encode_to(&self, out: &mut BytesMut) {
        out.put_u8(match self.place {
            SegmentPlace::Object => 0,
            SegmentPlace::Blob => 1,
        });
        put_varint(out, self.total_bytes);
        put_varint(out, self.live_bytes);
        put_varint(out, self.dead_unix_ms);
    }
}

impl Decode for SegmentRecord {
    fn decode_from(input: &mut Input<'_>) -> Result<Self, Corrupt> {
        let place = match input.u8()? {
            0 => SegmentPlace::Object,
            1 => SegmentPlace::Blob,
            _ => return Err(Corrupt("unknown place of a segment")),
        };
        let [total_bytes, live_bytes, dead_unix_ms] = [(); 3].map(|()| input.varint());
        Ok(Self { place, total_bytes: total_bytes?, live_bytes: live_bytes?, dead_unix_ms: dead_unix_ms? })
    }
}

/// A range of a segment, of at most [`CHECKSUM_BLOCK_BYTES`]: what it held when it was written. It may belong to
/// nothing any more; then no extent refers to it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct FooterEntry {
    pub(crate) ino: u64,
    pub(crate) file_offset_bytes: u64,
    pub(crate) segment_offset_bytes: u32,
    pub(crate) len_bytes: u32,
    /// The checksum of the range.
    pub(crate) crc32c: u32,
}

/// The end of a segment, in an object and in the tree: the encoded entries, their length, and their checksum.
#[derive(Clone, Eq, PartialEq, Debug, Default)]
pub(crate) struct Footer {
    pub(crate) entries: Vec<FooterEntry>,
}

/// Bytes of the length and the checksum, at the very end.
pub(crate) const FOOTER_TAIL_BYTES: usize = 8;

impl Footer {
    /// Adds a range of a file, by its blocks.
    pub(crate) fn add(&mut self, ino: u64, file_offset_bytes: u64, stored: &Stored) {
        for (number, crc32c) in (0..).zip(&stored.crc32c) {
            let at = number * CHECKSUM_BLOCK_BYTES;
            self.entries.push(FooterEntry {
                ino,
                file_offset_bytes: file_offset_bytes + u64::from(at),
                segment_offset_bytes: stored.offset + at,
                len_bytes: (stored.stored_len - at).min(CHECKSUM_BLOCK_BYTES),
                crc32c: *crc32c,
            });
        }
    }

    /// The bytes to put behind the data of a segment.
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::from(self.encode().as_ref());
        let (len, crc32c) = (out.len() as u32, crc32c::crc32c(&out));
        out.put_u32_le(len);
        out.put_u32_le(crc32c);
        out.freeze()
    }

    /// The length of the encoded entries, from the last bytes of an object.
    pub(crate) fn encoded_len(tail: [u8; FOOTER_TAIL_BYTES]) -> u32 {
        let [a, b, c, d, ..] = tail;
        u32::from_le_bytes([a, b, c, d])
    }

    /// Reads a footer back: the last bytes of an object, from the encoded entries on.
    ///
    /// # Errors
    /// The checksum is wrong, or the entries are not of this version.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Corrupt> {
        let (encoded, tail) = bytes.split_last_chunk::<FOOTER_TAIL_BYTES>().ok_or(Corrupt("too short"))?;
        let [.., a, b, c, d] = *tail;
        if Self::encoded_len(*tail) as usize != encoded.len() {
            return Err(Corrupt("the length of the footer is wrong"));
        }
        if crc32c::crc32c(encoded) != u32::from_le_bytes([a, b, c, d]) {
            return Err(Corrupt("the checksum of the footer is wrong"));
        }
        Self::decode(encoded)
    }
}

impl Encode for Footer {
    fn encode_to(&self, out: &mut BytesMut) {
        put_varint(out, self.entries.len() as u64);
        for entry in &self.entries {
            put_varint(out, entry.ino);
            put_varint(out, entry.file_offset_bytes);
            put_varint(out, u64::from(entry.segment_offset_bytes));
            put_varint(out, u64::from(entry.len_bytes));
            out.put_u32_le(entry.crc32c);
        }
    }
}

impl Decode for Footer {
    fn decode_from(input: &mut Input<'_>) -> Result<Self, Corrupt> {
        let mut entries = Vec::new();
        for _ in 0..input.varint()? {
            entries.push(FooterEntry {
                ino: input.varint()?,
                file_offset_bytes: input.varint()?,
                segment_offset_bytes: input.varint_u32()?,
                len_bytes: input.varint_u32()?,
                crc32c: input.u32()?,
            });
        }
        Ok(Self { entries })
    }
}

/// When the collector of garbage last went through all objects.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Collected {
    pub(crate) unix_ms: u64,
}

impl Encode for Collected {
    fn encode_to(&self, out: &mut BytesMut) {
        put_varint(out, self.unix_ms);
    }
}

impl Decode for Collected {
    fn decode_from(input: &mut Input<'_>) -> Result<Self, Corrupt> {
        Ok(Self { unix_ms: input.varint()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footer() -> Footer {
        let entry = |at: u32| FooterEntry {
            ino: 7,
            file_offset_bytes: u64::from(at) << 20,
            segment_offset_bytes: at,
            len_bytes: 4096,
            crc32c: at ^ 0xffff_ffff,
        };
        Footer { entries: (0..100).map(|number| entry(number * 4096)).collect() }
    }

    #[test]
    fn a_footer_is_read_back_from_the_end_of_an_object() {
        let bytes = footer().to_bytes();
        let tail = bytes.last_chunk().expect("it has a tail");
        assert_eq!(Footer::encoded_len(*tail) as usize, bytes.len() - FOOTER_TAIL_BYTES);
        assert_eq!(Footer::from_bytes(&bytes).expect("it is whole"), footer());
    }

    #[test]
    fn every_wrong_bit_of_a_footer_is_found() {
        let bytes = footer().to_bytes();
        for at in 0..bytes.len() {
            let mut wrong = bytes.to_vec();
            wrong[at] ^= 1 << (at % 8);
            assert!(Footer::from_bytes(&wrong).is_err(), "byte {at}");
            assert!(Footer::from_bytes(&bytes[..at]).is_err(), "cut at {at}");
        }
    }
}

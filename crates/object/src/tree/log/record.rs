//! The records of a log.
//!
//! ```text
//! 4 bytes length, 4 bytes crc32c of the rest, then the effects of one call:
//!   8 bytes change of the number of inodes, 8 bytes change of the data bytes, number of new inode numbers,
//!   number of changes, and each: key, 1 byte whether it has a value, value
//!   number of segments whose live bytes changed, and each: segment, 8 bytes by how much
//!   number of small writes, and each: inode, offset in the file, 4 bytes crc32c, bytes
//! ```

use bytes::{BufMut, Bytes, BytesMut};

use crate::format::{Corrupt, FooterEntry, Input, Key, SegmentId, put_bytes, put_varint};
use crate::tree::transaction::Piece;
use crate::tree::view::Effects;

/// Length and checksum.
const FRAME_BYTES: usize = 8;

/// Appends the record of what a call did.
pub(super) fn encode(effects: &Effects, out: &mut BytesMut) {
    let start = out.len();
    out.put_bytes(0, FRAME_BYTES);
    out.put_i64_le(effects.inodes);
    out.put_i64_le(effects.data_bytes);
    put_varint(out, effects.new_inos);
    put_varint(out, effects.changes.len() as u64);
    for (key, value) in &effects.changes {
        put_bytes(out, key.encode().as_ref());
        out.put_u8(value.is_some().into());
        if let Some(value) = value {
            put_bytes(out, value);
        }
    }
    put_varint(out, effects.live.len() as u64);
    for (segment, bytes) in &effects.live {
        out.put_slice(&segment.to_bytes());
        out.put_i64_le(*bytes);
    }
    put_varint(out, effects.small.len() as u64);
    for piece in &effects.small {
        put_varint(out, piece.origin.ino);
        put_varint(out, piece.origin.file_offset_bytes);
        out.put_u32_le(piece.origin.crc32c);
        put_bytes(out, &piece.bytes);
    }
    let payload = start + FRAME_BYTES;
    let (len, crc) = ((out.len() - payload) as u32, crc32c::crc32c(&out[payload..]));
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    out[start + 4..payload].copy_from_slice(&crc.to_le_bytes());
}

/// The first record and the bytes after it; `None` if it is not complete.
pub(super) fn decode(bytes: &[u8]) -> Option<(Effects, &[u8])> {
    let mut input = Input(bytes);
    let (len, crc) = (input.u32().ok()?, input.u32().ok()?);
    let (payload, rest) = input.0.split_at_checked(len as usize)?;
    if crc32c::crc32c(payload) != crc {
        return None;
    }
    let effects = effects(&mut Input(payload)).ok()?;
    Some((effects, rest))
}

fn effects(input: &mut Input<'_>) -> Result<Effects, Corrupt> {
    let mut effects =
        Effects { inodes: input.i64()?, data_bytes: input.i64()?, new_inos: input.varint()?, ..Effects::default() };
    for _ in 0..input.varint()? {
        let key = Key::decode(input.bytes()?)?;
        let value = if input.u8()? == 0 { None } else { Some(Bytes::copy_from_slice(input.bytes()?)) };
        effects.changes.insert(key, value);
    }
    for _ in 0..input.varint()? {
        effects.live.push((SegmentId::from_bytes(input.array()?), input.i64()?));
    }
    for _ in 0..input.varint()? {
        let (ino, file_offset_bytes) = (input.varint()?, input.varint()?);
        let crc32c = input.u32()?;
        let bytes = Bytes::copy_from_slice(input.bytes()?);
        let len_bytes = bytes.len() as u32;
        let origin = FooterEntry { ino, file_offset_bytes, segment_offset_bytes: 0, len_bytes, crc32c };
        effects.small.push(Piece { origin, bytes });
    }
    Ok(effects)
}

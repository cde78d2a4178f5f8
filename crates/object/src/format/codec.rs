//! Encoding of values: fixed integers little-endian, lengths and small numbers as LEB128.

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

/// Bytes that are no value of this format.
#[derive(Debug, Error)]
#[error("corrupt record: {0}")]
pub(crate) struct Corrupt(pub(crate) &'static str);

/// The version of all values.
const VERSION: u8 = 1;

/// A value that can be stored.
pub(crate) trait Encode {
    /// Appends the value without its version.
    fn encode_to(&self, out: &mut BytesMut);

    /// The value as it is stored (F2).
    fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        out.put_u8(VERSION);
        self.encode_to(&mut out);
        out.freeze()
    }
}

/// A value that can be read back.
pub(crate) trait Decode: Sized {
    /// Reads the value; all of `input` must be used.
    fn decode_from(input: &mut Input<'_>) -> Result<Self, Corrupt>;

    /// Reads a stored value.
    fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        let mut input = Input(bytes);
        if input.u8()? != VERSION {
            return Err(Corrupt("written by a newer version"));
        }
        let value = Self::decode_from(&mut input)?;
        if !input.0.is_empty() {
            return Err(Corrupt("bytes after the end"));
        }
        Ok(value)
    }
}

/// The rest of a value that is being read.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Corrupt> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Corrupt("too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Corrupt> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Corrupt> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Corrupt> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Corrupt> {
        self.array().map(i64::from_le_bytes)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Corrupt> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Corrupt("number too large"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Corrupt("number too long"))
    }

    pub(crate) fn varint_u32(&mut self) -> Result<u32, Corrupt> {
        self.varint()?.try_into().map_err(|_| Corrupt("number too large"))
    }

    /// Bytes after their length.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Corrupt> {
        let len = self.varint()?.try_into().map_err(|_| Corrupt("number too large"))?;
        self.take(len)
    }
}

pub(crate) fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

pub(crate) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}

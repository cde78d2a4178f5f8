//! The keys of a volume.

use crate::format::{Corrupt, SegmentId};

/// A key of the tree. The variants are in the order of their first bytes, so that the derived order is that of the
/// encoded keys (F1).
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub(crate) enum Key {
    /// `b` SEGMENT: the bytes and the footer of a segment that is kept in the tree itself.
    Blob(SegmentId),
    /// `c` inode, index: the extents of one [`CHUNK_BYTES`](super::CHUNK_BYTES) of a file.
    Chunk { ino: u64, index: u64 },
    /// `d` directory, hash of the name: the entries with this hash.
    Entries { dir: u64, hash: u64 },
    /// `i` inode.
    Inode(u64),
    /// `o` inode: has no name, and is still open or not yet freed.
    Orphan(u64),
    /// `s` SEGMENT: where it is and how much of it is live.
    Segment(SegmentId),
    /// `v`: counters of the volume.
    Volume(VolumeKey),
    /// `x` inode, number: the value of a large extended attribute.
    Xattr { ino: u64, number: u64 },
}

/// The counters of a volume.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
#[repr(u8)]
pub(crate) enum VolumeKey {
    /// The [`tree::Counters`](crate::tree::Counters).
    Counters = 1,
    /// The [`Collected`](super::Collected).
    Collected = 2,
}

/// The most bytes of a key.
const KEY_BYTES_MAX: usize = 17;

/// An encoded key.
pub(crate) struct EncodedKey {
    bytes: [u8; KEY_BYTES_MAX],
    len: usize,
}

impl AsRef<[u8]> for EncodedKey {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Key {
    /// The bytes of the key.
    pub(crate) fn encode(self) -> EncodedKey {
        let one = |tag: u8, number: u64| {
            let mut bytes = [0; KEY_BYTES_MAX];
            bytes[0] = tag;
            bytes[1..9].copy_from_slice(&number.to_be_bytes());
            EncodedKey { bytes, len: 9 }
        };
        let two = |tag: u8, first: u64, second: u64| {
            let mut key = one(tag, first);
            key.bytes[9..].copy_from_slice(&second.to_be_bytes());
            EncodedKey { len: 17, ..key }
        };
        let segment = |tag: u8, id: SegmentId| {
            let mut bytes = [0; KEY_BYTES_MAX];
            bytes[0] = tag;
            bytes[1..].copy_from_slice(&id.to_bytes());
            EncodedKey { bytes, len: 17 }
        };
        match self {
            Self::Blob(id) => segment(b'b', id),
            Self::Chunk { ino, index } => two(b'c', ino, index),
            Self::Entries { dir, hash } => two(b'd', dir, hash),
            Self::Inode(ino) => one(b'i', ino),
            Self::Orphan(ino) => one(b'o', ino),
            Self::Segment(id) => segment(b's', id),
            Self::Volume(key) => EncodedKey {
                len: 2,
                bytes: {
                    let mut b = [0; KEY_BYTES_MAX];
                    b[0] = b'v';
                    b[1] = key as u8;
                    b
                },
            },
            Self::Xattr { ino, number } => two(b'x', ino, number),
        }
    }

    /// The key with these bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        const BAD: Corrupt = Corrupt("not a key");
        let (tag, rest) = bytes.split_first().ok_or(BAD)?;
        let one = || Ok(u64::from_be_bytes(rest.try_into().map_err(|_| BAD)?));
        let two = || {
            let both: [u8; 16] = rest.try_into().map_err(|_| BAD)?;
            let both = u128::from_be_bytes(both);
            Ok(((both >> 64) as u64, both as u64))
        };
        let segment = || Ok(SegmentId::from_bytes(rest.try_into().map_err(|_| BAD)?));
        match tag {
            b'b' => segment().map(Self::Blob),
            b'c' => two().map(|(ino, index)| Self::Chunk { ino, index }),
            b'd' => two().map(|(dir, hash)| Self::Entries { dir, hash }),
            b'i' => one().map(Self::Inode),
            b'o' => one().map(Self::Orphan),
            b's' => segment().map(Self::Segment),
            b'v' if rest == [VolumeKey::Counters as u8] => Ok(Self::Volume(VolumeKey::Counters)),
            b'v' if rest == [VolumeKey::Collected as u8] => Ok(Self::Volume(VolumeKey::Collected)),
            b'x' => two().map(|(ino, number)| Self::Xattr { ino, number }),
            _ => Err(BAD),
        }
    }
}

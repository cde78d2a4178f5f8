//! Names in the arena: of frames, inode slots and volume slots, and short byte strings.
//!
//! # Invariants
//! N1. Only an arena creates an id, below the length of its table. An id of another arena may be out of range; then its
//!     use panics.

use std::fmt;
use std::num::NonZeroU32;

/// Longest file handle or volume id, in bytes. Linux's `MAX_HANDLE_SZ` is the same number.
pub const SHORT_BYTES_MAX: usize = 128;

/// Number of one page frame, counted from the start of the frame area. Adjacent numbers are adjacent
/// memory.
///
/// Kernel counterpart: a page frame number.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct FrameId(NonZeroU32);

/// Number of one record in the inode table.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct InodeSlot(u32);

/// Number of one record in the volume table.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct VolumeSlot(u32);

macro_rules! table_index {
    ($name:ident) => {
        impl $name {
            pub(crate) const fn new(index: u32) -> Self {
                Self(index)
            }

            /// The number itself, from 0.
            #[must_use]
            pub const fn as_u32(self) -> u32 {
                self.0
            }

            pub(crate) const fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

impl FrameId {
    /// Stored plus one, so that an `Option<FrameId>` is not larger: page trees are full of them.
    pub(crate) const fn new(index: u32) -> Self {
        match NonZeroU32::new(index.wrapping_add(1)) {
            Some(number) => Self(number),
            None => panic!("an arena has fewer than 2^32 - 1 frames"),
        }
    }

    /// The number itself, from 0.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self.0.get() - 1
    }

    pub(crate) const fn index(self) -> usize {
        self.as_u32() as usize
    }
}

table_index!(InodeSlot);
table_index!(VolumeSlot);

/// At most [`SHORT_BYTES_MAX`] bytes, kept inline so that a record is plain memory.
#[derive(Copy, Clone, Eq, PartialEq, Hash)]
pub struct ShortBytes {
    len: u8,
    /// Zero from `len` on, so that the derived comparisons are correct.
    bytes: [u8; SHORT_BYTES_MAX],
}

/// The handle by which a backend finds a file again without its path (as of `name_to_handle_at`).
pub type FileHandleBytes = ShortBytes;

/// The label by which the engine finds a volume again.
pub type VolumeId = ShortBytes;

impl ShortBytes {
    /// No bytes at all.
    pub const EMPTY: Self = Self { len: 0, bytes: [0; SHORT_BYTES_MAX] };

    /// Copies `bytes`, or `None` if there are more than [`SHORT_BYTES_MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut short = Self::EMPTY;
        short.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        short.len = u8::try_from(bytes.len()).ok()?;
        Some(short)
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Default for ShortBytes {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl AsRef<[u8]> for ShortBytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for ShortBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.as_slice().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::{SHORT_BYTES_MAX, ShortBytes};

    #[test]
    fn short_bytes_hold_up_to_their_limit_and_no_more() {
        for len in [0, 1, SHORT_BYTES_MAX] {
            let bytes = vec![7; len];
            assert_eq!(ShortBytes::new(&bytes).map(|short| short.as_slice().to_vec()), Some(bytes));
        }
        assert_eq!(ShortBytes::new(&[7; SHORT_BYTES_MAX + 1]), None);
    }

    #[test]
    fn debug_shows_text_as_text() {
        let short = ShortBytes::new(b"vol\x00").expect("four bytes fit");
        assert_eq!(format!("{short:?}"), "b\"vol\\x00\"");
    }
}

//! The first page of the file: its type, its version, and the counts of frames and slots.
//!
//! # Invariants
//! H1. A header is accepted only if each of its words equals the one that this build would write for the same four
//!     counts and file length. So a [`Layout`] from a file obeys the same rules as a new one.

use crate::checksum::Checksum;
use crate::error::{ArenaError, Mismatch};
use crate::layout::{Counts, FRAME_BYTES, Layout};
use crate::record::{FrameEntry, HEADER_WORDS, InodeEntry, VolumeEntry};

/// The number of bytes to read before the file is mapped.
pub(crate) const HEADER_BYTES: usize = HEADER_WORDS * 8;

const MAGIC: u64 = u64::from_le_bytes(*b"slackwtr");
const BYTE_ORDER: u64 = 0x0807_0605_0403_0201;
pub(crate) const VERSION: u64 = 2;
const HEADER_KIND: u32 = 0;

/// Field names in file order, as error messages show them.
const FIELDS: [&str; HEADER_WORDS] = [
    "magic",
    "byte_order",
    "version",
    "file_bytes",
    "frames",
    "reserve_frames",
    "inodes",
    "volumes",
    "frame_bytes",
    "frame_record_bytes",
    "inode_record_bytes",
    "volume_record_bytes",
    "volumes_at",
    "inodes_at",
    "frame_table_at",
    "frames_at",
    "checksum",
];

/// The header of a file with this layout.
pub(crate) fn words_of(layout: &Layout) -> [u64; HEADER_WORDS] {
    let mut words = [
        MAGIC,
        BYTE_ORDER,
        VERSION,
        layout.file_bytes,
        layout.counts.frames.into(),
        layout.counts.reserve_frames.into(),
        layout.counts.inodes.into(),
        layout.counts.volumes.into(),
        FRAME_BYTES as u64,
        size_of::<FrameEntry>() as u64,
        size_of::<InodeEntry>() as u64,
        size_of::<VolumeEntry>() as u64,
        layout.volumes_at,
        layout.inodes_at,
        layout.frame_table_at,
        layout.frames_at,
        0,
    ];
    words[HEADER_WORDS - 1] = sum(&words);
    words
}

/// The layout of a file that begins with `bytes` and is `file_bytes` long.
pub(crate) fn check(bytes: &[u8; HEADER_BYTES], file_bytes: u64) -> Result<Layout, ArenaError> {
    let mut words = [0; HEADER_WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    check_words(&words, file_bytes)
}

fn check_words(words: &[u64; HEADER_WORDS], file_bytes: u64) -> Result<Layout, ArenaError> {
    let hex = |at: usize, expected: u64| {
        Mismatch::new(format!("header.{}", FIELDS[at]), format!("{:#x}", words[at]), format!("{expected:#x}"))
    };
    if words[0] != MAGIC {
        return Err(ArenaError::Foreign(hex(0, MAGIC)));
    }
    if words[1] != BYTE_ORDER {
        return Err(ArenaError::Foreign(hex(1, BYTE_ORDER)));
    }
    if words[2] != VERSION {
        return Err(ArenaError::Version(Mismatch::new("header.version", words[2], VERSION.to_string())));
    }
    if words[HEADER_WORDS - 1] != sum(words) {
        return Err(ArenaError::Damaged(hex(HEADER_WORDS - 1, sum(words))));
    }
    if words[3] != file_bytes {
        return Err(ArenaError::Length(Mismatch::new(
            "file length",
            file_bytes,
            format!("{} as in header.file_bytes", words[3]),
        )));
    }
    let count = |at: usize| {
        let in_words = |_| ArenaError::damaged(format!("header.{}", FIELDS[at]), words[at], "a 32-bit count");
        u32::try_from(words[at]).map_err(in_words)
    };
    let counts = Counts { frames: count(4)?, reserve_frames: count(5)?, inodes: count(6)?, volumes: count(7)? };
    let layout = Layout::new(counts, 1).ok_or_else(|| {
        ArenaError::damaged(
            "header.frames, .reserve_frames, .inodes, .volumes".into(),
            format!("{counts:?}"),
            "counts in range",
        )
    })?;
    if layout.file_bytes > file_bytes {
        return Err(ArenaError::damaged(
            "header.file_bytes".into(),
            file_bytes,
            format!("at least {}", layout.file_bytes),
        ));
    }
    let layout = Layout { file_bytes, ..layout };
    for (at, (found, expected)) in words.iter().zip(words_of(&layout)).enumerate() {
        if *found != expected {
            return Err(ArenaError::damaged(format!("header.{}", FIELDS[at]), found, expected.to_string()));
        }
    }
    Ok(layout)
}

/// The checksum of all words but the last, which stores it.
fn sum(words: &[u64; HEADER_WORDS]) -> u64 {
    Checksum::of_record(HEADER_KIND, 0).words(&words[..HEADER_WORDS - 1]).finish()
}

#[cfg(test)]
mod tests {
    use super::{FIELDS, VERSION, check_words, sum, words_of};
    use crate::layout::{Counts, Layout};
    use crate::record::HEADER_WORDS;

    fn layout() -> Layout {
        let counts = Counts { frames: 100, reserve_frames: 10, inodes: 30, volumes: 7 };
        Layout::new(counts, 2 << 20).expect("plain counts")
    }

    fn message(words: &[u64; HEADER_WORDS]) -> String {
        check_words(words, layout().file_bytes).expect_err("a changed header").to_string()
    }

    #[test]
    fn a_header_round_trips() {
        assert_eq!(check_words(&words_of(&layout()), layout().file_bytes).ok(), Some(layout()));
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        for at in 0..HEADER_WORDS {
            for bit in 0..64 {
                let mut words = words_of(&layout());
                words[at] ^= 1 << bit;
                message(&words);
            }
        }
    }

    #[test]
    fn every_field_is_checked_even_with_a_valid_checksum() {
        for at in 0..HEADER_WORDS - 1 {
            for value in [0, 1, 99, u64::MAX, words_of(&layout())[at].swap_bytes()] {
                let mut words = words_of(&layout());
                words[at] = value;
                words[HEADER_WORDS - 1] = sum(&words);
                if words != words_of(&layout()) {
                    // Changed counts that leave all other words the same make another valid header.
                    let valid = check_words(&words, layout().file_bytes).is_ok();
                    assert!(
                        !valid || ["frames", "reserve_frames", "inodes", "volumes"].contains(&FIELDS[at]),
                        "{}",
                        FIELDS[at]
                    );
                }
            }
        }
    }

    #[test]
    fn other_byte_order_newer_version_and_wrong_length_are_named() {
        let mut words = words_of(&layout());
        words[1] = words[1].swap_bytes();
        assert!(message(&words).contains("header.byte_order is 0x102030405060708, expected 0x807060504030201"));
        words = words_of(&layout());
        words[2] = VERSION + 1;
        assert!(message(&words).contains(&format!("header.version is {}, expected {VERSION}", VERSION + 1)));
        let error = check_words(&words_of(&layout()), 4096).expect_err("too short").to_string();
        assert!(error.contains("file length is 4096, expected"), "{error}");
    }
}

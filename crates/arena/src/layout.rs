//! The layout of the arena file.
//!
//! ```text
//! 0        header            one page
//!          volume table      192 bytes per slot     } each part starts on a page
//!          inode table       256 bytes per slot     }
//!          frame table       32 bytes per frame     }
//!          frames            4 KiB each, the last ones are the reserve
//!          padding           to the file system's block
//! ```
//!
//! # Invariants
//! L1. A [`Layout`] is computed from four counts only and checked for overflow. Its parts do not overlap and end within
//!     `file_bytes`. The layout stored in a file is only compared with it.

use crate::record::{FrameEntry, HeaderEntry, InodeEntry, VolumeEntry};

/// Size of a page frame.
pub const FRAME_BYTES: usize = 4096;

/// Fewest frames of an arena.
pub(crate) const FRAMES_MIN: u64 = 16;
/// Most frames of an arena: 8 TiB, so that a frame number and a sentinel fit into 32 bits.
pub(crate) const FRAMES_MAX: u64 = 1 << 31;
/// Most inode slots.
pub(crate) const INODES_MAX: u32 = 1 << 31;
/// Most volume slots.
pub(crate) const VOLUMES_MAX: u32 = 1 << 16;

const PAGE_BYTES: u64 = FRAME_BYTES as u64;
/// The reserve must let a drain gather at least four units of 1 MiB.
const RESERVE_BYTES_MIN: u64 = 4 << 20;

const _: () = assert!(size_of::<HeaderEntry>() <= FRAME_BYTES, "the header is one page");

/// Offsets and counts of one arena file.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct Layout {
    pub(crate) counts: Counts,
    pub(crate) volumes_at: u64,
    pub(crate) inodes_at: u64,
    pub(crate) frame_table_at: u64,
    pub(crate) frames_at: u64,
    /// Length of the file, a multiple of the file system's block.
    pub(crate) file_bytes: u64,
}

impl Layout {
    /// Computes the layout of an arena in blocks of `block_bytes`. `None` if a count or a sum is out of range.
    pub(crate) fn new(counts: Counts, block_bytes: u64) -> Option<Self> {
        let Counts { frames, reserve_frames, inodes, volumes } = counts;
        let in_range = (FRAMES_MIN..=FRAMES_MAX).contains(&u64::from(frames))
            && reserve_frames < frames
            && (1..=INODES_MAX).contains(&inodes)
            && (1..=VOLUMES_MAX).contains(&volumes);
        if !in_range {
            return None;
        }
        let volumes_at = PAGE_BYTES;
        let inodes_at = table_end(volumes_at, volumes, size_of::<VolumeEntry>())?;
        let frame_table_at = table_end(inodes_at, inodes, size_of::<InodeEntry>())?;
        let frames_at = table_end(frame_table_at, frames, size_of::<FrameEntry>())?;
        let frames_end = table_end(frames_at, frames, FRAME_BYTES)?;
        let file_bytes = frames_end.checked_next_multiple_of(block_bytes)?;
        Some(Self { counts, volumes_at, inodes_at, frame_table_at, frames_at, file_bytes })
    }
}

/// The number of frames and slots.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct Counts {
    /// All frames, including the reserve.
    pub(crate) frames: u32,
    /// The number of frames in the reserve, which are the last ones.
    pub(crate) reserve_frames: u32,
    pub(crate) inodes: u32,
    pub(crate) volumes: u32,
}

/// The reserve of an arena with `frames` frames: 1 %, at least 4 MiB, at most half of a tiny arena.
pub(crate) fn reserve_of(frames: u32) -> u32 {
    let least = u32::try_from(RESERVE_BYTES_MIN / PAGE_BYTES).unwrap_or(u32::MAX);
    frames.div_ceil(100).max(least).min(frames / 2)
}

fn table_end(start: u64, count: u32, record_bytes: usize) -> Option<u64> {
    let bytes = u64::from(count).checked_mul(record_bytes as u64)?;
    start.checked_add(bytes)?.checked_next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::{Counts, FRAME_BYTES, Layout, reserve_of};

    const COUNTS: Counts = Counts { frames: 1000, reserve_frames: 10, inodes: 300, volumes: 7 };

    #[test]
    fn parts_are_in_order_aligned_and_inside_the_file() {
        let layout = Layout::new(COUNTS, 2 << 20).expect("plain counts");
        let starts = [layout.volumes_at, layout.inodes_at, layout.frame_table_at, layout.frames_at];
        assert!(starts.is_sorted() && starts.iter().all(|at| at.is_multiple_of(4096)));
        assert_eq!(layout.inodes_at, 4096 + 4096);
        assert_eq!(layout.frame_table_at - layout.inodes_at, 77824);
        assert!(layout.frames_at + 1000 * FRAME_BYTES as u64 <= layout.file_bytes);
        assert!(layout.file_bytes.is_multiple_of(2 << 20));
    }

    #[test]
    fn counts_out_of_range_have_no_layout() {
        for counts in [
            Counts { frames: 0, ..COUNTS },
            Counts { frames: u32::MAX, ..COUNTS },
            Counts { reserve_frames: 1000, ..COUNTS },
            Counts { inodes: 0, ..COUNTS },
            Counts { inodes: u32::MAX, ..COUNTS },
            Counts { volumes: 0, ..COUNTS },
            Counts { volumes: 1 << 20, ..COUNTS },
        ] {
            assert_eq!(Layout::new(counts, 4096), None, "{counts:?}");
        }
    }

    #[test]
    fn reserve_is_one_per_cent_but_no_less_than_four_mebibytes() {
        assert_eq!(reserve_of(1 << 20), 10486);
        assert_eq!(reserve_of(65536), 1024);
        assert_eq!(reserve_of(1024), 512);
        assert_eq!(reserve_of(16), 8);
    }
}

//! The configuration of a new arena.

use std::path::PathBuf;

use crate::error::{ArenaError, Mismatch};
use crate::layout::{Counts, FRAME_BYTES, FRAMES_MAX, FRAMES_MIN, INODES_MAX, Layout, VOLUMES_MAX, reserve_of};
use crate::source::ArenaSource;

/// Minimum number of inode slots if the configuration does not set it.
const DEFAULT_INODES_MIN: u32 = 1024;

/// Size and place of a new arena.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ArenaConfig {
    /// Bytes for page data, rounded down to whole frames: 64 KiB to 8 TiB. The tables are added to this, about 2.4 %
    /// with the default number of inodes.
    pub frames_bytes: u64,
    /// The source of the memory.
    pub source: ArenaSource,
    /// Volume slots, 1 to 65536.
    pub volumes: u32,
    /// Inode slots, 1 to 2^31. `None`: a quarter of the number of frames, at least 1024.
    pub inodes: Option<u32>,
}

impl ArenaConfig {
    /// An arena without a name in the file system.
    #[must_use]
    pub fn memfd(frames_bytes: u64) -> Self {
        Self { frames_bytes, ..Self::default() }
    }

    /// An arena in a new file, on tmpfs or hugetlbfs.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>, frames_bytes: u64) -> Self {
        Self { frames_bytes, source: ArenaSource::File(path.into()), ..Self::default() }
    }

    /// Sets the number of volume slots.
    #[must_use]
    pub fn with_volumes(self, volumes: u32) -> Self {
        Self { volumes, ..self }
    }

    /// Sets the number of inode slots.
    #[must_use]
    pub fn with_inodes(self, inodes: u32) -> Self {
        Self { inodes: Some(inodes), ..self }
    }

    pub(crate) fn layout(&self, block_bytes: u64) -> Result<Layout, ArenaError> {
        let refuse = |field: &str, found: u64, least: u64, most: u64| {
            Err(ArenaError::Config(Mismatch::new(field, found, format!("{least} to {most}"))))
        };
        let frame_bytes = FRAME_BYTES as u64;
        let frames = match u32::try_from(self.frames_bytes / frame_bytes) {
            Ok(frames) if (FRAMES_MIN..=FRAMES_MAX).contains(&u64::from(frames)) => frames,
            _ => return refuse("frames_bytes", self.frames_bytes, FRAMES_MIN * frame_bytes, FRAMES_MAX * frame_bytes),
        };
        if !(1..=VOLUMES_MAX).contains(&self.volumes) {
            return refuse("volumes", self.volumes.into(), 1, VOLUMES_MAX.into());
        }
        let inodes = self.inodes.unwrap_or((frames / 4).max(DEFAULT_INODES_MIN));
        if !(1..=INODES_MAX).contains(&inodes) {
            return refuse("inodes", inodes.into(), 1, INODES_MAX.into());
        }
        let counts = Counts { frames, reserve_frames: reserve_of(frames), inodes, volumes: self.volumes };
        Layout::new(counts, block_bytes)
            .ok_or_else(|| ArenaError::Config(Mismatch::new("arena", format!("{counts:?}"), "a size below 2^64")))
    }
}

impl Default for ArenaConfig {
    /// 256 MiB of anonymous memory for up to 64 volumes.
    fn default() -> Self {
        Self { frames_bytes: 256 << 20, source: ArenaSource::Memfd, volumes: 64, inodes: None }
    }
}

#[cfg(test)]
mod tests {
    use super::ArenaConfig;

    #[test]
    fn absurd_sizes_are_refused_by_name() {
        for (config, expected) in [
            (ArenaConfig::memfd(0), "frames_bytes is 0, expected 65536 to 8796093022208"),
            (ArenaConfig::memfd(65535), "frames_bytes is 65535, expected 65536 to 8796093022208"),
            (ArenaConfig::memfd(u64::MAX), "frames_bytes is 18446744073709551615, expected 65536 to 8796093022208"),
            (ArenaConfig::default().with_volumes(0), "volumes is 0, expected 1 to 65536"),
            (ArenaConfig::default().with_inodes(0), "inodes is 0, expected 1 to 2147483648"),
        ] {
            assert_eq!(config.layout(4096).expect_err("absurd").to_string(), expected);
        }
    }

    #[test]
    fn the_default_inode_count_follows_the_frames() {
        let inodes = |bytes| ArenaConfig::memfd(bytes).layout(4096).expect("a plain size").counts.inodes;
        assert_eq!((inodes(1 << 20), inodes(1 << 30)), (1024, 65536));
    }
}

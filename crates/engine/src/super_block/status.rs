//! How far a volume's data has got.

use slackwater_sync::shim::atomic::Ordering;

use crate::error::ErrorKind;
use crate::errseq::ErrCursor;
use crate::super_block::SuperBlock;
use crate::units::PAGE_BYTES;

/// How much of a volume is not in the backend yet, and how fast it gets there.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct VolumeStatus {
    /// Most bytes that may be dirty, under write-back or not yet known to be durable; then its writers wait.
    pub share_bytes: u64,
    /// Bytes in dirty pages.
    pub dirty_bytes: u64,
    /// Those of them in pages that leave the cache once they are durable: what DONTCACHE writes brought.
    pub dontcache_dirty_bytes: u64,
    /// Passes of flushers that DONTCACHE writes asked for. Many writes share one.
    pub dontcache_passes: u64,
    /// Bytes under write-back.
    pub writeback_bytes: u64,
    /// Bytes written and not yet known to be durable.
    pub unstable_bytes: u64,
    /// Bytes written back since the mount; the rate is the difference of two looks.
    pub written_bytes: u64,
    /// Open file descriptions.
    pub open_files: u64,
    /// Inodes in memory.
    pub inodes: u64,
    /// Times that somebody else changed a file in the backend while it was dirty here, and lost to us.
    pub changed_underneath: u64,
    /// Files that a killed process left data of and that were gone from the backend at the mount.
    pub dropped_files: u64,
    /// Bytes of them in whole pages, which were dropped.
    pub dropped_bytes: u64,
    /// The last write-back error, if the last attempt failed.
    pub failing: Option<ErrorKind>,
}

impl VolumeStatus {
    /// Bytes that an unmount still has to bring to the backend.
    pub fn bytes_left(&self) -> u64 {
        self.dirty_bytes + self.writeback_bytes + self.unstable_bytes
    }
}

impl SuperBlock {
    /// How much is not in the backend yet. Counts are approximate while writers run.
    pub fn status(&self) -> VolumeStatus {
        let pages = self.pages();
        let bytes = |pages: i64| pages as u64 * PAGE_BYTES;
        let failing = self.bdi.has_failed().then(|| self.errseq.check(ErrCursor::default())).flatten();
        VolumeStatus {
            share_bytes: self.bdi.share_frames() * PAGE_BYTES,
            dirty_bytes: bytes(pages.reclaimable),
            dontcache_dirty_bytes: bytes(pages.dontcache_dirty),
            dontcache_passes: self.bdi.dontcache_passes(),
            writeback_bytes: bytes(pages.writeback),
            unstable_bytes: bytes(pages.unstable),
            written_bytes: self.bdi.written_bytes(),
            open_files: u64::from(self.open_files.load(Ordering::Acquire)),
            inodes: self.inodes.iter().map(|shard| shard.lock().len() as u64).sum(),
            changed_underneath: self.changed_underneath.load(Ordering::Relaxed),
            dropped_files: self.dropped_files.load(Ordering::Relaxed),
            dropped_bytes: self.dropped_bytes.load(Ordering::Relaxed),
            failing,
        }
    }
}

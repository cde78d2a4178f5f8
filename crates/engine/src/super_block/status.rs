//! How far a volume's data has got.

use std::time::Duration;

use slackwater_sync::shim::atomic::Ordering;

use crate::error::ErrorKind;
use crate::errseq::ErrCursor;
use crate::super_block::SuperBlock;
use crate::units::PAGE_BYTES;

/// How much of a volume is not in the backend yet, how fast it gets there, and what the cache is worth. What happened
/// "so far" is counted since the mount and only grows; the rate is the difference of two looks.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct VolumeStatus {
    /// Bytes in dirty pages.
    pub dirty_bytes: u64,
    /// Those of them in pages that leave the cache once they are durable: what DONTCACHE writes brought.
    pub dontcache_dirty_bytes: u64,
    /// DONTCACHE writes that woke a flusher, so far. The others found it asked already.
    pub dontcache_kicks: u64,
    /// Passes of flushers that DONTCACHE writes asked for, so far. Many writes share one.
    pub dontcache_passes: u64,
    /// Bytes under write-back.
    pub writeback_bytes: u64,
    /// Bytes written and not yet known to be durable.
    pub unstable_bytes: u64,
    /// Most bytes that the volume may have in such pages: its share of the arena, less while its write-back fails.
    pub share_bytes: u64,
    /// Age of the oldest of its files that are dirty and that no flusher has taken yet. One whose write-back has failed
    /// waits apart, and [`VolumeStatus::failing`] tells.
    pub oldest: Option<Duration>,
    /// Bytes written back so far.
    pub written_bytes: u64,
    /// Attempts to write back or to make durable that failed, so far.
    pub failures: u64,
    /// How long writers, all together, were told to pause so that memory fills no faster than the backend takes it, so far.
    /// Without the time for which they were refused at a limit.
    pub paused: Duration,
    /// Pages that reads found in the cache or on their way into it, so far, but for up to 63 of each open description. Threads
    /// that read through one at the same moment may spoil some of each other's count. What lies beyond the end of the backing
    /// file is found: there is nothing to bring.
    pub read_hits: u64,
    /// Pages that reads had to have brought from the backend, so far. What was read ahead of them in time is a hit.
    pub read_misses: u64,
    /// Bytes that came from the backend into the cache, so far: for reads, ahead of them, and for what writes leave of a page.
    pub filled_bytes: u64,
    /// Inodes that were given another tenant's wb, so far.
    pub inodes_switched: u64,
    /// Inodes that are on their way to another.
    pub switches_in_flight: u32,
    /// Open file descriptions.
    pub open_files: u64,
    /// Inodes in memory.
    pub inodes: u64,
    /// Times that somebody else changed a file in the backend while it was dirty here, and lost to us.
    pub changed_underneath: u64,
    /// Files of a killed process that somebody else had changed or removed by the time of the mount: what they had dirty is
    /// in files of its own, which [`SuperBlock::rescued`] names.
    pub rescued_files: u64,
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
        let oldest = self.wbs().iter().filter_map(|wb| wb.lists.lock().oldest_dirty()).min();
        let now = self.engine.clock.now();
        VolumeStatus {
            dirty_bytes: bytes(pages.reclaimable),
            dontcache_dirty_bytes: bytes(pages.dontcache_dirty),
            dontcache_kicks: self.bdi.dontcache_kicks(),
            dontcache_passes: self.bdi.dontcache_passes(),
            writeback_bytes: bytes(pages.writeback),
            unstable_bytes: bytes(pages.unstable),
            share_bytes: self.bdi.share_frames() * PAGE_BYTES,
            oldest: oldest.map(|when| now.since(when)),
            written_bytes: self.bdi.written_bytes(),
            failures: self.write_failures(),
            paused: self.bdi.paused(),
            read_hits: self.reads.hits(),
            read_misses: self.reads.misses(),
            filled_bytes: self.reads.filled() * PAGE_BYTES,
            inodes_switched: self.bdi.switched(),
            switches_in_flight: self.switches_in_flight.count(),
            open_files: u64::from(self.open_files.load(Ordering::Acquire)),
            inodes: self.inodes.iter().map(|shard| shard.lock().len() as u64).sum(),
            changed_underneath: self.changed_underneath.load(Ordering::Relaxed),
            rescued_files: self.rescued.lock().len() as u64,
            failing,
        }
    }
}

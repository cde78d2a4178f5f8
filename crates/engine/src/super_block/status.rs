//! Write-back status of a volume.

use std::time::Duration;

use slackwater_sync::shim::atomic::Ordering;

use crate::error::ErrorKind;
use crate::errseq::ErrCursor;
use crate::super_block::SuperBlock;
use crate::units::PAGE_BYTES;

/// How much of a volume is not yet durable on the backend, how fast it gets there, and how well the cache works. Values
/// "so far" count from the mount and only grow; a rate is the difference of two samples.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct VolumeStatus {
    /// Bytes in dirty pages.
    pub dirty_bytes: u64,
    /// Bytes of them in pages that leave the cache once they are durable, after DONTCACHE writes.
    pub dontcache_dirty_bytes: u64,
    /// DONTCACHE writes that woke a flusher so far. The others found a wake-up pending.
    pub dontcache_kicks: u64,
    /// Flusher passes for DONTCACHE writes so far. One pass serves many writes.
    pub dontcache_passes: u64,
    /// Bytes under write-back.
    pub writeback_bytes: u64,
    /// Bytes written but not yet known to be durable.
    pub unstable_bytes: u64,
    /// The most bytes that the volume may have in such pages: its share of the arena, or less while its write-back
    /// fails.
    pub share_bytes: u64,
    /// Age of the oldest dirty file that no flusher has yet visited. Files whose write-back has failed are not
    /// included; see [`VolumeStatus::failing`].
    pub oldest: Option<Duration>,
    /// Bytes written back so far.
    pub written_bytes: u64,
    /// Failed attempts to write back or to commit, so far.
    pub failures: u64,
    /// Total time for which writers were paused so far, so that memory fills no faster than the backend drains it.
    /// Excludes the time for which they were refused at a limit.
    pub paused: Duration,
    /// Pages that reads found in the cache, or already being filled, so far; except up to 63 per open description.
    /// Threads that read through one description at the same time may lose some of each other's counts. Pages beyond
    /// the end of the backing file count as hits, because nothing has to be fetched.
    pub read_hits: u64,
    /// Pages that reads had to fetch from the backend so far. Pages read ahead in time are hits.
    pub read_misses: u64,
    /// Bytes filled from the backend so far: for reads, for readahead, and for the parts of pages that writes do not
    /// cover.
    pub filled_bytes: u64,
    /// Inodes switched to another tenant's wb so far.
    pub inodes_switched: u64,
    /// Inodes being switched to another wb.
    pub switches_in_flight: u32,
    /// Open file descriptions.
    pub open_files: u64,
    /// Inodes in memory.
    pub inodes: u64,
    /// Times that another program changed a file in the backend while it was dirty here, and our data replaced the
    /// change.
    pub changed_underneath: u64,
    /// Files that another program removed or replaced in the backend while they were dirty here, and that were not copied to
    /// a rescue file yet. The next sync of the volume or its unmount does that.
    pub removed_files: u64,
    /// Their bytes, without those that are dirty, under write-back or not durable.
    pub removed_bytes: u64,
    /// Files of a killed process that another program had changed or removed before the mount. Their dirty data is in
    /// rescue files, which [`SuperBlock::rescued`] lists.
    pub rescued_files: u64,
    /// The last write-back error, if the last attempt failed. `Stale` while there are removed files.
    pub failing: Option<ErrorKind>,
}

impl VolumeStatus {
    /// Bytes that an unmount still has to write back and commit, or to copy to a rescue file.
    pub fn bytes_left(&self) -> u64 {
        self.dirty_bytes + self.writeback_bytes + self.unstable_bytes + self.removed_bytes
    }
}

impl SuperBlock {
    /// The volume's status. Counts are approximate while writers run.
    pub fn status(&self) -> VolumeStatus {
        let pages = self.pages();
        let bytes = |pages: i64| pages as u64 * PAGE_BYTES;
        let failing = self.bdi.has_failed().then(|| self.errseq.check(ErrCursor::default())).flatten();
        let removed = self.homeless();
        let failing = failing.or((!removed.is_empty()).then_some(ErrorKind::Stale));
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
            removed_files: removed.len() as u64,
            removed_bytes: removed.iter().map(|(_, bytes)| bytes).sum(),
            rescued_files: self.rescued.lock().len() as u64,
            failing,
        }
    }
}

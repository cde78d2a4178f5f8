//! The status of an engine: totals of all its volumes.

use crate::engine::Engine;
use crate::units::PAGE_BYTES;
use crate::writeback::DrainStats;

/// How the arena's memory is used, and activity that concerns several volumes. Bytes are those of whole pages. Counts
/// "so far" start with the engine and never decrease.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct EngineStatus {
    /// Bytes of all page frames: the maximum.
    pub arena_bytes: u64,
    /// Bytes of free frames.
    pub free_bytes: u64,
    /// Bytes of dirty pages.
    pub dirty_bytes: u64,
    /// Bytes of pages under write-back, or written back but not yet durable.
    pub writeback_bytes: u64,
    /// Bytes of all other frames: clean pages, pages being filled, and frames that wait for a payload.
    pub clean_bytes: u64,
    /// Mounted volumes.
    pub volumes: u64,
    /// Tenants that are not released yet, including the root.
    pub tenants: u64,
    /// Batches of inodes being moved to another wb.
    pub switches_in_flight: u32,
    /// Inodes moved to another wb, so far.
    pub inodes_switched: u64,
    /// The time that unmounts have waited for such moves, so far.
    pub drains: DrainStats,
}

impl Engine {
    /// The engine's status. The counts are approximate while writers run.
    pub fn status(&self) -> EngineStatus {
        let shared = self.shared();
        let frames = u64::from(shared.arena.frames());
        let free = shared.arena.free_frames().min(frames);
        let (dirty, writeback) = (shared.pool.global.nr_dirty.sum(), shared.pool.global.nr_writeback.sum());
        EngineStatus {
            arena_bytes: frames * PAGE_BYTES,
            free_bytes: free * PAGE_BYTES,
            dirty_bytes: dirty * PAGE_BYTES,
            writeback_bytes: writeback * PAGE_BYTES,
            clean_bytes: frames.saturating_sub(free + dirty + writeback) * PAGE_BYTES,
            volumes: shared.super_blocks().len() as u64,
            tenants: self.memcgs().len() as u64,
            switches_in_flight: self.switches_in_flight(),
            inodes_switched: self.inodes_switched(),
            drains: self.drain_stats(),
        }
    }
}

//! What an engine has, of all its volumes together.

use crate::engine::Engine;
use crate::units::PAGE_BYTES;
use crate::writeback::DrainStats;

/// What the arena's memory is used for, and what goes on between volumes. Bytes are of whole pages. What happened "so far"
/// is counted since the engine was made and only grows.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct EngineStatus {
    /// Bytes of all page frames: the ceiling.
    pub arena_bytes: u64,
    /// Bytes of frames that hold nothing.
    pub free_bytes: u64,
    /// Bytes of dirty pages.
    pub dirty_bytes: u64,
    /// Bytes of pages that are under write-back, or written and not yet known to be durable.
    pub writeback_bytes: u64,
    /// Bytes of the other frames: clean pages, pages that are being filled, and frames that wait for the payload of a write.
    pub clean_bytes: u64,
    /// Mounted volumes.
    pub volumes: u64,
    /// Tenants of which something is left, the root among them.
    pub tenants: u64,
    /// Batches of inodes that are on their way to another wb.
    pub switches_in_flight: u32,
    /// Inodes that were given another wb, so far.
    pub inodes_switched: u64,
    /// What unmounts have waited for while they drained switches, so far.
    pub drains: DrainStats,
}

impl Engine {
    /// What it has. Counts are approximate while writers run.
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

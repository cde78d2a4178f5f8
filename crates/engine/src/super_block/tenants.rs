//! How far each tenant's data has got.

use std::collections::HashMap;
use std::time::Duration;

use slackwater_sync::shim::Arc;

use crate::cgroup::{Memcg, MemcgId, MemcgState};
use crate::super_block::SuperBlock;
use crate::units::{PAGE_BYTES, Tick};
use crate::writeback::{BdiWriteback, Pages};

/// What a tenant may have in the cache, and how much of a volume waits in it to be brought to the backend. The limit is
/// about what the tenant has dirtied itself, wherever; its flusher writes the files that are mostly its own.
#[derive(Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct TenantStatus {
    /// Its number.
    pub id: MemcgId,
    /// The name it was made with.
    pub name: String,
    /// Where it is in its life.
    pub state: MemcgState,
    /// Most bytes that may be charged to it; `None`: as many as the volume may have.
    pub limit_bytes: Option<u64>,
    /// Bytes on all volumes that it or a tenant below it dirtied and that are not durable in a backend. None for the root.
    pub charged_bytes: u64,
    /// Bytes in dirty pages of its files on this volume.
    pub dirty_bytes: u64,
    /// Bytes of them under write-back.
    pub writeback_bytes: u64,
    /// Bytes of them written and not yet known to be durable.
    pub unstable_bytes: u64,
    /// Bytes of clean pages on all volumes that were cached for it. Some may be dirty again, or gone.
    pub cached_bytes: u64,
    /// Bytes that its flusher has written back on this volume so far.
    pub written_bytes: u64,
    /// Age of the oldest of its files here that are dirty and that its flusher has not taken yet.
    pub oldest: Option<Duration>,
    /// How long its writers, all together and on all volumes, were told to pause so that memory fills no faster than the
    /// backends take it. Without the time for which they were refused at a limit.
    pub paused: Duration,
    /// It is at its limit: a writer of it found no room, and not much has been written back since.
    pub wants_room: bool,
}

impl SuperBlock {
    /// The tenants of the engine, the root first, and what they have on this volume. Counts are approximate while writers
    /// run.
    pub fn tenants(&self) -> Vec<TenantStatus> {
        let now = self.engine().clock.now();
        let mut wbs = HashMap::<MemcgId, Vec<Arc<BdiWriteback>>>::new();
        for wb in self.wbs() {
            wbs.entry(wb.memcg.id()).or_default().push(wb);
        }
        let owners = &self.engine().owners;
        owners.release_unused();
        let none = Vec::new();
        owners.all().iter().map(|memcg| status_of(memcg, wbs.get(&memcg.id()).unwrap_or(&none), now)).collect()
    }
}

/// `wbs`: those of the tenant on the volume. One that was killed may be left beside another.
fn status_of(memcg: &Memcg, wbs: &[Arc<BdiWriteback>], now: Tick) -> TenantStatus {
    let pages = wbs.iter().fold(Pages::default(), |sum, wb| sum.plus(wb.stat.sum()));
    let bytes = |pages: i64| pages.max(0) as u64 * PAGE_BYTES;
    let oldest = wbs.iter().filter_map(|wb| wb.lists.lock().oldest_dirty()).min();
    TenantStatus {
        id: memcg.id(),
        name: memcg.name().to_owned(),
        state: memcg.state(),
        limit_bytes: memcg.limit_bytes(),
        charged_bytes: memcg.charged_bytes(),
        dirty_bytes: bytes(pages.reclaimable),
        writeback_bytes: bytes(pages.writeback),
        unstable_bytes: bytes(pages.unstable),
        cached_bytes: memcg.lruvec.pages() * PAGE_BYTES,
        written_bytes: wbs.iter().map(|wb| wb.written_pages()).sum::<u64>() * PAGE_BYTES,
        oldest: oldest.map(|when| now.since(when)),
        paused: memcg.paused(),
        wants_room: memcg.wants_room_itself(),
    }
}

//! Write-back status per tenant, on one volume and for a whole engine.

use std::collections::BTreeMap;
use std::iter;
use std::time::Duration;

use slackwater_sync::shim::Arc;

use crate::cgroup::{Memcg, MemcgId, MemcgState};
use crate::engine::Engine;
use crate::super_block::SuperBlock;
use crate::units::{PAGE_BYTES, Tick};
use crate::writeback::{BdiWriteback, Pages};

/// A tenant's limits and its pages in the cache, on one volume or on all volumes of an engine. The limit covers the
/// pages that the tenant itself has dirtied, on any file. Its flusher writes the files that are mostly its own.
#[derive(Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct TenantStatus {
    /// The number of the tenant.
    pub id: MemcgId,
    /// The name it was created with.
    pub name: String,
    /// The tenant above it, whose limit covers it too; `None` if that is the root.
    pub parent: Option<MemcgId>,
    /// The state of its life cycle.
    pub state: MemcgState,
    /// The most bytes that may be charged to it; `None` if only the volumes' shares limit it.
    pub limit_bytes: Option<u64>,
    /// Bytes on all volumes that it or its descendants dirtied and that are not yet durable on a backend. Zero for the
    /// root.
    pub charged_bytes: u64,
    /// Bytes in dirty pages of its files.
    pub dirty_bytes: u64,
    /// Bytes of its files under write-back.
    pub writeback_bytes: u64,
    /// Bytes of its files written but not yet known to be durable.
    pub unstable_bytes: u64,
    /// Bytes of clean pages on all volumes that were cached for it. Some may be dirty again or evicted.
    pub cached_bytes: u64,
    /// Pages that its reads found in the cache so far, on all volumes, counted as in [`VolumeStatus::read_hits`]. An
    /// open description reads for one tenant at a time.
    ///
    /// [`VolumeStatus::read_hits`]: crate::VolumeStatus::read_hits
    pub read_hits: u64,
    /// Pages that its reads had to fetch from a backend so far, on all volumes.
    pub read_misses: u64,
    /// Bytes that its flusher has written back so far, except on volumes since unmounted.
    pub written_bytes: u64,
    /// Age of the oldest dirty file of the tenant that its flusher has not yet visited.
    pub oldest: Option<Duration>,
    /// Total time for which its writers on all volumes were paused, so that memory fills no faster than the backends
    /// drain it. Excludes the time for which they were refused at a limit.
    pub paused: Duration,
    /// Whether the tenant is at its limit: one of its writers was refused frames, and little has been written back
    /// since.
    pub is_at_limit: bool,
}

impl SuperBlock {
    /// The tenants that have a wb on this volume and those above them, the root first, and their status there. A tenant
    /// has a wb if it mostly owns files there, or has written enough to be throttled. Counts are approximate while
    /// writers run. [`Engine::tenants`] covers all volumes.
    pub fn tenants(&self) -> Vec<TenantStatus> {
        let now = self.engine().clock.now();
        let wbs = by_tenant(self.wbs());
        let mut statuses = BTreeMap::new();
        for memcg in wbs.values().map(|wbs| &*wbs[0].memcg).flat_map(|memcg| iter::once(memcg).chain(memcg.lineage())) {
            let here = || status_of(memcg, wbs.get(&memcg.id()).map_or(&[][..], Vec::as_slice), now);
            statuses.entry(memcg.id()).or_insert_with(here);
        }
        statuses.into_values().collect()
    }
}

impl Engine {
    /// The tenants that still exist, the root first, and their status on all volumes together. Counts are approximate
    /// while writers run.
    pub fn tenants(&self) -> Vec<TenantStatus> {
        let now = self.shared().clock.now();
        let wbs = by_tenant(self.volumes().iter().flat_map(|volume| volume.wbs()));
        let wbs_of = |memcg: &Memcg| wbs.get(&memcg.id()).map_or(&[][..], Vec::as_slice);
        self.memcgs().iter().map(|memcg| status_of(memcg, wbs_of(memcg), now)).collect()
    }
}

/// A killed wb may remain beside a live one of the same tenant and volume.
fn by_tenant(all: impl IntoIterator<Item = Arc<BdiWriteback>>) -> BTreeMap<MemcgId, Vec<Arc<BdiWriteback>>> {
    let mut wbs = BTreeMap::<_, Vec<_>>::new();
    for wb in all {
        wbs.entry(wb.memcg.id()).or_default().push(wb);
    }
    wbs
}

fn status_of(memcg: &Memcg, wbs: &[Arc<BdiWriteback>], now: Tick) -> TenantStatus {
    let pages = wbs.iter().fold(Pages::default(), |sum, wb| sum.plus(wb.stat.sum()));
    let bytes = |pages: i64| pages.max(0) as u64 * PAGE_BYTES;
    let oldest = wbs.iter().filter_map(|wb| wb.lists.lock().oldest_dirty()).min();
    TenantStatus {
        id: memcg.id(),
        name: memcg.name().to_owned(),
        parent: memcg.parent().map(|parent| parent.id()),
        state: memcg.state(),
        limit_bytes: memcg.limit_bytes(),
        charged_bytes: memcg.charged_bytes(),
        dirty_bytes: bytes(pages.reclaimable),
        writeback_bytes: bytes(pages.writeback),
        unstable_bytes: bytes(pages.unstable),
        cached_bytes: memcg.lruvec.pages() * PAGE_BYTES,
        read_hits: memcg.reads.hits(),
        read_misses: memcg.reads.misses(),
        written_bytes: wbs.iter().map(|wb| wb.written_pages()).sum::<u64>() * PAGE_BYTES,
        oldest: oldest.map(|when| now.since(when)),
        paused: memcg.paused(),
        is_at_limit: memcg.wants_frames_itself(),
    }
}

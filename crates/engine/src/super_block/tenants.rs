//! How far each tenant's data has got: on a volume, and on all of an engine.

use std::collections::BTreeMap;
use std::time::Duration;

use slackwater_sync::shim::Arc;

use crate::cgroup::{Memcg, MemcgId, MemcgState};
use crate::engine::Engine;
use crate::super_block::SuperBlock;
use crate::units::{PAGE_BYTES, Tick};
use crate::writeback::{BdiWriteback, Pages};

/// What a tenant may have in the cache, and how much of a volume, or of all of an engine, waits in it to be brought to the
/// backend. The limit is about what the tenant has dirtied itself, wherever; its flusher writes the files that are mostly its
/// own.
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
    /// Bytes in dirty pages of its files there.
    pub dirty_bytes: u64,
    /// Bytes of them under write-back.
    pub writeback_bytes: u64,
    /// Bytes of them written and not yet known to be durable.
    pub unstable_bytes: u64,
    /// Bytes of clean pages on all volumes that were cached for it. Some may be dirty again, or gone.
    pub cached_bytes: u64,
    /// Pages that its reads found in the cache, so far and on all volumes, as [`VolumeStatus::read_hits`] counts them. A description reads for
    /// one tenant at a time.
    ///
    /// [`VolumeStatus::read_hits`]: crate::VolumeStatus::read_hits
    pub read_hits: u64,
    /// Pages that its reads had to have brought from a backend, so far and on all volumes.
    pub read_misses: u64,
    /// Bytes that its flusher has written back there so far, without volumes that are unmounted.
    pub written_bytes: u64,
    /// Age of the oldest of its files there that are dirty and that its flusher has not taken yet.
    pub oldest: Option<Duration>,
    /// How long its writers, all together and on all volumes, were told to pause so that memory fills no faster than the
    /// backends take it. Without the time for which they were refused at a limit.
    pub paused: Duration,
    /// It is at its limit: a writer of it found no room, and not much has been written back since.
    pub wants_room: bool,
}

impl SuperBlock {
    /// The tenants that have a wb on this volume, since files there are mostly their own or they have written enough to be
    /// slowed down; the root first. And what they have on it. Counts are approximate while writers run. All that an engine has:
    /// [`Engine::tenants`].
    pub fn tenants(&self) -> Vec<TenantStatus> {
        let now = self.engine().clock.now();
        by_tenant(self.wbs()).values().map(|wbs| status_of(&wbs[0].memcg, wbs, now)).collect()
    }
}

impl Engine {
    /// The tenants of which something is left, the root first, and what each has on all volumes together. Counts are
    /// approximate while writers run.
    pub fn tenants(&self) -> Vec<TenantStatus> {
        let now = self.shared().clock.now();
        let wbs = by_tenant(self.volumes().iter().flat_map(|volume| volume.wbs()));
        let wbs_of = |memcg: &Memcg| wbs.get(&memcg.id()).map_or(&[][..], Vec::as_slice);
        self.memcgs().iter().map(|memcg| status_of(memcg, wbs_of(memcg), now)).collect()
    }
}

/// One that was killed may be left beside another of the same tenant and volume.
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
        wants_room: memcg.wants_room_itself(),
    }
}

//! All metrics: name, unit, meaning, and the source of the value.
//!
//! Names are without the suffixes of the text format: the unit, and `_total` for a counter.

use slackwater::EngineStatus;
use slackwater_control::protocol::{ObjectRole, ObjectStatus, Phase, Status, Tenant};

use crate::metrics::Snapshot;

/// The type of a metric.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// A count, which only grows.
    Counter,
    /// A current value; the series `other` has the sum.
    Gauge,
    /// A current value; the series `other` has the maximum.
    GaugeMax,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Unit {
    None,
    Bytes,
    Seconds,
}

/// A metric of a `T`. Without a value there is no series.
pub(super) struct Metric<T: 'static> {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    pub(super) value: fn(&T) -> Option<f64>,
}

use Kind::{Counter, Gauge, GaugeMax};
use Unit::{Bytes, None as Plain, Seconds};

const fn metric<T>(
    name: &'static str,
    unit: Unit,
    kind: Kind,
    help: &'static str,
    value: fn(&T) -> Option<f64>,
) -> Metric<T> {
    Metric { name, unit, kind, help, value }
}

/// Exact up to 2^53, which is 8 PiB.
fn number(value: u64) -> Option<f64> {
    Some(value as f64)
}

fn seconds(ms: u64) -> Option<f64> {
    Some(ms as f64 / 1000.0)
}

fn flag(is_set: bool) -> Option<f64> {
    Some(f64::from(u8::from(is_set)))
}

/// Metrics of the engine.
#[rustfmt::skip]
pub(super) static ENGINE: [Metric<EngineStatus>; 12] = [
    metric("slackwater_arena", Bytes, Gauge, "Memory for pages; the cache never exceeds it", |it| number(it.arena_bytes)),
    metric("slackwater_arena_free", Bytes, Gauge, "Free page frames", |it| number(it.free_bytes)),
    metric("slackwater_arena_dirty", Bytes, Gauge, "Dirty pages of all volumes", |it| number(it.dirty_bytes)),
    metric("slackwater_arena_writeback", Bytes, Gauge, "Pages being written, and pages written but not yet durable", |it| number(it.writeback_bytes)),
    metric("slackwater_arena_clean", Bytes, Gauge, "All other page frames: clean pages and frames being filled", |it| number(it.clean_bytes)),
    metric("slackwater_engine_volumes", Plain, Gauge, "Volumes in the engine", |it| number(it.volumes)),
    metric("slackwater_engine_tenants", Plain, Gauge, "Tenants that exist or still have data", |it| number(it.tenants)),
    metric("slackwater_engine_switches_in_flight", Plain, Gauge, "Batches of files that are moving to another tenant", |it| number(it.switches_in_flight.into())),
    metric("slackwater_engine_switches", Plain, Counter, "Files that moved to another tenant", |it| number(it.inodes_switched)),
    metric("slackwater_engine_drains", Plain, Counter, "Waits for such moves at an unmount, one for each volume that ended", |it| number(it.drains.drains)),
    metric("slackwater_engine_drain_waits", Plain, Counter, "Drains that found a move of their volume in flight", |it| number(it.drains.waits)),
    metric("slackwater_engine_drain", Seconds, Counter, "Time spent in drains", |it| Some(it.drains.time.as_secs_f64())),
];

/// Metrics of the process.
#[rustfmt::skip]
pub(super) static PROCESS: [Metric<Snapshot>; 7] = [
    metric("slackwater_memory_pressure_sources", Plain, Gauge, "Files through which the kernel reports memory pressure", |it| number(it.memory_pressure.sources.len() as u64)),
    metric("slackwater_memory_pressure_events", Plain, Counter, "Reports of memory pressure", |it| number(it.memory_pressure.events)),
    metric("slackwater_memory_pressure_freed_objects", Plain, Counter, "Objects freed under memory pressure", |it| number(it.memory_pressure.freed_objects)),
    metric("slackwater_shrinkers", Plain, Gauge, "Caches that can free memory under pressure", |it| number(it.shrinkers.len() as u64)),
    metric("slackwater_shrinker_objects", Plain, Gauge, "Objects that these caches could free", |it| number(it.shrinkers.iter().filter_map(|shrinker| shrinker.count).sum())),
    metric("slackwater_shrinker_deferred_scans", Plain, Gauge, "Scans of objects that are due but deferred", |it| number(it.shrinkers.iter().map(|shrinker| shrinker.deferred).sum())),
    metric("slackwater_unmount_failures", Plain, Counter, "Failed unmounts: the volume was in use, or the deadline passed", |it| number(it.unmounts.failures())),
];

/// Metrics of each volume; label `volume`.
#[rustfmt::skip]
pub(super) static VOLUME: [Metric<Status>; 31] = [
    metric("slackwater_volume_dirty", Bytes, Gauge, "Dirty pages", |it| number(it.dirty_bytes)),
    metric("slackwater_volume_writeback", Bytes, Gauge, "Pages being written", |it| number(it.writeback_bytes)),
    metric("slackwater_volume_unstable", Bytes, Gauge, "Pages written but not yet durable", |it| number(it.unstable_bytes)),
    metric("slackwater_volume_share", Bytes, Gauge, "Limit for the sum of these three; lower while write-back fails", |it| number(it.share_bytes.unwrap_or(it.cache_bytes))),
    metric("slackwater_volume_oldest_dirty_age", Seconds, GaugeMax, "Age of the oldest dirty file that waits for a flusher; 0 if there is none", |it| seconds(it.oldest_ms.unwrap_or(0))),
    metric("slackwater_volume_written", Bytes, Counter, "Bytes written back", |it| number(it.written_bytes)),
    metric("slackwater_volume_write_failures", Plain, Counter, "Failed attempts to write data back or to make it durable", |it| number(it.failures)),
    metric("slackwater_volume_failing", Plain, Gauge, "1 while the latest attempt to write back or to make durable has failed", |it| flag(it.failing.is_some())),
    metric("slackwater_volume_paused", Seconds, Counter, "Total time for which writers were paused", |it| seconds(it.writers.paused_ms)),
    metric("slackwater_volume_paused_writes", Plain, Gauge, "Completed writes whose writers are paused", |it| number(it.writers.paused)),
    metric("slackwater_volume_parked_writes", Plain, Gauge, "Writes that wait for free frames", |it| number(it.writers.parked)),
    metric("slackwater_volume_parked", Bytes, Gauge, "Payload held for these writes, and mapped pages that wait for free frames", |it| number(it.writers.parked_bytes)),
    metric("slackwater_volume_mapped_refused", Bytes, Counter, "Stores to mapped files that were refused because the source answers with errors", |it| number(it.writers.refused_mapped_bytes)),
    metric("slackwater_volume_cache_hits", Plain, Counter, "Pages that reads found in the cache", |it| number(it.reads.hits)),
    metric("slackwater_volume_cache_misses", Plain, Counter, "Pages that reads had to fetch from the source", |it| number(it.reads.misses)),
    metric("slackwater_volume_filled", Bytes, Counter, "Bytes read from the source into the cache", |it| number(it.reads.filled_bytes)),
    metric("slackwater_volume_dontcache_dirty", Bytes, Gauge, "Dirty pages that leave the cache once they are durable", |it| number(it.dontcache.dirty_bytes)),
    metric("slackwater_volume_dontcache_kicks", Plain, Counter, "DONTCACHE writes that woke a flusher", |it| number(it.dontcache.kicks)),
    metric("slackwater_volume_dontcache_passes", Plain, Counter, "Flusher passes for DONTCACHE writes", |it| number(it.dontcache.passes)),
    metric("slackwater_volume_switches", Plain, Counter, "Files that moved to another tenant", |it| number(it.switches.done)),
    metric("slackwater_volume_switches_in_flight", Plain, Gauge, "Files that are moving to another tenant", |it| number(it.switches.in_flight)),
    metric("slackwater_volume_tenants", Plain, Gauge, "Tenants with data on it and those above them, including those without their own series; for a mount process, all tenants", |it| number(it.tenants.len() as u64 + it.more_tenants)),
    metric("slackwater_volume_open_files", Plain, Gauge, "Open file descriptions", |it| number(it.open_files)),
    metric("slackwater_volume_inodes", Plain, Gauge, "Inodes in memory", |it| number(it.inodes)),
    metric("slackwater_volume_starting", Plain, Gauge, "1 while it writes back what a killed process left", |it| flag(it.phase == Phase::Starting)),
    metric("slackwater_volume_mounted", Plain, Gauge, "1 while it is available at its mount point", |it| flag(matches!(it.phase, Phase::Mounted | Phase::Unmounting))),
    metric("slackwater_volume_unmounting", Plain, Gauge, "1 while an unmount is in progress", |it| flag(it.phase == Phase::Unmounting)),
    metric("slackwater_volume_flushing", Plain, Gauge, "1 while it is unmounted and still being written back", |it| flag(it.phase == Phase::Flushing)),
    metric("slackwater_volume_takeovers", Plain, Counter, "Times that a process has taken the mount over from another one, with `--keep`", |it| number(it.kept.as_ref().map_or(0, |kept| kept.takeovers).into())),
    metric("slackwater_volume_takeover_last_pause", Seconds, GaugeMax, "Time for which nothing was answered during the last takeover; 0 if there was none", |it| seconds(it.kept.as_ref().and_then(|kept| kept.last_pause_ms).unwrap_or(0))),
    metric("slackwater_volume_takeover_longest_pause", Seconds, GaugeMax, "The longest such time of all takeovers", |it| seconds(it.kept.as_ref().and_then(|kept| kept.longest_pause_ms).unwrap_or(0))),
];

/// Metrics of each object volume; label `volume`.
#[rustfmt::skip]
pub(super) static OBJECT: [Metric<ObjectStatus>; 10] = [
    metric("slackwater_object_fenced", Plain, Gauge, "1 after another process has taken the volume over", |it| flag(it.role == ObjectRole::Fenced)),
    metric("slackwater_object_last_commit_age", Seconds, GaugeMax, "Time since the last commit; for a reader, the age of the state that it shows", |it| seconds(it.last_commit_ms?)),
    metric("slackwater_object_commits", Plain, Counter, "Commits since the mount", |it| number(it.commits)),
    metric("slackwater_object_uncommitted_changes", Plain, Gauge, "Changes that are only in the local log", |it| number(it.uncommitted_changes)),
    metric("slackwater_object_uncommitted_age", Seconds, GaugeMax, "Age of the oldest change that is only in the local log; 0 if there is none", |it| seconds(it.uncommitted_ms.unwrap_or(0))),
    metric("slackwater_object_uploads_in_flight", Plain, Gauge, "Segments that are being uploaded", |it| number(it.uploads_in_flight)),
    metric("slackwater_object_sent", Bytes, Counter, "Bytes sent to the store", |it| number(it.sent_bytes)),
    metric("slackwater_object_received", Bytes, Counter, "Bytes received from the store", |it| number(it.received_bytes)),
    metric("slackwater_object_requests", Plain, Counter, "Requests to the store, retries included", |it| number(it.requests())),
    metric("slackwater_object_failed_requests", Plain, Counter, "Requests that failed; most are tried again", |it| number(it.failed_requests)),
];

/// Metrics of each tenant on each volume; labels `volume` and `tenant`.
#[rustfmt::skip]
pub(super) static TENANT_ON_VOLUME: [Metric<Tenant>; 5] = [
    metric("slackwater_volume_tenant_dirty", Bytes, Gauge, "Dirty pages of the files that it owns", |it| number(it.dirty_bytes)),
    metric("slackwater_volume_tenant_writeback", Bytes, Gauge, "Pages of these files being written", |it| number(it.writeback_bytes)),
    metric("slackwater_volume_tenant_unstable", Bytes, Gauge, "Pages of these files written but not yet durable", |it| number(it.unstable_bytes)),
    metric("slackwater_volume_tenant_written", Bytes, Counter, "Bytes written back by its flusher", |it| number(it.written_bytes)),
    metric("slackwater_volume_tenant_oldest_dirty_age", Seconds, GaugeMax, "Age of its oldest dirty file that waits for its flusher; 0 if there is none", |it| seconds(it.oldest_ms.unwrap_or(0))),
];

/// Metrics of each tenant on all volumes together; label `tenant`.
#[rustfmt::skip]
pub(super) static TENANT: [Metric<Tenant>; 7] = [
    metric("slackwater_tenant_charged", Bytes, Gauge, "Charged against its limit: pages that it and those below it dirtied, until they are durable", |it| number(it.charged_bytes)),
    metric("slackwater_tenant_limit", Bytes, Gauge, "Its limit, if it has one", |it| it.limit_bytes.and_then(number)),
    metric("slackwater_tenant_cached", Bytes, Gauge, "Clean pages cached for it", |it| number(it.cached_bytes)),
    metric("slackwater_tenant_cache_hits", Plain, Counter, "Pages that its reads found in the cache", |it| number(it.hits)),
    metric("slackwater_tenant_cache_misses", Plain, Counter, "Pages that its reads had to fetch from a source", |it| number(it.misses)),
    metric("slackwater_tenant_paused", Seconds, Counter, "Total time for which its writers were paused", |it| seconds(it.paused_ms)),
    metric("slackwater_tenant_at_limit", Plain, Gauge, "1 while it is at its limit and its writers are blocked", |it| flag(it.wants_room)),
];

//! Figures and rates from two samples, in the form that `--json` prints.
//!
//! A volume or tenant that is only in the later sample has no rates yet. Neither has one that was restarted between
//! them.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Serialize, Serializer};
use slackwater_control::protocol::{self, Container, ObjectRole, Phase, Status, TenantState};

use crate::commands::survey::{Answer, Survey};
use crate::progress::{Rate, time_left};
use crate::registry::Entry;

/// Pages that reads found in the cache between two samples.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Found {
    pub(super) hits: u64,
    pub(super) misses: u64,
}

impl Found {
    /// Percentage of pages that were found, rounded down to one decimal: 100 means that none was missed. `None` if
    /// nothing was read.
    pub(super) fn percent(self) -> Option<f64> {
        let all = u128::from(self.hits) + u128::from(self.misses);
        let per_mille = (u128::from(self.hits) * 1000).checked_div(all)?;
        Some(per_mille as f64 / 10.0)
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { hits: self.hits.saturating_add(other.hits), misses: self.misses.saturating_add(other.misses) }
    }
}

fn as_percent<S: Serializer>(found: &Option<Found>, serializer: S) -> Result<S::Ok, S::Error> {
    found.and_then(Found::percent).serialize(serializer)
}

/// Figures that volumes and tenants have in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    /// The bytes that count against the limit.
    pub(super) held_bytes: u64,
    pub(super) limit_bytes: Option<u64>,
    pub(super) dirty_bytes: u64,
    pub(super) writeback_bytes: u64,
    pub(super) unstable_bytes: u64,
    pub(super) written_bytes_per_s: Option<u64>,
    /// Time per second for which writers were slowed down, in total.
    pub(super) paused_ms_per_s: Option<u64>,
    #[serde(rename = "hit_percent", serialize_with = "as_percent")]
    pub(super) found: Option<Found>,
    pub(super) oldest_ms: Option<u64>,
}

/// A tenant on a volume. Its limit, its pauses, what it holds and what its reads found are totals over all volumes of
/// the process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Tenant {
    pub(super) id: u64,
    pub(super) name: String,
    /// The tenant's name for people.
    pub(super) label: String,
    /// The number of the tenant above it, whose limit covers it too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parent: Option<u64>,
    #[serde(flatten)]
    pub(super) container: Container,
    pub(super) state: TenantState,
    /// Whether the tenant is at its limit and its writers are blocked.
    pub(super) wants_room: bool,
    /// Whether the tenant has or had data on this volume. A mount process lists all of its tenants; a daemon also lists
    /// tenants that only write here.
    #[serde(skip)]
    pub(super) is_here: bool,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

/// A volume. Its oldest age is that of the tenants on it; its limit is its share of the cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Volume {
    pub(super) pid: u32,
    /// The volume's name in a daemon.
    pub(super) name: Option<String>,
    pub(super) source: PathBuf,
    pub(super) mountpoint: PathBuf,
    pub(super) phase: Phase,
    pub(super) failing: Option<String>,
    /// The part of this process in an object volume, and the process that has taken the volume over.
    pub(super) role: Option<ObjectRole>,
    pub(super) fenced_by: Option<String>,
    pub(super) cache_bytes: u64,
    #[serde(flatten)]
    pub(super) figures: Figures,
    pub(super) open_files: u64,
    /// Completed writes whose writers are paused now.
    pub(super) paused_writes: u64,
    /// Writes that wait for free frames now.
    pub(super) parked_writes: u64,
    /// Time until an unmount in progress has written everything back, at the recent rate.
    pub(super) eta_ms: Option<u64>,
    /// The recent rate, in bytes per second.
    #[serde(skip)]
    pub(super) recent: Option<f64>,
    pub(super) tenants: Vec<Tenant>,
    pub(super) more_tenants: u64,
}

impl Volume {
    /// Whether another process has taken the volume over.
    pub(super) fn is_fenced(&self) -> bool {
        self.role == Some(ObjectRole::Fenced)
    }
}

/// Whether a volume in this phase is being unmounted, or is unmounted and still flushing.
pub(super) fn is_going(phase: Phase) -> bool {
    matches!(phase, Phase::Unmounting | Phase::Flushing)
}

/// A process of which only the registry entry is known.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) source: PathBuf,
    pub(super) mountpoint: PathBuf,
    pub(super) arena: PathBuf,
}

impl From<Entry> for Process {
    fn from(entry: Entry) -> Self {
        Self {
            pid: entry.pid,
            source: entry.source.name().to_path_buf(),
            mountpoint: entry.mountpoint,
            arena: entry.arena,
        }
    }
}

/// Everything in one sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Snapshot {
    pub(super) volumes: Vec<Volume>,
    /// Processes that are alive and do not answer.
    pub(super) silent: Vec<Process>,
    /// Processes that died and left unwritten data in their arenas.
    pub(super) dead: Vec<Process>,
}

impl Snapshot {
    /// Removes all volumes but those with most unwritten data, and the same with the tenants on each. Returns the number
    /// of removed volumes.
    pub(crate) fn keep_fullest(&mut self, volumes_max: usize, tenants_max: usize) -> usize {
        let removed = self.volumes.len().saturating_sub(volumes_max);
        if removed > 0 {
            self.volumes.sort_by_key(|volume| Reverse(volume.figures.held_bytes));
            self.volumes.truncate(volumes_max);
        }
        for volume in &mut self.volumes {
            // They are sorted.
            let beyond = volume.tenants.len().saturating_sub(tenants_max);
            volume.tenants.truncate(tenants_max);
            volume.more_tenants += beyond as u64;
        }
        removed
    }

    /// The tenants, each once, on however many volumes of its process it is.
    pub(super) fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        let mut seen = HashSet::new();
        let all = self.volumes.iter().flat_map(|volume| volume.tenants.iter().map(|tenant| (volume.pid, tenant)));
        all.filter(move |(pid, tenant)| tenant.is_here && seen.insert((*pid, tenant.id))).map(|(_, tenant)| tenant)
    }
}

type VolumeKey = (u32, PathBuf);

fn key(status: &Status) -> VolumeKey {
    (status.pid, status.mountpoint.clone())
}

/// The sequence of samples.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    before: HashMap<VolumeKey, Answer>,
    /// The rates of unmounts in progress, from when they were first seen.
    going: HashMap<VolumeKey, Rate>,
}

impl Watch {
    /// Computes a snapshot from this sample and the earlier ones.
    pub(crate) fn add(&mut self, look: Survey) -> Snapshot {
        let (mut before, mut going) = (HashMap::new(), HashMap::new());
        let mut volumes = Vec::new();
        let mut volumes_of = HashMap::<u32, usize>::new();
        look.answers.iter().for_each(|answer| *volumes_of.entry(answer.status.pid).or_default() += 1);
        // Totals of a tenant over its process are shown on each volume where it is.
        let everywhere: HashMap<(u32, u64), protocol::Tenant> = self
            .before
            .values()
            .flat_map(|answer| answer.status.tenants.iter().map(|it| ((answer.status.pid, it.id), it.clone())))
            .collect();
        for answer in look.answers {
            let key = key(&answer.status);
            let mut rate = self.going.remove(&key).unwrap_or_default();
            rate.add(answer.at, answer.status.written_bytes);
            let is_alone = volumes_of[&answer.status.pid] == 1;
            let earlier = |tenant| everywhere.get(&(answer.status.pid, tenant));
            volumes.push(volume(self.before.get(&key), &answer, earlier, rate.per_second(), is_alone));
            if is_going(answer.status.phase) {
                going.insert(key.clone(), rate);
            }
            before.insert(key, answer);
        }
        (self.before, self.going) = (before, going);
        let processes = |entries: Vec<Entry>| entries.into_iter().map(Process::from).collect();
        Snapshot { volumes, silent: processes(look.silent), dead: processes(look.dead) }
    }
}

/// `everywhere` has the earlier figures of each tenant of the process, on any volume. `is_alone` is true for the only
/// volume of its process.
fn volume<'a>(
    before: Option<&Answer>,
    now: &Answer,
    everywhere: impl Fn(u64) -> Option<&'a protocol::Tenant>,
    recent: Option<f64>,
    is_alone: bool,
) -> Volume {
    let status = &now.status;
    let earlier: HashMap<u64, u64> =
        before.iter().flat_map(|before| &before.status.tenants).map(|it| (it.id, it.written_bytes)).collect();
    let time = before.map_or(Duration::ZERO, |before| now.at - before.at);
    let of_tenant = |now: &protocol::Tenant| {
        // A tenant that was not listed for a volume had written nothing there.
        let written = earlier.get(&now.id).copied().or(before.map(|_| 0));
        let written_per_s = written.and_then(|before| per_second(before, now.written_bytes, time));
        let everywhere = everywhere(now.id);
        let paused_per_s = everywhere.and_then(|before| per_second(before.paused_ms, now.paused_ms, time));
        let found = everywhere.and_then(|before| found([before.hits, before.misses], [now.hits, now.misses]));
        tenant(now, [written_per_s, paused_per_s], found, is_alone)
    };
    let tenants: Vec<_> = status.tenants.iter().map(of_tenant).collect();
    let here = tenants.iter().filter(|tenant| tenant.is_here).map(|tenant| &tenant.figures);
    let rate = |of: fn(&Status) -> u64| before.and_then(|before| per_second(of(&before.status), of(status), time));
    let reads = |status: &Status| [status.reads.hits, status.reads.misses];
    let left = if is_going(status.phase) { time_left(status.bytes_left, recent) } else { None };
    Volume {
        pid: status.pid,
        name: status.name.clone(),
        source: status.source.clone(),
        mountpoint: status.mountpoint.clone(),
        phase: status.phase,
        failing: status.failing.clone(),
        role: status.object.as_ref().map(|object| object.role),
        fenced_by: status.object.as_ref().and_then(|object| object.fenced_by.clone()),
        cache_bytes: status.cache_bytes,
        figures: Figures {
            held_bytes: status.bytes_left,
            limit_bytes: Some(status.share_bytes.unwrap_or(status.cache_bytes)),
            dirty_bytes: status.dirty_bytes,
            writeback_bytes: status.writeback_bytes,
            unstable_bytes: status.unstable_bytes,
            written_bytes_per_s: rate(|status| status.written_bytes),
            paused_ms_per_s: rate(|status| status.writers.paused_ms),
            found: before.and_then(|before| found(reads(&before.status), reads(status))),
            oldest_ms: here.filter_map(|figures| figures.oldest_ms).max(),
        },
        open_files: status.open_files,
        paused_writes: status.writers.paused,
        parked_writes: status.writers.parked,
        eta_ms: left.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        recent,
        more_tenants: status.more_tenants,
        tenants,
    }
}

fn tenant(
    now: &protocol::Tenant,
    [written_bytes_per_s, paused_ms_per_s]: [Option<u64>; 2],
    found: Option<Found>,
    is_alone: bool,
) -> Tenant {
    let of_files = [now.dirty_bytes, now.writeback_bytes, now.unstable_bytes, now.written_bytes];
    Tenant {
        id: now.id,
        name: now.name.clone(),
        label: now.label(),
        parent: now.parent,
        container: now.container.clone(),
        state: now.state,
        wants_room: now.wants_room,
        is_here: of_files.iter().any(|bytes| *bytes > 0)
            || is_alone && [now.charged_bytes, now.hits, now.misses].iter().any(|figure| *figure > 0),
        figures: Figures {
            held_bytes: now.held_bytes(),
            limit_bytes: now.limit_bytes,
            dirty_bytes: now.dirty_bytes,
            writeback_bytes: now.writeback_bytes,
            unstable_bytes: now.unstable_bytes,
            written_bytes_per_s,
            paused_ms_per_s,
            found,
            oldest_ms: now.oldest_ms,
        },
    }
}

/// Growth of hits and misses. `None` if the counts were restarted.
fn found([hits_before, misses_before]: [u64; 2], [hits, misses]: [u64; 2]) -> Option<Found> {
    Some(Found { hits: hits.checked_sub(hits_before)?, misses: misses.checked_sub(misses_before)? })
}

/// Growth of a count per second. `None` if it was restarted.
fn per_second(before: u64, now: u64, time: Duration) -> Option<u64> {
    let grown = now.checked_sub(before)?;
    (time > Duration::ZERO).then(|| (grown as f64 / time.as_secs_f64()).round() as u64)
}

/// The sum of the known values; `None` if there is none.
pub(super) fn sum(figures: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    figures.flatten().reduce(u64::saturating_add)
}

/// The sum of all values.
pub(super) fn total(figures: impl IntoIterator<Item = u64>) -> u64 {
    figures.into_iter().fold(0, u64::saturating_add)
}
#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::commands::top::tests::{look, status, tenant};

    fn statuses(written: u64, paused: u64) -> Vec<Status> {
        let mut status = status(1, "/a", vec![tenant(0, "root", 0, None), tenant(7, "uid:7", 3, Some(4))]);
        status.written_bytes = written;
        (status.tenants[1].written_bytes, status.tenants[1].paused_ms) = (written / 2, paused);
        status.writers.paused_ms = paused;
        vec![status]
    }

    #[test]
    fn rates_are_differences_of_two_samples() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let first = watch.add(look(start, statuses(1000, 100)));
        assert_eq!(first.volumes[0].figures.written_bytes_per_s, None);
        assert_eq!(first.volumes[0].figures.paused_ms_per_s, None);
        let second = watch.add(look(start + Duration::from_secs(2), statuses(5000, 700)));
        let volume = &second.volumes[0];
        assert_eq!((volume.figures.written_bytes_per_s, volume.figures.paused_ms_per_s), (Some(2000), Some(300)));
        assert_eq!(volume.tenants[1].figures.written_bytes_per_s, Some(1000));
        assert_eq!(
            (volume.figures.limit_bytes, volume.tenants[1].figures.limit_bytes),
            (Some(64 << 20), Some(4 << 20))
        );
    }

    #[test]
    fn hit_rates_cover_one_interval_and_are_rounded_down() {
        let reads = |hits, misses| {
            let mut statuses = statuses(0, 0);
            (statuses[0].reads.hits, statuses[0].reads.misses) = (hits, misses);
            (statuses[0].tenants[1].hits, statuses[0].tenants[1].misses) = (2 * hits, misses);
            statuses
        };
        let (mut watch, start) = (Watch::default(), Instant::now());
        let mut add = |seconds, hits, misses| {
            let snapshot = watch.add(look(start + Duration::from_secs(seconds), reads(hits, misses)));
            let volume = &snapshot.volumes[0];
            let json = serde_json::to_value(volume).unwrap();
            let percents = [&volume.figures, &volume.tenants[1].figures].map(|it| it.found.and_then(Found::percent));
            assert_eq!(json["hit_percent"], serde_json::to_value(percents[0]).unwrap());
            percents
        };
        assert_eq!(add(0, 100, 100), [None, None], "the first sample");
        assert_eq!(add(1, 100, 100), [None, None], "nothing was read");
        assert_eq!(add(2, 199, 101), [Some(99.0), Some(99.4)]);
        assert_eq!(add(3, 100_199, 102), [Some(99.9), Some(99.9)]);
        assert_eq!(add(4, 100_200, 102), [Some(100.0), Some(100.0)]);
        assert_eq!(add(5, 100_200, 103), [Some(0.0), Some(0.0)]);
        assert_eq!(add(6, 5, 0), [None, None], "it was restarted");
    }

    #[test]
    fn new_and_restarted_volumes_have_no_rates() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        watch.add(look(start, statuses(1000, 100)));
        let mut statuses = statuses(10, 200);
        statuses[0].tenants[1].id = 8;
        statuses.push(status(2, "/b", Vec::new()));
        let second = watch.add(look(start + Duration::from_secs(1), statuses));
        assert_eq!(second.volumes[0].figures.written_bytes_per_s, None, "it had written more before");
        assert_eq!(second.volumes[0].tenants[1].figures.paused_ms_per_s, None, "another tenant");
        assert_eq!(second.volumes[1].figures.written_bytes_per_s, None, "new");
        assert_eq!(per_second(1, 2, Duration::ZERO), None);
        // It was missing in one sample, and older samples are forgotten.
        watch.add(Survey::default());
        let back = watch.add(look(start + Duration::from_secs(3), self::statuses(1 << 20, 200)));
        assert_eq!(back.volumes[0].figures.written_bytes_per_s, None);
    }

    #[test]
    fn an_unmount_ends_when_the_rest_is_written_at_the_recent_rate() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let going = |seconds, left| {
            let mut statuses = statuses(seconds * 1000, 0);
            (statuses[0].phase, statuses[0].bytes_left) = (Phase::Unmounting, left);
            look(start + Duration::from_secs(seconds), statuses)
        };
        let mut mounted = going(1, 9000);
        mounted.answers[0].status.phase = Phase::Mounted;
        mounted.answers[0].status.written_bytes = 0;
        assert_eq!(watch.add(mounted.clone()).volumes[0].eta_ms, None);
        assert_eq!(watch.add(going(2, 9000)).volumes[0].eta_ms, None, "earlier rates are not used");
        assert_eq!(watch.add(going(3, 8000)).volumes[0].eta_ms, Some(8000));
        mounted.answers[0].at += Duration::from_secs(3);
        assert_eq!(watch.add(mounted).volumes[0].eta_ms, None);
    }

    /// A process with two volumes, as a daemon has.
    #[test]
    fn a_tenant_is_on_the_volumes_that_it_writes_to_and_counts_once() {
        let volume = |name, dirty, paused_ms| {
            let mut hog = tenant(7, "/c/hog", dirty, Some(4));
            (hog.charged_bytes, hog.paused_ms, hog.wants_room) = (4 << 20, 10 * paused_ms, true);
            let mut status = status(1, name, vec![hog, tenant(0, "root", 1, None)]);
            status.writers.paused_ms = paused_ms;
            status
        };
        let (mut watch, start) = (Watch::default(), Instant::now());
        watch.add(look(start, vec![volume("/a", 4, 0), volume("/b", 0, 0)]));
        let at = start + Duration::from_secs(1);
        let snapshot = watch.add(look(at, vec![volume("/a", 4, 900), volume("/b", 0, 3)]));
        let here = |volume: &Volume| volume.tenants.iter().filter(|it| it.is_here).map(|it| it.id).collect::<Vec<_>>();
        assert_eq!(snapshot.volumes.iter().map(here).collect::<Vec<_>>(), [vec![7, 0], vec![0]]);
        let paused: Vec<_> = snapshot.volumes.iter().map(|volume| volume.figures.paused_ms_per_s).collect();
        assert_eq!(paused, [Some(900), Some(3)], "of the volume, whatever its tenants do elsewhere");
        assert_eq!(snapshot.tenants().map(|it| it.id).collect::<Vec<_>>(), [7, 0]);
        // With one volume, the volume is charged for everything.
        let alone = Watch::default().add(look(start, vec![volume("/b", 0, 0)]));
        assert_eq!(here(&alone.volumes[0]), [7, 0]);
    }

    /// Status messages as a daemon sends them.
    #[test]
    fn a_tenant_that_comes_to_a_volume_keeps_its_rates() {
        let hog = |written, paused_ms| {
            let mut hog = tenant(7, "/c/hog", 4, None);
            (hog.written_bytes, hog.paused_ms) = (written, paused_ms);
            hog
        };
        let (mut watch, start) = (Watch::default(), Instant::now());
        watch.add(look(start, vec![status(1, "/a", Vec::new()), status(1, "/b", vec![hog(100, 50)])]));
        let now = vec![status(1, "/a", vec![hog(30, 650)]), status(1, "/b", vec![hog(300, 650)])];
        let snapshot = watch.add(look(start + Duration::from_secs(1), now));
        let figures: Vec<_> = snapshot.volumes.iter().map(|volume| volume.tenants[0].figures.clone()).collect();
        assert_eq!(figures.iter().map(|it| it.written_bytes_per_s).collect::<Vec<_>>(), [Some(30), Some(200)]);
        assert_eq!(figures.iter().map(|it| it.paused_ms_per_s).collect::<Vec<_>>(), [Some(600), Some(600)]);
    }

    #[test]
    fn an_older_mount_process_is_measured_by_its_cache() {
        let mut old = status(1, "/a", Vec::new());
        old.share_bytes = None;
        let snapshot = Watch::default().add(look(Instant::now(), vec![old]));
        assert_eq!(snapshot.volumes[0].figures.limit_bytes, Some(256 << 20));
    }
}

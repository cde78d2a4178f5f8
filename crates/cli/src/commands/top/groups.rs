//! The rows of the table: groups of lines, in the requested order.
//!
//! A group is a volume with its tenants, a tenant with its volumes, or a process of which nothing more is known. The
//! last kind comes first, because it needs attention.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use slackwater_control::protocol::{Phase, TenantState};
use slackwater_host::Printable as _;

use crate::progress::description;

use super::cells::bytes;
use super::rates::{Figures, Found, Process, Snapshot, Tenant, Volume, is_going, sum, total};

/// How rows are grouped.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) enum View {
    /// Volumes, each with its tenants.
    #[default]
    Both,
    Volumes,
    /// Tenants by name, each with its volumes.
    Tenants,
}

impl View {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Both => Self::Volumes,
            Self::Volumes => Self::Tenants,
            Self::Tenants => Self::Both,
        }
    }
}

/// Sort keys: descending by figure, or ascending by name.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) enum SortBy {
    #[default]
    Dirty,
    Rate,
    Paused,
    Age,
    Name,
}

#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Order {
    pub(super) by: SortBy,
    pub(super) is_reversed: bool,
}

/// A line of figures. The name is escaped and safe to print.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) state: &'static str,
    /// Whether something needs attention, or a writer is blocked.
    pub(super) is_wrong: bool,
    /// The figures; `None` for a process that does not answer.
    pub(super) figures: Option<Figures>,
    pub(super) open_files: Option<u64>,
    /// The details that do not fit into columns.
    pub(super) detail: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Group {
    /// The identifier, unique and the same from sample to sample.
    pub(super) id: String,
    pub(super) head: Line,
    /// Sentences below the head: progress of an unmount, why write-back fails.
    pub(super) notes: Vec<String>,
    /// The members, with their identifiers.
    pub(super) members: Vec<(String, Line)>,
}

/// The groups of a view, and the members of each, in the same order.
pub(super) fn groups(snapshot: &Snapshot, view: View, order: Order) -> Vec<Group> {
    let mut groups = match view {
        View::Both => snapshot.volumes.iter().map(|volume| of_volume(volume, true)).collect(),
        View::Volumes => snapshot.volumes.iter().map(|volume| of_volume(volume, false)).collect(),
        View::Tenants => of_tenants(&snapshot.volumes),
    };
    sort(&mut groups, order, |group| &group.head);
    groups.iter_mut().for_each(|group| sort(&mut group.members, order, |(_, line)| line));
    snapshot.dead.iter().map(dead).chain(snapshot.silent.iter().map(silent)).chain(groups).collect()
}

/// Ties are sorted by name, so that rows keep their places from sample to sample.
fn sort<T>(lines: &mut [T], order: Order, line: fn(&T) -> &Line) {
    let most = |it: &T| {
        let figures = line(it).figures.as_ref();
        Reverse(match order.by {
            SortBy::Dirty => figures.map(|figures| figures.dirty_bytes),
            SortBy::Rate => figures.and_then(|figures| figures.written_bytes_per_s),
            SortBy::Paused => figures.and_then(|figures| figures.paused_ms_per_s),
            SortBy::Age => figures.and_then(|figures| figures.oldest_ms),
            SortBy::Name => None,
        })
    };
    lines.sort_by_cached_key(|it| (most(it), line(it).name.clone()));
    if order.is_reversed {
        lines.reverse();
    }
}

/// `1 volume`, `2 volumes`.
pub(super) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn of_volume(volume: &Volume, has_members: bool) -> Group {
    let mut notes = Vec::new();
    if is_going(volume.phase) {
        notes.push(format!("unmount: {}", description(volume.figures.held_bytes, volume.recent)));
    }
    if volume.is_fenced() {
        let by = volume.fenced_by.as_deref().unwrap_or("another process");
        notes.push(format!("! FENCED: {} took this volume over; nothing more can be written", by.printable()));
    } else if let Some(error) = &volume.failing {
        notes.push(format!(
            "! WRITE-BACK FAILS: {}; the data is kept and retried",
            error.replace(char::is_control, " ")
        ));
    }
    if has_members && volume.more_tenants > 0 {
        notes.push(format!("{} with less unwritten data", counted(volume.more_tenants, "more tenant")));
    }
    let here = || volume.tenants.iter().filter(|tenant| tenant.is_here);
    // The root alone shows no more than the volume does.
    let has_members = has_members && here().any(|tenant| tenant.id != 0);
    Group {
        id: id_of(volume),
        head: line_of_volume(volume),
        notes,
        members: here()
            .filter(|_| has_members)
            .map(|tenant| (tenant.id.to_string(), line_of_tenant(tenant, volume)))
            .collect(),
    }
}

fn id_of(volume: &Volume) -> String {
    format!("{} {}", volume.pid, volume.mountpoint.printable())
}

fn mountpoint_of(volume: &Volume) -> String {
    volume.mountpoint.printable().to_string()
}

/// The displayed name: the name in a daemon, otherwise the mount point.
fn name_of(volume: &Volume) -> String {
    volume.name.as_ref().map_or_else(|| mountpoint_of(volume), |name| name.printable().to_string())
}

fn line_of_volume(volume: &Volume) -> Line {
    let state = match volume.phase {
        _ if volume.is_fenced() => "FENCED",
        _ if volume.failing.is_some() => "FAILING",
        Phase::Starting => "starting",
        Phase::Mounted => "mounted",
        Phase::Unmounting => "unmounting",
        Phase::Elsewhere => "elsewhere",
        Phase::Flushing => "flushing",
    };
    let source = volume.source.printable().to_string();
    Line {
        name: name_of(volume),
        state,
        is_wrong: volume.is_fenced() || volume.failing.is_some(),
        figures: Some(volume.figures.clone()),
        open_files: Some(volume.open_files),
        detail: format!(
            "{source} at {}, pid {}, cache {}",
            mountpoint_of(volume),
            volume.pid,
            bytes(volume.cache_bytes)
        ),
    }
}

fn line_of_tenant(tenant: &Tenant, volume: &Volume) -> Line {
    let state = match tenant.state {
        _ if tenant.wants_room => "at limit",
        TenantState::Online => "",
        TenantState::Dying => "dying",
        TenantState::Offline => "removed",
    };
    let parent = tenant.parent.and_then(|id| volume.tenants.iter().find(|tenant| tenant.id == id));
    let within = parent.map_or_else(String::new, |parent| format!(" within {}", parent.label));
    Line {
        state,
        is_wrong: tenant.wants_room,
        figures: Some(tenant.figures.clone()),
        open_files: None,
        detail: format!("{}{within} on {}, pid {}", tenant.name.printable(), name_of(volume), volume.pid),
        name: tenant.label.clone(),
    }
}

fn lost(process: &Process, state: &'static str, note: &str) -> Group {
    let [name, source] = [&process.mountpoint, &process.source].map(|path| path.printable().to_string());
    let detail = format!("{source} at {name}, pid {}", process.pid);
    let head = Line { name, state, is_wrong: true, detail, ..Line::default() };
    let id = format!("{} {}", process.pid, process.mountpoint.printable());
    Group { id, head, notes: vec![note.to_owned()], members: Vec::new() }
}

fn dead(process: &Process) -> Group {
    let [arena, source] = [&process.arena, &process.source].map(|path| path.printable().to_string());
    lost(process, "died", &format!("unwritten data is in {arena}: mount {source} again"))
}

fn silent(process: &Process) -> Group {
    lost(process, "no answer", "it may be stopped; kill -CONT continues it")
}

/// Tenants with the same name, on all volumes.
fn of_tenants(volumes: &[Volume]) -> Vec<Group> {
    let mut by_name = BTreeMap::<&str, Vec<(&Volume, &Tenant)>>::new();
    for volume in volumes {
        for tenant in volume.tenants.iter().filter(|tenant| tenant.is_here) {
            by_name.entry(&tenant.name).or_default().push((volume, tenant));
        }
    }
    by_name.into_iter().map(|(name, parts)| of_tenant(name, &parts)).collect()
}

fn of_tenant(name: &str, parts: &[(&Volume, &Tenant)]) -> Group {
    let all = || parts.iter().map(|(_, tenant)| &tenant.figures);
    // The figures of a tenant are per process and repeat at each of its volumes.
    let mut seen = HashSet::new();
    let once: Vec<_> = parts
        .iter()
        .filter(|(volume, tenant)| seen.insert((volume.pid, tenant.id)))
        .map(|(_, tenant)| &tenant.figures)
        .collect();
    let wants_room = parts.iter().any(|(_, tenant)| tenant.wants_room);
    let limits: Option<Vec<u64>> = once.iter().map(|figures| figures.limit_bytes).collect();
    let [dirty_bytes, writeback_bytes, unstable_bytes] = [
        total(all().map(|figures| figures.dirty_bytes)),
        total(all().map(|figures| figures.writeback_bytes)),
        total(all().map(|figures| figures.unstable_bytes)),
    ];
    let figures = Figures {
        // The root holds what is in its files, on each volume.
        held_bytes: total(once.iter().map(|figures| figures.held_bytes)).max(total([
            dirty_bytes,
            writeback_bytes,
            unstable_bytes,
        ])),
        limit_bytes: limits.map(total),
        dirty_bytes,
        writeback_bytes,
        unstable_bytes,
        written_bytes_per_s: sum(all().map(|figures| figures.written_bytes_per_s)),
        paused_ms_per_s: sum(once.iter().map(|figures| figures.paused_ms_per_s)),
        found: once.iter().filter_map(|figures| figures.found).reduce(Found::plus),
        oldest_ms: all().filter_map(|figures| figures.oldest_ms).max(),
    };
    let head = Line {
        name: parts.first().map_or_else(String::new, |(_, tenant)| tenant.label.clone()),
        state: if wants_room { "at limit" } else { "" },
        is_wrong: wants_room,
        figures: Some(figures),
        open_files: None,
        detail: format!("{} on {}", name.printable(), counted(parts.len() as u64, "volume")),
    };
    let member = |(volume, tenant): &(&Volume, &Tenant)| {
        (id_of(volume), Line { name: name_of(volume), ..line_of_tenant(tenant, volume) })
    };
    Group { id: name.to_owned(), head, notes: Vec::new(), members: parts.iter().map(member).collect() }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::commands::top::rates::Watch;
    use crate::commands::top::tests::{look, status, tenant};
    use slackwater_control::protocol::{ObjectRole, ObjectStatus};

    fn names(groups: &[Group]) -> Vec<&str> {
        groups.iter().map(|group| group.head.name.as_str()).collect()
    }

    #[test]
    fn rows_are_sorted_by_figure_then_by_name() {
        let [a, b, c] = [("/a", 3, 10, 0), ("/b", 7, 5, 900), ("/c", 7, 10, 30)].map(|(name, dirty, rate, paused)| {
            move |seconds: u64| {
                let mut tenant = tenant(0, "root", dirty, None);
                tenant.oldest_ms = (name == "/a").then_some(1);
                let mut status = status(1, name, vec![tenant]);
                (status.written_bytes, status.writers.paused_ms) = (rate * seconds, paused * seconds);
                status
            }
        });
        let (mut watch, start) = (Watch::default(), Instant::now());
        watch.add(look(start, vec![a(1), b(1), c(1)]));
        let snapshot = watch.add(look(start + Duration::from_secs(1), vec![c(2), b(2), a(2)]));
        for (by, expected) in [
            (SortBy::Dirty, ["/b", "/c", "/a"]),
            (SortBy::Rate, ["/a", "/c", "/b"]),
            (SortBy::Paused, ["/b", "/c", "/a"]),
            (SortBy::Age, ["/a", "/b", "/c"]),
            (SortBy::Name, ["/a", "/b", "/c"]),
        ] {
            let sorted = groups(&snapshot, View::Volumes, Order { by, is_reversed: false });
            assert_eq!(names(&sorted), expected, "{by:?}");
            let reversed = groups(&snapshot, View::Volumes, Order { by, is_reversed: true });
            assert!(names(&sorted).into_iter().eq(names(&reversed).into_iter().rev()), "{by:?}");
        }
    }

    /// A process with two volumes, as a daemon has, and another one.
    #[test]
    fn totals_of_a_tenant_count_once_per_process() {
        let shared = |dirty, reads| {
            let mut tenant = tenant(7, "/c/one", dirty, Some(64));
            tenant.charged_bytes = 30 << 20;
            (tenant.hits, tenant.misses) = (reads, reads / 3);
            tenant
        };
        let volumes = |reads| {
            let mut web = status(1, "/a", vec![shared(10, reads), tenant(0, "root", 1, None)]);
            web.name = Some("web".to_owned());
            vec![
                web,
                status(1, "/b", vec![shared(20, reads), tenant(0, "root", 2, None)]),
                status(2, "/c", vec![tenant(9, "/c/one", 5, Some(16))]),
            ]
        };
        let (mut watch, start) = (Watch::default(), Instant::now());
        watch.add(look(start, volumes(0)));
        let snapshot = watch.add(look(start + Duration::from_secs(1), volumes(9)));
        let groups = groups(&snapshot, View::Tenants, Order::default());
        assert_eq!(names(&groups), ["/c/one", "root"]);
        let figures = groups[0].head.figures.clone().unwrap();
        assert_eq!((figures.held_bytes >> 20, figures.limit_bytes.unwrap() >> 20), (35, 80));
        assert_eq!(figures.dirty_bytes >> 20, 35);
        assert_eq!(figures.found, Some(Found { hits: 9, misses: 3 }));
        let of_root = groups[1].head.figures.clone().unwrap();
        assert_eq!((of_root.held_bytes >> 20, of_root.limit_bytes), (3, None));
        let members: Vec<_> = groups[0].members.iter().map(|(_, line)| line.name.as_str()).collect();
        assert_eq!(members, ["/b", "web", "/c"], "by its name in a daemon");
    }

    #[test]
    fn notable_states_are_shown() {
        let mut failing = status(1, "/a", vec![tenant(0, "root", 1, None)]);
        (failing.failing, failing.phase, failing.more_tenants) = (Some("no space".to_owned()), Phase::Flushing, 3);
        let mut full = tenant(2, "uid:2", 4, Some(4));
        full.wants_room = true;
        let mut gone = tenant(3, "uid:3", 1, None);
        gone.state = TenantState::Offline;
        let other = status(2, "/b", vec![full, gone]);
        let mut fenced = status(5, "/c", Vec::new());
        let fenced_by = Some("pid 7 on b\u{1b}".to_owned());
        (fenced.failing, fenced.object) = (
            Some("stale".to_owned()),
            Some(ObjectStatus { role: ObjectRole::Fenced, fenced_by, ..ObjectStatus::sample() }),
        );
        let mut snapshot = Watch::default().add(look(Instant::now(), vec![failing, other, fenced]));
        let lost = Process { pid: 3, source: "/s".into(), mountpoint: "/m".into(), arena: "/dev/shm/x y".into() };
        (snapshot.silent, snapshot.dead) = (vec![lost.clone()], vec![Process { pid: 4, ..lost }]);
        let groups = groups(&snapshot, View::Both, Order { by: SortBy::Name, is_reversed: false });
        let states: Vec<_> = groups.iter().map(|group| (group.head.state, group.head.is_wrong)).collect();
        assert_eq!(
            states,
            [("died", true), ("no answer", true), ("FAILING", true), ("mounted", false), ("FENCED", true)]
        );
        assert!(groups[0].notes[0].contains("/dev/shm/x y: mount /s again"), "{:?}", groups[0]);
        let [unmount, fails, more] = &groups[2].notes[..] else { panic!("{:?}", groups[2].notes) };
        assert!(unmount.starts_with("unmount: 1.0 MiB left") && fails.starts_with("! WRITE-BACK FAILS: no space"));
        assert!(more.starts_with("3 more tenants with less"));
        assert!(groups[2].members.is_empty(), "one that has everything");
        let [fenced] = &groups[4].notes[..] else { panic!("{:?}", groups[4].notes) };
        assert_eq!(fenced, "! FENCED: pid 7 on b\\u{1b} took this volume over; nothing more can be written");
        let members: Vec<_> = groups[3].members.iter().map(|(_, line)| (line.state, line.is_wrong)).collect();
        assert_eq!(members, [("at limit", true), ("removed", false)]);
    }
}

//! Values, names chosen by others, and the series for the rest.

use std::time::Duration;

use slackwater::PAGE_BYTES;
use slackwater_control::protocol::{
    Container, Dontcache, KeptStatus, ObjectRole, ObjectStatus, Phase, Reads, Status, Switches, Tenant, Writers,
};

use super::{container, nested, of_tenants, render, snapshot};
use crate::metrics::Snapshot;
use crate::metrics::bounds::{OTHER, TENANTS_MAX, VOLUMES_MAX};
use crate::metrics::render::Renderer;

/// A tenant that holds `held_bytes` and has written `written_bytes`.
fn tenant(id: u64, name: &str, held_bytes: u64, written_bytes: u64) -> Tenant {
    Tenant {
        charged_bytes: held_bytes,
        dirty_bytes: held_bytes,
        written_bytes,
        paused_ms: 10 * written_bytes,
        ..Tenant::sample(id, name)
    }
}

#[test]
fn each_figure_is_the_value_of_its_own_metric() {
    let status = Status {
        phase: Phase::Unmounting,
        dirty_bytes: 1,
        writeback_bytes: 2,
        unstable_bytes: 3,
        share_bytes: Some(4),
        oldest_ms: Some(5500),
        written_bytes: 6,
        failures: 7,
        failing: Some("no space".to_owned()),
        writers: Writers { paused_ms: 8250, paused: 9, parked: 10, parked_bytes: 11, refused_mapped_bytes: 50 },
        reads: Reads { hits: 12, misses: 13, filled_bytes: 14 },
        dontcache: Dontcache { dirty_bytes: 15, kicks: 16, passes: 17 },
        switches: Switches { done: 18, in_flight: 19 },
        open_files: 20,
        inodes: 21,
        tenants: vec![Tenant {
            limit_bytes: Some(22),
            charged_bytes: 23,
            dirty_bytes: 24,
            writeback_bytes: 25,
            unstable_bytes: 26,
            written_bytes: 27,
            oldest_ms: Some(28_000),
            paused_ms: 29_000,
            cached_bytes: 30,
            hits: 31,
            misses: 32,
            wants_room: true,
            ..Tenant::sample(1, "/a")
        }],
        more_tenants: 31,
        object: Some(ObjectStatus {
            role: ObjectRole::Fenced,
            fenced_by: None,
            uncommitted_changes: 41,
            uncommitted_ms: Some(42_000),
            last_commit_ms: Some(43_000),
            commits: 44,
            uploads_in_flight: 45,
            sent_bytes: 46,
            received_bytes: 47,
            puts: 10,
            gets: 11,
            lists: 13,
            deletes: 14,
            failed_requests: 49,
        }),
        kept: Some(KeptStatus {
            takeovers: 33,
            last_pause_ms: Some(34_000),
            longest_pause_ms: Some(35_000),
            ..KeptStatus::default()
        }),
        ..Status::sample()
    };
    let tenants = status.tenants.clone();
    let snapshot = Snapshot { tenants, ..snapshot(vec![("/mnt".to_owned(), status)]) };
    let slow = || {
        std::thread::sleep(Duration::from_millis(2));
        Ok::<_, ()>(())
    };
    snapshot.unmounts.time(slow).unwrap();
    snapshot.unmounts.time(|| Err::<(), _>(())).unwrap_err();
    let page = render(&mut Renderer::default(), &snapshot);
    let volume = |name: &str| page.value(&format!("slackwater_volume_{name}"), &["/mnt"]);
    for (name, value) in [
        ("dirty_bytes", 1.0),
        ("writeback_bytes", 2.0),
        ("unstable_bytes", 3.0),
        ("share_bytes", 4.0),
        ("oldest_dirty_age_seconds", 5.5),
        ("written_bytes_total", 6.0),
        ("write_failures_total", 7.0),
        ("failing", 1.0),
        ("paused_seconds_total", 8.25),
        ("paused_writes", 9.0),
        ("parked_writes", 10.0),
        ("parked_bytes", 11.0),
        ("mapped_refused_bytes_total", 50.0),
        ("cache_hits_total", 12.0),
        ("cache_misses_total", 13.0),
        ("filled_bytes_total", 14.0),
        ("dontcache_dirty_bytes", 15.0),
        ("dontcache_kicks_total", 16.0),
        ("dontcache_passes_total", 17.0),
        ("switches_total", 18.0),
        ("switches_in_flight", 19.0),
        ("open_files", 20.0),
        ("inodes", 21.0),
        ("tenants", 32.0),
        ("starting", 0.0),
        ("mounted", 1.0),
        ("unmounting", 1.0),
        ("flushing", 0.0),
        ("takeovers_total", 33.0),
        ("takeover_last_pause_seconds", 34.0),
        ("takeover_longest_pause_seconds", 35.0),
    ] {
        assert_eq!(volume(name), value, "{name}");
    }
    let object = |name: &str| page.value(&format!("slackwater_object_{name}"), &["/mnt"]);
    let names =
        ["fenced", "uncommitted_changes", "uncommitted_age_seconds", "last_commit_age_seconds", "commits_total"];
    assert_eq!(names.map(object), [1.0, 41.0, 42.0, 43.0, 44.0]);
    let names = ["uploads_in_flight", "sent_bytes_total", "received_bytes_total", "requests_total"];
    assert_eq!(names.map(object), [45.0, 46.0, 47.0, 48.0]);
    assert_eq!(object("failed_requests_total"), 49.0);
    let on_volume = |name: &str| page.value(&format!("slackwater_volume_tenant_{name}"), &["/mnt", "/a"]);
    let names = ["dirty_bytes", "writeback_bytes", "unstable_bytes", "written_bytes_total", "oldest_dirty_age_seconds"];
    assert_eq!(names.map(on_volume), [24.0, 25.0, 26.0, 27.0, 28.0]);
    let tenant = |name: &str| page.value(&format!("slackwater_tenant_{name}"), &["/a"]);
    let names = ["limit_bytes", "charged_bytes", "paused_seconds_total", "cached_bytes", "at_limit"];
    assert_eq!(names.map(tenant), [22.0, 23.0, 29.0, 30.0, 1.0]);
    assert_eq!(["cache_hits_total", "cache_misses_total"].map(tenant), [31.0, 32.0]);
    let process = |name: &str| page.value(&format!("slackwater_{name}"), &[]);
    let names = ["memory_pressure_sources", "memory_pressure_events_total", "memory_pressure_freed_objects_total"];
    assert_eq!(names.map(process), [1.0, 3.0, 40.0]);
    let names = ["shrinkers", "shrinker_objects", "shrinker_deferred_scans", "unmount_failures_total"];
    assert_eq!(names.map(process), [2.0, 5.0, 8.0, 1.0]);
    assert_eq!((process("arena_bytes"), process("arena_clean_bytes")), (f64::from(16 << 20), 0.0));
    assert_eq!((process("arena_free_bytes") as u64 % PAGE_BYTES, process("engine_volumes")), (0, 1.0));
    assert_eq!(
        (process("unmount_seconds_count"), page.value("slackwater_unmount_seconds_bucket", &["+Inf"])),
        (1.0, 1.0)
    );
    assert_eq!(page.value("slackwater_unmount_seconds_bucket", &["0.001"]), 0.0);
    assert_eq!(page.value("slackwater_build_info", &[env!("CARGO_PKG_VERSION")]), 1.0);
}

#[test]
fn a_tenant_without_a_limit_has_no_series_of_one() {
    let page = render(&mut Renderer::default(), &of_tenants(vec![tenant(1, "/a", 1, 1)]));
    assert_eq!(
        (page.find("slackwater_tenant_limit_bytes", &["/a"]), page.count("slackwater_tenant_limit_bytes")),
        (None, 0)
    );
}

#[test]
fn hostile_names_are_labels_like_any_other() {
    let names =
        ["", "a b", "a\"b", "a\\", "x\ny", "\"} 1\nslackwater_tenant_charged_bytes{tenant=\"", "\u{202e}", "\u{0}"];
    let tenants = (0..).zip(names).map(|(id, name)| tenant(id, name, id, 1)).collect();
    let volumes = names.map(|name| (name.to_owned(), Status { dirty_bytes: 7, ..Status::sample() }));
    let page = render(&mut Renderer::default(), &of_tenants(tenants));
    for (id, name) in (0..).zip(names) {
        assert_eq!(page.value("slackwater_tenant_charged_bytes", &[name]), f64::from(id), "{name:?}");
        assert_eq!(page.value("slackwater_volume_tenant_dirty_bytes", &["/mnt", name]), f64::from(id), "{name:?}");
    }
    let page = render(&mut Renderer::default(), &snapshot(volumes.into()));
    assert!(names.iter().all(|name| page.value("slackwater_volume_dirty_bytes", &[name]) == 7.0));
}

#[test]
fn the_largest_have_their_own_series_and_the_rest_is_summed() {
    let tenants = || (0..3000).map(|id| tenant(id, &format!("/c/{id}"), 3000 - id, 2)).collect::<Vec<_>>();
    let page = render(&mut Renderer::default(), &of_tenants(tenants()));
    assert_eq!(page.count("slackwater_tenant_charged_bytes"), TENANTS_MAX + 1);
    assert_eq!(page.count("slackwater_volume_tenant_dirty_bytes"), TENANTS_MAX + 1);
    assert_eq!(page.value("slackwater_tenant_charged_bytes", &["/c/0"]), 3000.0);
    let rest = 3000 - TENANTS_MAX as u64;
    assert_eq!(page.value("slackwater_tenant_charged_bytes", &[OTHER]), (rest * (rest + 1) / 2) as f64);
    assert_eq!(page.value("slackwater_volume_tenant_written_bytes_total", &["/mnt", OTHER]), 2.0 * rest as f64);
    assert_eq!(page.value("slackwater_volume_tenants", &["/mnt"]), 3000.0);

    let volume = |number: usize| {
        let status = Status { bytes_left: number as u64, written_bytes: 1, ..Status::sample() };
        (format!("/mnt/{number}"), Status { oldest_ms: Some(1000), tenants: vec![tenant(0, "root", 0, 0)], ..status })
    };
    let page = render(&mut Renderer::default(), &snapshot((0..VOLUMES_MAX + 30).map(volume).collect()));
    assert_eq!(page.count("slackwater_volume_written_bytes_total"), VOLUMES_MAX + 1);
    assert_eq!(page.value("slackwater_volume_written_bytes_total", &[OTHER]), 30.0);
    assert_eq!(page.value("slackwater_volume_oldest_dirty_age_seconds", &[OTHER]), 1.0, "the largest");
    assert_eq!(page.count("slackwater_volume_tenant_dirty_bytes"), VOLUMES_MAX);
}

#[test]
fn an_item_named_other_is_part_of_the_rest() {
    let tenants = vec![tenant(1, OTHER, 9, 2), tenant(2, "/a", 1, 3)];
    let page = render(&mut Renderer::default(), &of_tenants(tenants));
    assert_eq!(page.value("slackwater_tenant_charged_bytes", &[OTHER]), 9.0);
    assert_eq!(page.value("slackwater_tenant_charged_bytes", &["/a"]), 1.0);
}

#[test]
fn a_tenant_has_one_series_and_one_on_each_of_its_volumes() {
    let status = |written| Status { tenants: vec![tenant(4, "/a", 5, written)], ..Status::sample() };
    let volumes = vec![("/x".to_owned(), status(6)), ("/y".to_owned(), status(7))];
    let tenants = vec![tenant(4, "/a", 5, 13), tenant(5, "/nowhere", 1, 0)];
    let page = render(&mut Renderer::default(), &Snapshot { tenants, ..snapshot(volumes) });
    assert_eq!(page.value("slackwater_tenant_charged_bytes", &["/a"]), 5.0);
    assert_eq!(page.value("slackwater_tenant_charged_bytes", &["/nowhere"]), 1.0);
    assert_eq!(page.value("slackwater_volume_tenant_written_bytes_total", &["/y", "/a"]), 7.0);
    assert_eq!(page.count("slackwater_volume_tenant_dirty_bytes"), 2);
}

#[test]
fn a_recreated_cgroup_continues_its_counters() {
    let mut renderer = Renderer::default();
    let mut written = |tenants| {
        render(&mut renderer, &of_tenants(tenants))
            .value("slackwater_volume_tenant_written_bytes_total", &["/mnt", "/a"])
    };
    assert_eq!(written(vec![tenant(1, "/a", 0, 100)]), 100.0);
    assert_eq!(written(vec![tenant(1, "/a", 0, 110), tenant(2, "/a", 0, 5)]), 115.0);
    assert_eq!(written(vec![tenant(2, "/a", 0, 7)]), 117.0);
}

/// M2, with tenants that come and go, and hold more and less than others.
#[test]
fn no_counter_goes_down_while_its_series_goes_on() {
    let mut renderer = Renderer::default();
    let mut state = 1_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut tenants, mut next): (Vec<Tenant>, u64) = (Vec::new(), 0);
    let (mut all_written, mut before) = (0, None);
    for _ in 0..200 {
        tenants.retain(|_| random(10) != 0);
        while tenants.len() < 2 * TENANTS_MAX {
            tenants.push(tenant(next, &format!("/c/{}", next % 150), 0, 0));
            next += 1;
        }
        for tenant in &mut tenants {
            let more = random(100);
            tenant.written_bytes += more;
            all_written += more;
            tenant.charged_bytes = random(1000);
        }
        let page = render(&mut renderer, &of_tenants(tenants.clone()));
        let others = page.value("slackwater_volume_tenant_written_bytes_total", &["/mnt", OTHER]);
        assert!(others <= all_written as f64);
        if let Some(before) = &before {
            let before: &super::Page = before;
            for ((sample, labels), value) in page.counters() {
                let labels: Vec<_> = labels.iter().map(|(_, value)| value.as_str()).collect();
                let earlier = before.find(sample, &labels).unwrap_or(0.0);
                assert!(value >= earlier, "{sample} of {labels:?}: {value} after {earlier}");
            }
        }
        before = Some(page);
    }
}

#[test]
fn containers_have_their_names_in_one_series_each_and_only_with_series_of_their_own() {
    let mut tenants = vec![tenant(0, "root", 9 << 20, 0), tenant(1, "/system.slice", 9 << 20, 0)];
    let names: Vec<_> = (0..2 * TENANTS_MAX).map(|number| format!("/kubepods/pod{number}")).collect();
    tenants.extend(names.iter().zip(2..).map(|(name, id)| Tenant { charged_bytes: 1 << 20, ..container(id, name) }));
    // The same cgroup once more: removed, and created again.
    tenants.push(Tenant { charged_bytes: 3 << 20, ..container(1000, &names[0]) });
    let page = render(&mut Renderer::default(), &of_tenants(tenants));
    let info = |name: &str| page.find("slackwater_tenant_info", &[name, "default", "web-0", "0a1b", "4f5e"]);
    let has_series = |name: &str| page.find("slackwater_tenant_charged_bytes", &[name]).is_some();
    assert_eq!(info(&names[0]), Some(1.0));
    for name in &names {
        assert_eq!(info(name).is_some(), has_series(name), "{name}");
    }
    assert!(has_series("root") && has_series("/system.slice"));
    assert_eq!(page.count("slackwater_tenant_info"), TENANTS_MAX - 2);
}

#[test]
fn a_tenant_has_the_name_of_the_one_above_it() {
    // The same cgroup before its pod had a limit; some of its data is left.
    let before = Tenant { charged_bytes: 9, ..container(0, "/a") };
    let page = render(&mut Renderer::default(), &of_tenants([vec![before], nested()].concat()));
    assert_eq!(page.value("slackwater_tenant_parent_info", &["/a", "/pods"]), 1.0);
    assert_eq!(page.count("slackwater_tenant_parent_info"), 1);
}

#[test]
fn a_container_without_names_has_empty_labels() {
    let tenant = Tenant {
        container: Container { pod_uid: Some("0a1b".to_owned()), ..Container::default() },
        ..container(1, "/a")
    };
    let page = render(&mut Renderer::default(), &of_tenants(vec![tenant]));
    assert_eq!(page.value("slackwater_tenant_info", &["/a", "", "", "0a1b", ""]), 1.0);
}

//! Tables, plots and targets from the records.

use hdrhistogram::Histogram;
use serde_json::json;

use super::axes::{INJECTED, LOOKERS, Setting, Subject, Way};
use super::{Records, STANDING, Seen};
use crate::harness::samples::{of_histogram, ratio};
use crate::harness::{Bound, Curve, Estimate, Report, Samples, Series, Source, Table, figure};

/// Lower bound: the kernel's time for a mount or an unmount, divided by ours.
const BY_KERNEL: f64 = 3.0;
/// Upper bound: memory of an idle volume.
const KIB_MAX: f64 = 16.0;
/// Upper bound: p99.9 of lookups while unmounts wait for normal grace periods.
const LOOKUP_US_MAX: f64 = 1000.0;
const _: () = assert!(LOOKUP_US_MAX * 10.0 <= INJECTED.as_micros() as f64);

/// Published figures of the kernel before and after its unmounts waited for expedited grace periods: seconds to mount 5000
/// tmpfs by one command each, and to unmount them by one command for all; sem. 12.2.
const PUBLISHED: [(&str, f64, f64); 3] = [
    ("4 CPUs, normal grace period", 8.0, 100.0),
    ("1 CPU, normal grace period", 18.0, 36.0),
    ("4 CPUs, expedited", 8.0, 0.6),
];
const PUBLISHED_VOLUMES: f64 = 5000.0;

/// Puts everything into `report`.
pub(super) fn report(records: &Records, report: &mut Report) {
    report.table(one_by_one_table(records));
    report.table(at_once_table(records));
    report.table(lookup_table(records));
    let mut memory = Table::new("Memory of an idle volume", " | bytes");
    if let Some(bytes) = records.bytes.estimate() {
        memory.row("anonymous memory of the process, divided by its volumes").estimate(bytes);
    }
    report.table(memory);
    report.table(published_table());
    plots(records, report);
    targets(records, report);
    findings(records, report);
    report.figure("namespace", records_json(records));
}

/// Explains the columns; `normal` and `idle` are numbers of volumes.
pub(super) fn notes(normal: usize, idle: usize, report: &mut Report) {
    let injected_ms = INJECTED.as_millis();
    report.note(format!(
        "Normal: a wait of {injected_ms} ms is injected before each normal grace period, about what a kernel with 250 ticks per second \
         takes. The milliseconds in these rows are that wait. An unmount needs a grace period that begins after its call, so it waits \
         for two where one is under way: the one that frees what an earlier unmount left. One by one only {normal} volumes are \
         unmounted this way."
    ));
    report.note(format!(
        "Grace periods are logged by the RCU layer for the thread that unmounts. All: from the first to the last. Kernel by it: medians of \
         the rounds' ratios of p50, 95 % intervals. The kernel's calls are mount(2) and umount2(2) of tmpfs in a mount namespace of its \
         own. Looked up are {STANDING} volumes that stay mounted, and a file in each; the longest is of all rounds. Memory: RssAnon of \
         a process with {idle} idle volumes minus that with none; their backends are part of it."
    ));
}

fn findings(records: &Records, report: &mut Report) {
    let one = |(machine, mount, umount): (&str, f64, f64)| format!("{machine}: {mount} s and {umount} s");
    let published = PUBLISHED.map(one).join("; ");
    report.finding(
        Source::Published,
        format!("{PUBLISHED_VOLUMES:.0} tmpfs mounted and unmounted by commands; {published}."),
    );
    let both = |subject| {
        let setting = Setting { subject, way: Way::OneByOne, lookers: 0 };
        let p50 = |series: &Series| series.median(setting.load_name(), setting.subject_name()).map(figure);
        let (mount, umount) = (p50(&records.mount_us)?, p50(&records.umount_us)?);
        Some(format!("{}: {mount} us to mount, {umount} us to unmount.", setting.subject_name()))
    };
    report.finding(Source::Kernel, both(Subject::Kernel).map(|text| format!("tmpfs by system calls, {text}")));
    report.finding(Source::Ours, both(Subject::Expedited));
    report.finding(Source::Ours, both(Subject::Normal));
    report.finding(Source::Ours, records.bytes.median().map(|bytes| format!("An idle volume takes {bytes:.0} bytes.")));
}

/// The settings of one way that were measured.
fn measured(records: &Records, way: Way) -> impl Iterator<Item = (Setting, &Seen)> {
    let settings = Setting::all().into_iter().filter(move |setting| setting.way == way);
    settings.filter_map(|setting| Some((setting, records.seen.of(&setting)?)))
}

fn of(series: &Series, setting: Setting) -> &Samples {
    series.of(setting.load_name(), setting.subject_name())
}

/// The kernel's time divided by that of `setting`, round by round.
fn by_kernel(series: &Series, setting: Setting) -> Option<Estimate> {
    let kernel = Setting { subject: Subject::Kernel, way: Way::OneByOne, ..setting };
    of(series, kernel).by(of(series, setting)).filter(|_| setting != kernel)
}

/// Grace periods of a turn.
fn grace_text(seen: &Seen) -> String {
    seen.grace_periods.median().map_or_else(String::new, |count| format!("{count:.0}"))
}

fn one_by_one_table(records: &Records) -> Table {
    let columns = " | volumes | mount p50 us | p99 | all ms | kernel by it | unmount p50 us | p99 | all ms | kernel by it | grace periods";
    let mut table = Table::new("Volumes in memory mounted and unmounted one by one; the kernel with tmpfs", columns);
    for (setting, seen) in measured(records, Way::OneByOne) {
        let row = table.row(setting.name()).text(seen.volumes).figures(seen.mount.quantiles([0.5, 0.99]));
        let row = row.figure(of(&records.mount_all_ms, setting).median());
        let row = row.estimate(by_kernel(&records.mount_us, setting)).figures(seen.umount.quantiles([0.5, 0.99]));
        let row = row.figure(of(&records.umount_all_ms, setting).median());
        row.estimate(by_kernel(&records.umount_us, setting)).text(grace_text(seen));
    }
    table
}

fn at_once_table(records: &Records) -> Table {
    let columns = " | volumes | unmount all, ms | us per volume | by mounting all | grace periods";
    let mut table = Table::new("All unmounted in one call", columns);
    for (setting, seen) in measured(records, Way::AtOnce) {
        let (mount_ms, umount_ms) = (of(&records.mount_all_ms, setting), of(&records.umount_all_ms, setting));
        let row = table.row(setting.name()).text(seen.volumes).figure(umount_ms.median());
        let row = row.figure(of(&records.umount_us, setting).median());
        row.estimate(ratio(&umount_ms.all(), &mount_ms.all())).text(grace_text(seen));
    }
    table
}

fn lookup_table(records: &Records) -> Table {
    let columns = " | lookups/s beside mounts | p50 us | p99.9 | longest | beside unmounts | p50 us | p99.9 | longest | during one";
    let mut table = Table::new("Lookups meanwhile, of volumes that stay and of files in them", columns);
    for (setting, seen) in Way::ALL.into_iter().flat_map(|way| measured(records, way)) {
        if setting.lookers == 0 {
            continue;
        }
        let us = |ns: &Histogram<u64>| {
            [ns.value_at_quantile(0.5), ns.value_at_quantile(0.999), ns.max()].map(|ns| ns as f64 / 1e3)
        };
        let row = table.row(setting.name()).figure(of(&records.lookups_per_s_beside_mounts, setting).median());
        let row = row.figures(us(&seen.beside_mounts.0));
        let row = row.figure(of(&records.lookups_per_s_beside_umounts, setting).median());
        row.figures(us(&seen.beside_umounts.0)).figure(of(&records.lookups_during_one, setting).median());
    }
    table
}

fn published_table() -> Table {
    let title = format!("Published of the kernel: {PUBLISHED_VOLUMES:.0} tmpfs, by commands");
    let mut table = Table::new(title, " | mount all, s | unmount all, s | us per unmount");
    for (machine, mount, umount) in PUBLISHED {
        table.row(machine).figures([mount, umount, umount * 1e6 / PUBLISHED_VOLUMES]);
    }
    table
}

fn plots(records: &Records, report: &mut Report) {
    type Which = fn(&Seen) -> Vec<f64>;
    let mut plot = |title: String, axis, lookers, which: Which| {
        let curve = |(color, subject): (usize, Subject)| {
            let seen = records.seen.of(&Setting { subject, way: Way::OneByOne, lookers })?;
            Some(Curve::new(subject.name(), color, which(seen)))
        };
        report.curves(title, axis, Subject::ALL.into_iter().enumerate().filter_map(curve));
    };
    for lookers in LOOKERS {
        let beside = Setting { subject: Subject::Kernel, way: Way::OneByOne, lookers }.load_name();
        plot(format!("Mount: {beside}"), "microseconds of a mount", lookers, |seen| seen.mount.all());
        plot(format!("Unmount: {beside}"), "microseconds of an unmount", lookers, |seen| seen.umount.all());
    }
    let lookups: Which = |seen| of_histogram(&seen.beside_umounts.0, 1e3);
    plot("Lookups by 2 threads beside unmounts".to_owned(), "microseconds of a lookup", 2, lookups);
}

fn targets(records: &Records, report: &mut Report) {
    let quiet = Setting { subject: Subject::Expedited, way: Way::OneByOne, lookers: 0 };
    for (what, series) in [("mount", &records.mount_us), ("unmount", &records.umount_us)] {
        let title = format!("{what}, no lookups: the kernel's tmpfs by it");
        report.target(title, Bound::AtLeast(BY_KERNEL), by_kernel(series, quiet));
    }
    let kib = records.bytes.estimate().map(|Estimate { value, low, high }| Estimate {
        value: value / 1024.0,
        low: low / 1024.0,
        high: high / 1024.0,
    });
    report.target("memory of an idle volume, KiB", Bound::AtMost(KIB_MAX), kib);
    for (setting, seen) in measured(records, Way::AtOnce) {
        let [least, value, most] = seen.grace_periods.quantiles([0.0, 0.5, 1.0]);
        let reached = value.zip(least.zip(most)).map(|(value, (low, high))| Estimate { value, low, high });
        let title = format!("{}: grace periods, as the RCU layer logs them", setting.name());
        report.target(title, Bound::Exactly(1.0), reached);
    }
    for lookers in LOOKERS.into_iter().filter(|lookers| *lookers != 0) {
        let setting = Setting { subject: Subject::Normal, way: Way::OneByOne, lookers };
        let mut add = |what: &str, bound, series: &Series| {
            report.target(format!("{}: {what}", setting.name()), bound, of(series, setting).estimate());
        };
        add("p99.9 of lookups meanwhile, us", Bound::AtMost(LOOKUP_US_MAX), &records.lookup_p999_us);
        add("lookups during an unmount", Bound::AtLeast(1.0), &records.lookups_during_one);
    }
}

fn records_json(records: &Records) -> serde_json::Value {
    let lookups = |ns: &Histogram<u64>| {
        let of = |share| ns.value_at_quantile(share);
        json!({ "count": ns.len(), "p50": of(0.5), "p999": of(0.999), "max": ns.max() })
    };
    let one = |(setting, seen): (&Setting, &Seen)| {
        json!({
            "who": setting.subject_name(), "lookers": setting.lookers, "volumes": seen.volumes,
            "mount_us": seen.mount.json(), "umount_us": seen.umount.json(),
            "lookup_ns_beside_mounts": lookups(&seen.beside_mounts.0),
            "lookup_ns_beside_umounts": lookups(&seen.beside_umounts.0),
            "grace_periods": seen.grace_periods.all(),
        })
    };
    json!({
        "settings": records.seen.iter().map(one).collect::<Vec<_>>(),
        "mount_us": records.mount_us.json(), "umount_us": records.umount_us.json(),
        "mount_all_ms": records.mount_all_ms.json(), "umount_all_ms": records.umount_all_ms.json(),
        "lookups_per_s_beside_mounts": records.lookups_per_s_beside_mounts.json(),
        "lookups_per_s_beside_umounts": records.lookups_per_s_beside_umounts.json(),
        "lookup_p999_us": records.lookup_p999_us.json(), "lookups_during_an_unmount": records.lookups_during_one.json(),
        "bytes_of_an_idle_volume": records.bytes.all(),
    })
}

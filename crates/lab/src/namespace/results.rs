//! Tables, plots and targets from the records.

use super::axes::{LOOKERS, NORMAL_GRACE, Setting, Subject, Way};
use super::published::{PUBLISHED, Published, VOLUMES};
use super::records::{Records, Seen};
use crate::plot::{Curve, Plot};
use crate::quantity::figure;
use crate::report::{Report, Source};
use crate::samples::{Microseconds, of_histogram};
use crate::series::Series;
use crate::statistics::{Estimate, median, median_estimate, ratios};
use crate::table::{Align, Table};
use crate::targets::{Bound, Target};

/// The kernel's time for a mount or an unmount by ours, at least.
const BY_KERNEL: f64 = 3.0;
/// Memory of an idle volume, at most.
const KIB_MAX: f64 = 16.0;
/// An unmount that waits for a normal grace period takes so long at least, and lookups beside it so long at most.
const UMOUNT_MS_MIN: f64 = 10.0;
const LOOKUP_US_MAX: f64 = 1000.0;

const SUBJECTS: [Subject; 3] = [Subject::Expedited, Subject::Normal, Subject::Kernel];

/// Puts everything into `report`.
pub(crate) fn report(records: &Records, report: &mut Report) {
    report.table(one_by_one_table(records));
    report.table(at_once_table(records));
    report.table(lookup_table(records));
    report.table(memory_table(records));
    report.table(published_table());
    plots(records).into_iter().for_each(|plot| report.plot(plot));
    targets(records).into_iter().for_each(|target| report.target(target));
    let one = |published: &Published| {
        format!("{}: {} s and {} s", published.machine, published.mount_all_s, published.umount_all_s)
    };
    let all: Vec<String> = PUBLISHED.iter().map(one).collect();
    let text = format!("{VOLUMES:.0} tmpfs mounted and unmounted by commands; {}.", all.join("; "));
    report.finding(Source::Published, text);
    let both = |subject| {
        let setting = one_by_one(subject, 0);
        let p50 = |series: &Series| series.median(setting.beside(), setting.who()).map(figure);
        Some(format!("{} us to mount, {} us to unmount", p50(&records.mount_us)?, p50(&records.umount_us)?))
    };
    if let Some(kernel) = both(Subject::Kernel) {
        report.finding(Source::Kernel, format!("tmpfs by system calls: {kernel}."));
    }
    if let (Some(expedited), Some(normal)) = (both(Subject::Expedited), both(Subject::Normal)) {
        let text = format!("Expedited: {expedited}. Grace periods of {} ms: {normal}.", NORMAL_GRACE.as_millis());
        report.finding(Source::Ours, text);
    }
    if !records.bytes.is_empty() {
        report.finding(Source::Ours, format!("An idle volume takes {:.0} bytes.", median(&records.bytes)));
    }
}

fn right(name: &'static str) -> (&'static str, Align) {
    (name, Align::Right)
}

fn one_by_one(subject: Subject, lookers: usize) -> Setting {
    Setting { subject, way: Way::OneByOne, lookers }
}

/// The settings of one way that were measured.
fn measured(records: &Records, way: Way) -> impl Iterator<Item = (Setting, &Seen)> {
    let settings =
        LOOKERS.into_iter().flat_map(move |lookers| SUBJECTS.map(|subject| Setting { subject, way, lookers }));
    settings.filter_map(|setting| Some((setting, records.of(setting)?)))
}

fn quantile_cells(samples: &Microseconds) -> [String; 2] {
    [0.5, 0.99].map(|share| samples.quantile(share).map_or_else(String::new, figure))
}

fn median_cell(series: &Series, setting: Setting) -> String {
    series.median(setting.beside(), setting.who()).map_or_else(String::new, figure)
}

/// The kernel's time by this one's, round by round.
fn by_kernel(series: &Series, setting: Setting) -> Option<Estimate> {
    let kernel = one_by_one(Subject::Kernel, setting.lookers);
    let is_measured = !series.of(kernel.beside(), kernel.who()).is_empty() && setting.subject != Subject::Kernel;
    is_measured.then(|| series.ratio(setting.beside(), kernel.who(), setting.who()))
}

fn one_by_one_table(records: &Records) -> Table {
    let columns = [
        ("", Align::Left),
        right("volumes"),
        right("mount p50 us"),
        right("p99"),
        right("all ms"),
        right("kernel by it"),
        right("unmount p50 us"),
        right("p99"),
        right("all ms"),
        right("kernel by it"),
        right("grace periods"),
    ];
    let mut table = Table::new("Volumes in memory mounted and unmounted one by one; the kernel with tmpfs", &columns);
    for (setting, seen) in measured(records, Way::OneByOne) {
        let ratio = |series| by_kernel(series, setting).map_or_else(String::new, |ratio| ratio.text());
        let mut row = vec![setting.name(), seen.volumes.to_string()];
        row.extend(quantile_cells(&seen.mount));
        row.extend([median_cell(&records.mount_all_ms, setting), ratio(&records.mount_us)]);
        row.extend(quantile_cells(&seen.umount));
        row.extend([median_cell(&records.umount_all_ms, setting), ratio(&records.umount_us), grace_cell(seen)]);
        table.row(row);
    }
    table
}

/// Of a turn.
fn grace_cell(seen: &Seen) -> String {
    if seen.grace_periods.is_empty() { String::new() } else { format!("{:.0}", median(&seen.grace_periods)) }
}

fn at_once_table(records: &Records) -> Table {
    let columns = [
        ("", Align::Left),
        right("volumes"),
        right("unmount all, ms"),
        right("us per volume"),
        right("by mounting all"),
        right("grace periods"),
    ];
    let mut table = Table::new("All unmounted in one call", &columns);
    for (setting, seen) in measured(records, Way::AtOnce) {
        let [umount_all, mount_all] = [&records.umount_all_ms, &records.mount_all_ms]
            .map(|series| series.of(setting.beside(), setting.who()).to_vec());
        let by_mounting = median_estimate(&ratios(&umount_all, &mount_all)).text();
        let (all, each) = (median_cell(&records.umount_all_ms, setting), median_cell(&records.umount_us, setting));
        table.row([setting.name(), seen.volumes.to_string(), all, each, by_mounting, grace_cell(seen)]);
    }
    table
}

fn lookup_table(records: &Records) -> Table {
    let columns = [
        ("", Align::Left),
        right("lookups/s beside mounts"),
        right("p50 us"),
        right("p99.9"),
        right("longest"),
        right("beside unmounts"),
        right("p50 us"),
        right("p99.9"),
        right("longest"),
        right("during one"),
    ];
    let mut table = Table::new("Lookups beside, of volumes that stay and of files in them", &columns);
    for way in [Way::OneByOne, Way::AtOnce] {
        for (setting, seen) in measured(records, way).filter(|(setting, _)| setting.lookers != 0) {
            let mut row = vec![setting.name()];
            let passes = [
                (&records.lookups_per_s_beside_mounts, &seen.beside_mounts),
                (&records.lookups_per_s_beside_umounts, &seen.beside_umounts),
            ];
            for (per_s, ns) in passes {
                let us = |ns: u64| figure(ns as f64 / 1e3);
                row.push(median_cell(per_s, setting));
                row.extend([us(ns.value_at_quantile(0.5)), us(ns.value_at_quantile(0.999)), us(ns.max())]);
            }
            row.push(median_cell(&records.lookups_during_one, setting));
            table.row(row);
        }
    }
    table
}

fn memory_table(records: &Records) -> Table {
    let mut table = Table::new("Memory of an idle volume", &[("", Align::Left), right("bytes")]);
    if !records.bytes.is_empty() {
        table.row(["all of it that is no file's, by volumes".to_owned(), median_estimate(&records.bytes).text()]);
    }
    table
}

fn published_table() -> Table {
    let columns = [("", Align::Left), right("mount all, s"), right("unmount all, s"), right("us per unmount")];
    let mut table = Table::new(format!("Published of the kernel: {VOLUMES:.0} tmpfs, by commands"), &columns);
    for published in PUBLISHED {
        let each = figure(published.umount_all_s * 1e6 / VOLUMES);
        let cells = [published.mount_all_s, published.umount_all_s].map(figure);
        table.row([published.machine.to_owned()].into_iter().chain(cells).chain([each]));
    }
    table
}

type Which = fn(&Seen) -> &Microseconds;

fn plots(records: &Records) -> Vec<Plot> {
    let mut plots = Vec::new();
    for lookers in LOOKERS {
        let parts: [(&str, &str, Which); 2] = [
            ("Mount", "microseconds of a mount", |seen| &seen.mount),
            ("Unmount", "microseconds of an unmount", |seen| &seen.umount),
        ];
        for (what, axis, which) in parts {
            let curve = |(color, subject): (usize, Subject)| {
                let samples = which(records.of(one_by_one(subject, lookers))?).all();
                Some(Curve::new(subject.name(), color, samples))
            };
            let curves: Vec<_> = SUBJECTS.into_iter().enumerate().filter_map(curve).collect();
            let title = format!("{what}: {}", one_by_one(Subject::Kernel, lookers).beside());
            if !curves.is_empty() {
                plots.push(Plot { title, axis, curves, marks: Vec::new() });
            }
        }
    }
    let lookers = LOOKERS[LOOKERS.len() - 1];
    let curve = |(color, subject): (usize, Subject)| {
        let samples = of_histogram(&records.of(one_by_one(subject, lookers))?.beside_umounts, 1e3);
        (!samples.is_empty()).then(|| Curve::new(subject.name(), color, samples))
    };
    let curves: Vec<_> = SUBJECTS.into_iter().enumerate().filter_map(curve).collect();
    if !curves.is_empty() {
        let title = format!("Lookups by {lookers} threads beside unmounts");
        plots.push(Plot { title, axis: "microseconds of a lookup", curves, marks: Vec::new() });
    }
    plots
}

fn targets(records: &Records) -> Vec<Target> {
    let mut targets = Vec::new();
    let quiet = one_by_one(Subject::Expedited, 0);
    for (what, series) in [("mount", &records.mount_us), ("unmount", &records.umount_us)] {
        let title = format!("{what}, nobody looks up: the kernel's tmpfs by it");
        targets.extend(by_kernel(series, quiet).map(|ratio| Target::new(title, Bound::AtLeast(BY_KERNEL), ratio)));
    }
    if !records.bytes.is_empty() {
        let kib: Vec<f64> = records.bytes.iter().map(|bytes| bytes / 1024.0).collect();
        targets.push(Target::new("memory of an idle volume, KiB", Bound::AtMost(KIB_MAX), median_estimate(&kib)));
    }
    for (setting, seen) in measured(records, Way::AtOnce) {
        let (least, most) = (seen.grace_periods.iter().copied())
            .fold((f64::MAX, 0.0_f64), |(least, most), count| (least.min(count), most.max(count)));
        let reached = Estimate { value: median(&seen.grace_periods), low: least, high: most };
        targets.push(Target::new(format!("{}: grace periods", setting.name()), Bound::Exactly(1.0), reached));
    }
    for lookers in LOOKERS.into_iter().filter(|lookers| *lookers != 0) {
        let setting = one_by_one(Subject::Normal, lookers);
        let of = |series: &Series| series.of(setting.beside(), setting.who()).to_vec();
        let umount_ms: Vec<f64> = of(&records.umount_us).iter().map(|us| us / 1e3).collect();
        if umount_ms.is_empty() {
            continue;
        }
        let mut add = |what: &str, bound, samples: &[f64]| {
            targets.push(Target::new(format!("{}: {what}", setting.name()), bound, median_estimate(samples)));
        };
        add("an unmount, ms", Bound::AtLeast(UMOUNT_MS_MIN), &umount_ms);
        add("p99.9 of lookups beside, us", Bound::AtMost(LOOKUP_US_MAX), &of(&records.lookup_p999_us));
        add("lookups during an unmount", Bound::AtLeast(1.0), &of(&records.lookups_during_one));
    }
    targets
}

const _: () = assert!(NORMAL_GRACE.as_millis() as f64 > UMOUNT_MS_MIN && LOOKUP_US_MAX * 10.0 <= UMOUNT_MS_MIN * 1e3);

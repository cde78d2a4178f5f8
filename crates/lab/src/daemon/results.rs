//! Tables, plots and targets from the records.

use super::axes::Cell;
use super::many::{ALONE, ASKED, Files, LIST, MANY, Records, Usage, WRITES, p50, p99};
use super::records::Umounts;
use crate::plot::{Curve, Plot};
use crate::programs::Tenants;
use crate::quantity::figure;
use crate::report::{Report, Source};
use crate::statistics::{Estimate, median, median_estimate, quantile};
use crate::table::{Align, Table};
use crate::targets::{Bound, Target};

/// Most of a small write by that to the only volume of a daemon.
const BY_SINGLE: f64 = 1.15;
const LIST_MS: f64 = 50.0;
/// Most of an unmount under churn by the control.
const P50: f64 = 1.2;
const P95: f64 = 1.5;

const QUANTILES: [f64; 4] = [0.5, 0.95, 0.99, 1.0];

/// Puts what was seen of many volumes into `report`.
pub(super) fn report_many(records: &Records, report: &mut Report) {
    report.table(write_table(records));
    report.table(process_table(records));
    many_targets(records).into_iter().for_each(|target| report.target(target));
    many_finding(records).into_iter().for_each(|text| report.finding(Source::Ours, text));
    let usage = |usage: &Usage| {
        serde_json::json!({
            "volumes": usage.volumes, "threads": usage.threads, "descriptors": usage.descriptors,
            "anonymous_bytes": usage.anonymous_bytes, "idle_ticks": usage.ticks,
        })
    };
    report.figure("many", records.series.json());
    report.figure("usage", vec![usage(&records.alone), usage(&records.many)]);
    report.figure("start_s", records.start_s.to_vec());
    report.figure("end_s", records.end_s.to_vec());
}

/// Puts what was seen of unmounts into `report`.
pub(super) fn report_umounts(umounts: &Umounts, report: &mut Report) {
    report.table(umount_table(umounts));
    for beside_hung in [false, true] {
        plot(umounts, beside_hung).into_iter().for_each(|plot| report.plot(plot));
    }
    umount_targets(umounts).into_iter().for_each(|target| report.target(target));
    umount_finding(umounts).into_iter().for_each(|text| report.finding(Source::Ours, text));
    report.figure("umounts", umounts.json());
}

fn many_finding(records: &Records) -> Option<String> {
    let [row, _] = WRITES;
    let us = |files: Files| records.series.median(&p50(row), files.name());
    let more = |files: Files| Some(us(files)? - us(files.single())?);
    Some(format!(
        "4 KiB written, p50 in us: {} to the only volume, {} to one of {}, {} to all of them in random order, which is {} more. \
         With a server that does nothing it is {} more: that is the kernel's own for so many mounts.",
        figure(us(Files::Single)?),
        figure(us(Files::OfOneOfMany)?),
        records.many.volumes,
        figure(us(Files::OfAll)?),
        figure(more(Files::OfAll)?),
        figure(more(Files::BareOfAll)?)
    ))
}

fn umount_finding(umounts: &Umounts) -> Option<String> {
    let p50 = |cell: Cell| Some(format!("{} {}", cell.name(), figure(quantile(&umounts.of(cell)?.all_ms(), 0.5))));
    let cells = [Cell::of(false), Cell::of(true)].concat();
    let listed: Vec<String> = cells.into_iter().filter_map(p50).collect();
    (!listed.is_empty()).then(|| format!("An idle volume unmounted, p50 in ms: {}.", listed.join("; ")))
}

fn write_table(records: &Records) -> Table {
    let right = |name| (name, Align::Right);
    let columns = [("", Align::Left), right("p50 us"), right("p99"), right("p50 by a single mount's")];
    let title = format!("Overwriting 4 KiB; many: {}", records.many.volumes);
    let (mut table, series) = (Table::new(title, &columns), &records.series);
    for row in WRITES {
        for files in Files::ALL {
            let of = |row: &str| series.median(row, files.name()).map_or_else(String::new, figure);
            let ratio = series.ratio(&p50(row), files.name(), files.single().name()).text();
            let ratio = if files == files.single() { String::new() } else { ratio };
            table.row([format!("{row}: {}", files.name()), of(&p50(row)), of(&p99(row)), ratio]);
        }
    }
    table
}

fn process_table(records: &Records) -> Table {
    let right = |name| (name, Align::Right);
    let columns = [("", Align::Left), right("one volume"), right("many"), right("each of the others")];
    let Records { alone, many, start_s, end_s, series, idle_s } = records;
    let title = format!("A daemon with one volume, and one with {}", many.volumes);
    let mut table = Table::new(title, &columns);
    for row in ASKED {
        let of = |subject| series.median(row, subject).map_or_else(String::new, figure);
        table.row([row.to_owned(), of(ALONE), of(MANY)]);
    }
    let each = |of: fn(&Usage) -> f64| (of(many) - of(alone)) / (many.volumes - alone.volumes).max(1) as f64;
    let mut usage = |name: &str, of: fn(&Usage) -> f64| {
        table.row([name.to_owned(), figure(of(alone)), figure(of(many)), figure(each(of))]);
    };
    usage("threads, idle", |usage| usage.threads as f64);
    usage("descriptors, idle", |usage| usage.descriptors as f64);
    usage("anonymous memory, idle, KiB", |usage| usage.anonymous_bytes as f64 / 1024.0);
    table.row([format!("CPU time in {idle_s} s, idle, ticks"), alone.ticks.to_string(), many.ticks.to_string()]);
    for (name, [alone, many]) in [("start, s", start_s), ("end, s", end_s)] {
        table.row([name.to_owned(), figure(*alone), figure(*many)]);
    }
    table
}

fn umount_table(umounts: &Umounts) -> Table {
    let right = |name| (name, Align::Right);
    let columns = [
        ("", Align::Left),
        right("umounts"),
        right("not ended"),
        right("p50 ms"),
        right("p95"),
        right("p99"),
        right("max"),
        right("p50 by control"),
        right("p95 by control"),
        right("mount p50 ms"),
        right("programs beside"),
        right("cgroups come and gone"),
    ];
    let mut table = Table::new("Unmounting an idle volume over the socket, beside four that are written to", &columns);
    for cell in [Cell::of(false), Cell::of(true)].concat() {
        let Some(seen) = umounts.of(cell) else { continue };
        let (all, is_churn) = (seen.all_ms(), cell.tenants == Tenants::Fresh);
        let by_control = |share| {
            let ratio = umounts.by_control(cell.beside_hung, share).filter(|_| is_churn);
            ratio.map_or_else(String::new, |ratio| ratio.text())
        };
        let mut row = vec![cell.name().to_owned(), all.len().to_string(), seen.failures.len().to_string()];
        row.extend(QUANTILES.map(|share| figure(quantile(&all, share))));
        row.extend([by_control(0.5), by_control(0.95), figure(median(&seen.mount_ms)), seen.programs.to_string()]);
        row.push(if is_churn { seen.programs.to_string() } else { "0".to_owned() });
        table.row(row);
    }
    table
}

fn plot(umounts: &Umounts, beside_hung: bool) -> Option<Plot> {
    let [control, churn] = Cell::of(beside_hung).map(|cell| umounts.of(cell));
    let curves = vec![Curve::new("churn", 0, churn?.all_ms()), Curve::dim("control", control?.all_ms())];
    let beside = if beside_hung { "beside a source that hangs" } else { "all sources answer" };
    let title = format!("Unmounting an idle volume: {beside}");
    Some(Plot { title, axis: "milliseconds of an unmount", curves, marks: Vec::new() })
}

/// A count is what it is.
fn exactly(count: usize) -> Estimate {
    let value = count as f64;
    Estimate { value, low: value, high: value }
}

fn many_targets(records: &Records) -> Vec<Target> {
    let (series, mut targets) = (&records.series, Vec::new());
    for row in WRITES {
        for files in [Files::OfOneOfMany, Files::OfAll] {
            let ratio = series.ratio(&p50(row), files.name(), Files::Single.name());
            let title = format!("{row}: {}, p50 by the only volume's", files.name());
            targets.push(Target::new(title, Bound::AtMost(BY_SINGLE), ratio));
        }
    }
    let list = median_estimate(series.of(LIST, MANY));
    targets.push(Target::new(format!("{LIST}, of many"), Bound::AtMost(LIST_MS), list));
    let ticks = exactly(records.many.ticks as usize);
    targets.push(Target::new("ticks of CPU time of many idle volumes", Bound::AtMost(0.0), ticks));
    targets
}

fn umount_targets(umounts: &Umounts) -> Vec<Target> {
    let mut targets = Vec::new();
    for beside_hung in [false, true] {
        let [_, churn] = Cell::of(beside_hung);
        for (share, name, bound) in [(0.5, "p50", P50), (0.95, "p95", P95)] {
            let ratio = umounts.by_control(beside_hung, share);
            let title = format!("unmount, {}: {name} by the control", churn.name());
            targets.extend(ratio.map(|ratio| Target::new(title, Bound::AtMost(bound), ratio)));
        }
    }
    for cell in [Cell::of(false), Cell::of(true)].concat() {
        let Some(seen) = umounts.of(cell) else { continue };
        let title = format!("unmounts that did not end, {}", cell.name());
        targets.push(Target::new(title, Bound::AtMost(0.0), exactly(seen.failures.len())));
    }
    targets
}

//! Tables, plots and targets from the records.

use super::many::{ALONE, ASKED, Files, LIST, MANY, Records, Usage, WRITES, p50, p99};
use super::{Cell, Seen, Umounts};
use crate::harness::{Bound, Curve, Estimate, Report, Source, Table, figure, listing};

/// Upper bound: time of a small write, divided by that to the only volume of a daemon.
const BY_SINGLE: f64 = 1.15;
const LIST_MS: f64 = 50.0;
/// Upper bounds: quantiles of unmounts under churn, divided by those under the control.
const P50: f64 = 1.2;
const P95: f64 = 1.5;

const QUANTILES: [f64; 4] = [0.5, 0.95, 0.99, 1.0];

/// Puts what was seen of many volumes into `report`.
pub(super) fn report_many(records: &Records, report: &mut Report) {
    report.table(write_table(records));
    report.table(process_table(records));
    many_targets(records, report);
    report.finding(Source::Ours, many_finding(records));
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
    report.note(
        "Small writes: medians of the rounds; by a single mount's: medians of the rounds' ratios, 95 % intervals; the bare server's by \
         its own single mount. Client and server on one CPU, or on two where the row says so. Nothing is written back meanwhile. A \
         write to a file of each of many volumes makes the same system calls as any other, but on data that is in no cache of the CPU. \
         The kernel has structures for each mount, and the daemon for each volume.",
    );
}

/// Puts what was seen of unmounts into `report`.
pub(super) fn report_umounts(umounts: &Umounts, blocks: u64, report: &mut Report) {
    report.table(umount_table(umounts));
    for (beside_hung, title) in [(false, "all sources answer"), (true, "beside a source that hangs")] {
        let [control, churn] = Cell::of(beside_hung);
        let ms = |cell| umounts.of(&cell).map_or_else(Vec::new, |seen| seen.umount_ms.all());
        let curves = [Curve::new("churn", 0, ms(churn)), Curve::dim("control", ms(control))];
        report.curves(format!("Unmounting an idle volume: {title}"), "milliseconds of an unmount", curves);
    }
    umount_targets(umounts, report);
    report.finding(Source::Ours, umount_finding(umounts));
    let json = |(cell, seen): (&Cell, &Seen)| {
        serde_json::json!({
            "cell": cell.name(), "fresh_cgroups": cell.is_churn(), "beside_hung": cell.beside_hung(),
            "programs": seen.programs, "failures": seen.failures, "mount_ms": seen.mount_ms.all(),
            "ms_by_round": seen.umount_ms.rounds(),
        })
    };
    report.figure("umounts", umounts.iter().map(json).collect::<Vec<_>>());
    report.note(format!(
        "Each program beside unmounts writes {blocks} blocks of 4 KiB, each synced. Churn: each in a new cgroup; control: all those of a \
         volume in the same. By control: of all unmounts, 95 % intervals by a bootstrap of rounds. An unmount in the daemon pays for one \
         expedited grace period, in Namespace::umount (engine, namespace/umount.rs, step 3), whatever its tenants do; the drain of \
         switches pays for none."
    ));
}

fn many_finding(records: &Records) -> Option<String> {
    let [row, _] = WRITES;
    let us = |files: Files| records.series.median(&p50(row), files.name());
    let more = |files: Files| Some(us(files)? - us(files.single())?);
    Some(format!(
        "4 KiB written, p50 in us: {} to the only volume, {} to one of {}, {} to all of them in random order, which is {} more. With a \
         server that does nothing it is {} more: that is what so many mounts cost the kernel.",
        figure(us(Files::Single)?),
        figure(us(Files::OfOneOfMany)?),
        records.many.volumes,
        figure(us(Files::OfAll)?),
        figure(more(Files::OfAll)?),
        figure(more(Files::BareOfAll)?)
    ))
}

fn umount_finding(umounts: &Umounts) -> Option<String> {
    let p50 = |cell: Cell| (cell.name(), umounts.of(&cell).and_then(|seen| seen.umount_ms.quantile(0.5)));
    listing(Cell::ALL.map(p50), "; ").map(|all| format!("An idle volume unmounted, p50 in ms: {all}."))
}

fn write_table(records: &Records) -> Table {
    let title = format!("Overwriting 4 KiB; many: {}", records.many.volumes);
    let (mut table, series) = (Table::new(title, " | p50 us | p99 | p50 by a single mount's"), &records.series);
    for (row, files) in WRITES.into_iter().flat_map(|row| Files::ALL.map(|files| (row, files))) {
        let [p50, p99] = [p50(row), p99(row)];
        let ratio = series.ratio(&p50, files.name(), files.single().name()).filter(|_| files != files.single());
        let cells = [&p50, &p99].map(|row| series.median(row, files.name()));
        table.row(format!("{row}: {}", files.name())).figures(cells).estimate(ratio);
    }
    table
}

fn process_table(records: &Records) -> Table {
    let Records { alone, many, start_s, end_s, series, idle_s } = records;
    let title = format!("A daemon with one volume, and one with {}", many.volumes);
    let mut table = Table::new(title, " | one volume | many | each of the others");
    for row in ASKED {
        table.row(row).figures([ALONE, MANY].map(|subject| series.median(row, subject)));
    }
    let mut usage = |name: &str, of: fn(&Usage) -> f64| {
        let each = (of(many) - of(alone)) / (many.volumes - alone.volumes).max(1) as f64;
        table.row(name).figures([of(alone), of(many), each]);
    };
    usage("threads, idle", |usage| usage.threads as f64);
    usage("descriptors, idle", |usage| usage.descriptors as f64);
    usage("anonymous memory, idle, KiB", |usage| usage.anonymous_bytes as f64 / 1024.0);
    table.row(format!("CPU time in {idle_s} s, idle, ticks")).text(alone.ticks).text(many.ticks);
    table.row("start, s").figures(*start_s);
    table.row("end, s").figures(*end_s);
    table
}

fn by_control(umounts: &Umounts, beside_hung: bool, share: f64) -> Option<Estimate> {
    let [control, churn] = Cell::of(beside_hung).map(|cell| umounts.of(&cell));
    churn?.umount_ms.quantile_by(&control?.umount_ms, share)
}

fn umount_table(umounts: &Umounts) -> Table {
    let columns = " | umounts | failed | p50 ms | p95 | p99 | max | p50 by control | p95 by control | mount p50 ms | programs beside | cgroups created and removed";
    let mut table =
        Table::new("Unmounting an idle volume over the socket, beside four volumes that are written to", columns);
    for (cell, seen) in Cell::ALL.into_iter().filter_map(|cell| Some((cell, umounts.of(&cell)?))) {
        let ratio = |share| by_control(umounts, cell.beside_hung(), share).filter(|_| cell.is_churn());
        let row = table.row(cell.name()).text(seen.umount_ms.count()).text(seen.failures.len());
        let row = row.figures(seen.umount_ms.quantiles(QUANTILES)).estimate(ratio(0.5)).estimate(ratio(0.95));
        let row = row.figure(seen.mount_ms.median()).text(seen.programs);
        row.text(if cell.is_churn() { seen.programs } else { 0 });
    }
    table
}

fn many_targets(records: &Records, report: &mut Report) {
    let series = &records.series;
    for (row, files) in WRITES.into_iter().flat_map(|row| [Files::OfOneOfMany, Files::OfAll].map(|files| (row, files)))
    {
        let title = format!("{row}: {}, p50 by the only volume's", files.name());
        let ratio = series.ratio(&p50(row), files.name(), Files::Single.name());
        report.target(title, Bound::AtMost(BY_SINGLE), ratio);
    }
    report.target(format!("{LIST}, of many"), Bound::AtMost(LIST_MS), series.estimate(LIST, MANY));
    let ticks = Estimate::exactly(records.many.ticks as f64);
    report.target("ticks of CPU time of many idle volumes", Bound::AtMost(0.0), ticks);
}

fn umount_targets(umounts: &Umounts, report: &mut Report) {
    for beside_hung in [false, true] {
        let [_, churn] = Cell::of(beside_hung);
        for (share, name, bound) in [(0.5, "p50", P50), (0.95, "p95", P95)] {
            let title = format!("unmount, {}: {name} by the control", churn.name());
            report.target(title, Bound::AtMost(bound), by_control(umounts, beside_hung, share));
        }
    }
    for cell in Cell::ALL {
        let failures = umounts.of(&cell).map(|seen| Estimate::exactly(seen.failures.len() as f64));
        report.target(format!("unmounts that failed, {}", cell.name()), Bound::AtMost(0.0), failures);
    }
}

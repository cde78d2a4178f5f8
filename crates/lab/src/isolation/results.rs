//! Tables, plots and targets.

use serde_json::json;

use super::client::Role;
use super::hogs::Hogs;
use super::limit::{Held, LIMIT_BYTES};
use super::victims::Cell;
use crate::fuse::OURS;
use crate::harness::samples::ratio;
use crate::harness::{
    Bound, Curve, Estimate, Report, Samples, Source, Table, figure, median, median_estimate, quantile,
};

/// Upper bound: p99 of fsync beside a hog, divided by that without.
const BY_QUIET: f64 = 2.0;
/// Lower bound: throughput of the slower of two equal hogs, divided by that of the faster.
const EVENNESS: f64 = 0.9;
/// Lower bound: throughput of both hogs, divided by that of direct writers.
const OF_DEVICE: f64 = 0.9;

const QUANTILES: [f64; 3] = [0.5, 0.99, 1.0];
const MIB: f64 = (1 << 20) as f64;

type Which = fn(&Cell) -> &Samples;
const VICTIMS: [(&str, Which); 2] =
    [("Write of 64 KiB and fsync", |cell| &cell.synced), ("Write of 64 KiB without fsync", |cell| &cell.written)];

/// Puts everything into `report`.
pub(super) fn report(cells: &[Cell], hogs: &Hogs, held: &[Held], report: &mut Report) {
    VICTIMS.into_iter().for_each(|(what, latencies)| report.table(victim_table(cells, what, latencies)));
    let mut table =
        Table::new("Two equal hogs in two cgroups, medians of the rounds", " | one MB/s | other | together");
    for (name, pairs) in [(OURS, &hogs.cached), ("direct writes to the disk", &hogs.direct)] {
        let of = |get: fn(&[f64; 2]) -> f64| median(&pairs.iter().map(get).collect::<Vec<_>>());
        table.row(name).figures([of(|pair| pair[0]), of(|pair| pair[1]), of(|pair| pair[0] + pair[1])]);
    }
    report.table(table);
    let title = format!("A tenant limited to {}", slackwater_arena::size::text(LIMIT_BYTES));
    let mut table = Table::new(title, "writers | samples | most held MiB | with waiting writes | promised");
    for held in held {
        let bytes = [held.charged_bytes, held.with_parked_bytes, held.promised_bytes()];
        table.row(held.writers).text(held.samples).figures(bytes.map(|bytes| bytes as f64 / MIB));
    }
    report.table(table);
    let kinds = [None, Some(Role::Overwrite), Some(Role::Extend), Some(Role::Truncate)];
    for (what, latencies) in VICTIMS {
        for hog in kinds {
            let of_kind = cells.iter().filter(|cell| cell.hog == hog).enumerate();
            let curves = of_kind.map(|(number, cell)| Curve::new(cell.system, number, latencies(cell).all()));
            report.curves(format!("{what}: {}", beside(hog)), "milliseconds", curves);
        }
    }
    report.figure("victims", cells.iter().map(cell_json).collect::<Vec<_>>());
    report.figure("hogs", json!({ "cached_mb_per_s": hogs.cached, "direct_mb_per_s": hogs.direct }));
    report.figure("held", held.iter().map(held_json).collect::<Vec<_>>());
    targets(cells, hogs, held, report);
    report.finding(Source::Kernel, finding(cells, |system| system != OURS));
    report.finding(Source::Ours, finding(cells, |system| system == OURS));
}

/// The p99 of fsync without a hog and beside an overwriting one, on some systems.
fn finding(cells: &[Cell], is_chosen: impl Fn(&str) -> bool) -> String {
    let p99 = |cell: &Cell| cell.synced.quantile(0.99).map(figure);
    let beside = cells.iter().filter(|cell| cell.hog == Some(Role::Overwrite) && is_chosen(cell.system));
    let one = |cell: &Cell| {
        Some(format!("{} {} alone, {} beside", cell.system, p99(quiet(cells, cell.system)?)?, p99(cell)?))
    };
    let all: Vec<String> = beside.filter_map(one).collect();
    format!("p99 of write and fsync in ms, beside a hog that overwrites: {}.", all.join("; "))
}

fn beside(hog: Option<Role>) -> &'static str {
    match hog {
        None => "quiet",
        Some(Role::Overwrite) => "overwriting hog",
        Some(Role::Extend) => "extending hog",
        Some(Role::Truncate) => "truncating hog",
        Some(Role::Sync | Role::Write | Role::Direct) => "other",
    }
}

fn quiet<'a>(cells: &'a [Cell], system: &str) -> Option<&'a Cell> {
    cells.iter().find(|cell| cell.system == system && cell.hog.is_none())
}

/// The p99 of each round.
fn round_p99s(samples: &Samples) -> Vec<f64> {
    samples.rounds().iter().map(|round| quantile(round, 0.99)).collect()
}

fn by_quiet(cells: &[Cell], cell: &Cell, latencies: Which) -> Option<Estimate> {
    let quiet = quiet(cells, cell.system).filter(|_| cell.hog.is_some())?;
    ratio(&round_p99s(latencies(cell)), &round_p99s(latencies(quiet)))
}

fn victim_table(cells: &[Cell], what: &str, latencies: Which) -> Table {
    let columns = " | <beside | writes | p50 ms | p99 | max | p99 by quiet | hog MB/s";
    let mut table = Table::new(format!("{what}, all rounds"), columns);
    for cell in cells {
        let row = table.row(cell.system).text(beside(cell.hog)).text(latencies(cell).count());
        let row = row.figures(latencies(cell).quantiles(QUANTILES)).estimate(by_quiet(cells, cell, latencies));
        row.figure(cell.mb_per_s.median());
    }
    table
}

fn cell_json(cell: &Cell) -> serde_json::Value {
    let of = |samples: &Samples| {
        let [p50, p99, max] = samples.quantiles(QUANTILES);
        json!({
            "writes": samples.count(), "p50_ms": p50, "p99_ms": p99, "max_ms": max, "rounds_p99_ms": round_p99s(samples),
        })
    };
    json!({
        "system": cell.system, "beside": beside(cell.hog), "fsync": of(&cell.synced), "write": of(&cell.written),
        "hog_mb_per_s": cell.mb_per_s.all(),
    })
}

fn held_json(held: &Held) -> serde_json::Value {
    json!({
        "writers": held.writers, "samples": held.samples, "charged_bytes": held.charged_bytes,
        "with_parked_bytes": held.with_parked_bytes, "promised_bytes": held.promised_bytes(),
    })
}

fn targets(cells: &[Cell], hogs: &Hogs, held: &[Held], report: &mut Report) {
    let overwritten = cells.iter().find(|cell| cell.system == OURS && cell.hog == Some(Role::Overwrite));
    let ratio = overwritten.and_then(|cell| by_quiet(cells, cell, |cell| &cell.synced));
    report.target("fsync p99 beside an overwriting hog by quiet", Bound::AtMost(BY_QUIET), ratio);
    let even = median_estimate(&hogs.evenness());
    report.target("two equal hogs: the slower by the faster", Bound::AtLeast(EVENNESS), even);
    let of_device = median_estimate(&hogs.of_device());
    report.target("two hogs together by direct writes", Bound::AtLeast(OF_DEVICE), of_device);
    for held in held {
        let title =
            format!("limit of {} with {} writers, MiB held", slackwater_arena::size::text(LIMIT_BYTES), held.writers);
        let bound = Bound::AtMost(held.promised_bytes() as f64 / MIB);
        report.target(title, bound, Estimate::exactly(held.with_parked_bytes as f64 / MIB));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::targets::Target;

    fn cell(hog: Option<Role>, p99: [f64; 2]) -> Cell {
        let of = |values: [f64; 2]| {
            let mut samples = Samples::default();
            values.into_iter().for_each(|value| samples.push(value));
            samples
        };
        Cell { system: OURS, hog, synced: of(p99), written: of(p99), mb_per_s: of([100.0, 110.0]) }
    }

    fn held(writers: usize, with_parked_bytes: u64) -> Held {
        Held { writers, samples: 9, charged_bytes: 60 << 20, with_parked_bytes }
    }

    #[test]
    fn a_report_has_all_tables_plots_and_targets() {
        let cells = [cell(None, [1.0, 2.0]), cell(Some(Role::Overwrite), [1.5, 5.0])];
        let hogs = Hogs { cached: vec![[1.0, 0.95], [0.92, 1.0]], direct: vec![[1.0, 1.1]; 2] };
        let mut page = Report::of_test("isolation");
        report(&cells, &hogs, &[held(1, 65 << 20), held(64, 129 << 20)], &mut page);
        page.assert_page_has(&["without fsync: overwriting hog", "Two equal hogs", "limited to 64.0 MiB", "<svg"]);
        let met: Vec<bool> = page.targets.iter().map(Target::is_met).collect();
        // 2.5 in the second round; 8 % apart at most; 91 %; at the bound; beyond it.
        assert_eq!(met, [false, true, true, true, false], "{:?}", page.targets);
    }
}

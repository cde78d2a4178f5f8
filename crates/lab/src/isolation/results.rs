//! Tables, plots and targets.

use serde_json::json;

use super::client::Role;
use super::hogs::Hogs;
use super::limit::{Held, LIMIT_BYTES};
use super::victims::{Cell, Latencies};
use crate::fuse::OURS;
use crate::plot::{Curve, Plot};
use crate::quantity::figure;
use crate::report::{Report, Source};
use crate::statistics::{Estimate, median, median_estimate, quantile, ratios};
use crate::table::{Align, Table};
use crate::targets::{Bound, Target};

/// Most of the p99 of fsync by that without the hog.
const BY_QUIET: f64 = 2.0;
/// Least of the slower of two equal hogs by the faster.
const EVENNESS: f64 = 0.9;
/// Least of the hogs' throughput by the device's.
const OF_DEVICE: f64 = 0.9;

const QUANTILES: [f64; 3] = [0.5, 0.99, 1.0];
const MIB: f64 = (1 << 20) as f64;

/// Puts everything into `report`.
pub(super) fn report(cells: &[Cell], hogs: &Hogs, held: &[Held], report: &mut Report) {
    for (what, latencies) in VICTIMS {
        report.table(victim_table(cells, what, latencies));
    }
    report.table(hogs_table(hogs));
    report.table(limit_table(held));
    let mut kinds: Vec<Option<Role>> = Vec::new();
    cells.iter().for_each(|cell| {
        if !kinds.contains(&cell.hog) {
            kinds.push(cell.hog);
        }
    });
    for (what, latencies) in VICTIMS {
        kinds.iter().for_each(|hog| report.plot(plot(cells, *hog, what, latencies)));
    }
    report.figure("victims", cells.iter().map(cell_json).collect::<Vec<_>>());
    report.figure("hogs", json!({ "cached_mb_per_s": hogs.cached, "direct_mb_per_s": hogs.direct }));
    report.figure("held", held.iter().map(held_json).collect::<Vec<_>>());
    targets(cells, hogs, held).into_iter().for_each(|target| report.target(target));
    report.finding(Source::Kernel, finding(cells, |system| system != OURS));
    report.finding(Source::Ours, finding(cells, |system| system == OURS));
}

/// The p99 of fsync alone, and beside an overwriting hog.
fn finding(cells: &[Cell], is_meant: impl Fn(&str) -> bool) -> String {
    let p99 = |cell: &Cell| figure(quantile(&cell.synced.all, 0.99));
    let beside = cells.iter().filter(|cell| cell.hog == Some(Role::Overwrite) && is_meant(cell.system));
    let one =
        |cell: &Cell| Some(format!("{} {} alone, {} beside", cell.system, p99(quiet(cells, cell.system)?), p99(cell)));
    let all: Vec<String> = beside.filter_map(one).collect();
    format!("p99 of write and fsync in ms, beside a hog that overwrites: {}.", all.join("; "))
}

type Which = fn(&Cell) -> &Latencies;
const VICTIMS: [(&str, Which); 2] =
    [("Write of 64 KiB and fsync", |cell| &cell.synced), ("Write of 64 KiB without fsync", |cell| &cell.written)];

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

fn by_quiet(cells: &[Cell], cell: &Cell, latencies: Which) -> Option<Estimate> {
    let quiet = quiet(cells, cell.system).filter(|_| cell.hog.is_some())?;
    Some(median_estimate(&ratios(&latencies(cell).p99, &latencies(quiet).p99)))
}

fn victim_table(cells: &[Cell], what: &str, latencies: Which) -> Table {
    let right = |name| (name, Align::Right);
    let columns = [
        ("", Align::Left),
        ("beside", Align::Left),
        right("writes"),
        right("p50 ms"),
        right("p99"),
        right("max"),
        right("p99 by quiet"),
        right("hog MB/s"),
    ];
    let mut table = Table::new(format!("{what}, all rounds"), &columns);
    for cell in cells {
        let all = &latencies(cell).all;
        let mut row = vec![cell.system.to_owned(), beside(cell.hog).to_owned(), all.len().to_string()];
        row.extend(QUANTILES.map(|share| figure(quantile(all, share))));
        row.push(by_quiet(cells, cell, latencies).map_or_else(String::new, |ratio| ratio.text()));
        row.push(if cell.hog.is_some() { figure(median(&cell.mb_per_s)) } else { String::new() });
        table.row(row);
    }
    table
}

fn hogs_table(hogs: &Hogs) -> Table {
    let right = |name| (name, Align::Right);
    let columns = [("", Align::Left), right("one MB/s"), right("other"), right("together")];
    let mut table = Table::new("Two equal hogs in two cgroups, medians of the rounds", &columns);
    for (name, pairs) in [(OURS, &hogs.cached), ("direct writes to the disk", &hogs.direct)] {
        let of = |get: fn(&[f64; 2]) -> f64| figure(median(&pairs.iter().map(get).collect::<Vec<_>>()));
        table.row([name.to_owned(), of(|pair| pair[0]), of(|pair| pair[1]), of(|pair| pair[0] + pair[1])]);
    }
    table
}

fn limit_table(held: &[Held]) -> Table {
    let right = |name| (name, Align::Right);
    let columns = [
        ("writers", Align::Right),
        right("samples"),
        right("most held MiB"),
        right("with waiting writes"),
        right("promised"),
    ];
    let title = format!("A tenant limited to {}", slackwater_size::text(LIMIT_BYTES));
    let mut table = Table::new(title, &columns);
    for held in held {
        let mib = |bytes: u64| figure(bytes as f64 / MIB);
        table.row([
            held.writers.to_string(),
            held.samples.to_string(),
            mib(held.charged_bytes),
            mib(held.with_parked_bytes),
            mib(held.promised_bytes()),
        ]);
    }
    table
}

fn plot(cells: &[Cell], hog: Option<Role>, what: &str, latencies: Which) -> Plot {
    let of_kind = cells.iter().filter(|cell| cell.hog == hog).enumerate();
    let curves = of_kind.map(|(number, cell)| Curve::new(cell.system, number, latencies(cell).all.clone())).collect();
    Plot { title: format!("{what}: {}", beside(hog)), axis: "milliseconds", curves, marks: Vec::new() }
}

fn cell_json(cell: &Cell) -> serde_json::Value {
    let of = |latencies: &Latencies| {
        let [p50, p99, max] = QUANTILES.map(|share| quantile(&latencies.all, share));
        json!({ "writes": latencies.all.len(), "p50_ms": p50, "p99_ms": p99, "max_ms": max, "rounds_p99_ms": latencies.p99 })
    };
    json!({
        "system": cell.system, "beside": beside(cell.hog), "fsync": of(&cell.synced), "write": of(&cell.written),
        "hog_mb_per_s": cell.mb_per_s,
    })
}

fn held_json(held: &Held) -> serde_json::Value {
    json!({
        "writers": held.writers, "samples": held.samples, "charged_bytes": held.charged_bytes,
        "with_parked_bytes": held.with_parked_bytes, "promised_bytes": held.promised_bytes(),
    })
}

fn targets(cells: &[Cell], hogs: &Hogs, held: &[Held]) -> Vec<Target> {
    let mut targets = Vec::new();
    let overwritten = cells.iter().find(|cell| cell.system == OURS && cell.hog == Some(Role::Overwrite));
    let ratio = overwritten.and_then(|cell| by_quiet(cells, cell, |cell| &cell.synced));
    targets.extend(
        ratio.map(|ratio| Target::new("fsync p99 beside an overwriting hog by quiet", Bound::AtMost(BY_QUIET), ratio)),
    );
    let even = median_estimate(&hogs.evenness());
    targets.push(Target::new("two equal hogs: the slower by the faster", Bound::AtLeast(EVENNESS), even));
    let of_device = median_estimate(&hogs.of_device());
    targets.push(Target::new("two hogs together by direct writes", Bound::AtLeast(OF_DEVICE), of_device));
    for held in held {
        // The most that was seen is what it is.
        let mib = held.with_parked_bytes as f64 / MIB;
        let title = format!("limit of {} with {} writers, MiB held", slackwater_size::text(LIMIT_BYTES), held.writers);
        let bound = Bound::AtMost(held.promised_bytes() as f64 / MIB);
        targets.push(Target::new(title, bound, Estimate { value: mib, low: mib, high: mib }));
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn cell(hog: Option<Role>, p99: [f64; 2]) -> Cell {
        let latencies = || Latencies { all: p99.to_vec(), p99: p99.to_vec() };
        Cell { system: OURS, hog, synced: latencies(), written: latencies(), mb_per_s: vec![100.0, 110.0] }
    }

    fn held(writers: usize, with_parked_bytes: u64) -> Held {
        Held { writers, samples: 9, charged_bytes: 60 << 20, with_parked_bytes }
    }

    #[test]
    fn targets_are_met_or_missed() {
        let cells = [cell(None, [1.0, 2.0]), cell(Some(Role::Overwrite), [1.5, 5.0])];
        let hogs = Hogs { cached: vec![[1.0, 0.95], [0.92, 1.0]], direct: vec![[1.0, 1.1]; 2] };
        let targets = targets(&cells, &hogs, &[held(1, 65 << 20), held(64, 129 << 20)]);
        let met: Vec<bool> = targets.iter().map(Target::is_met).collect();
        // 2.5 times in the second round; 8 % apart at most; 91 %; at the bound; beyond it.
        assert_eq!(met, [false, true, true, true, false], "{targets:?}");
    }

    #[test]
    fn a_report_has_all_tables_plots_and_targets() {
        let cells = [cell(None, [1.0, 2.0]), cell(Some(Role::Overwrite), [1.5, 5.0])];
        let hogs = Hogs { cached: vec![[1.0, 0.95]], direct: vec![[1.0, 1.1]] };
        let mut page = Report::new("isolation", None, 1, Some(1));
        report(&cells, &hogs, &[held(1, 1)], &mut page);
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let path = home.path().join("page.html");
        page.write_page(&path).unwrap();
        let page = std::fs::read_to_string(path).unwrap();
        for part in ["without fsync: overwriting hog", "Two equal hogs", "limited to 64.0 MiB", "<svg"] {
            assert!(page.contains(part), "{part}");
        }
    }
}

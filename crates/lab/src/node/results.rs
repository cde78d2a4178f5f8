//! Tables, plots and targets.

use serde_json::json;

use super::{Amounts, Records, Seen, Turn};
use crate::harness::{Bound, Curve, Estimate, Report, Source, Table, figure};

/// Upper bound: p99 of fsync beside the hog, and p95 of unmounts beside other pods, each divided by the same alone.
const BY_ALONE: f64 = 1.2;

const WRITES: [Turn; 3] = [Turn::Alone, Turn::Beside, Turn::Upgraded];
const UNMOUNTS: [Turn; 3] = [Turn::UmountsAlone, Turn::UmountsBeside, Turn::UmountsOutside];

/// A quantile of a turn by that of another.
fn by(records: &Records, turn: Turn, alone: Turn, share: f64) -> Option<Estimate> {
    let (turn, alone) = (records.of(&turn)?, records.of(&alone)?);
    turn.ms.quantile_by(&alone.ms, share)
}

/// Puts everything into `report`.
pub(super) fn report(records: &Records, amounts: Amounts, report: &mut Report) {
    let victims = amounts.pods - 1;
    let columns = " | writes | p50 ms | p99 | max | p99 by alone | hog MB/s | errors";
    let mut table = Table::new(format!("Write of 64 KiB and fsync of {victims} pods, all rounds"), columns);
    for (turn, seen) in rows(records, WRITES) {
        let by_alone =
            Some(turn).filter(|turn| *turn != Turn::Alone).and_then(|turn| by(records, turn, Turn::Alone, 0.99));
        let row = table.row(turn.name()).text(seen.ms.count()).figures(seen.ms.quantiles([0.5, 0.99, 1.0]));
        row.estimate(by_alone).figure(seen.mb_per_s.median()).text(seen.errors.len());
    }
    report.table(table);
    let columns = " | unmounts | p50 ms | p95 | max | p50 by alone | p95 by alone | errors";
    let mut table = Table::new("Unmount of a pod's volume with 64 KiB unwritten, all rounds", columns);
    for (turn, seen) in rows(records, UNMOUNTS) {
        let row = table.row(turn.name()).text(seen.ms.count()).figures(seen.ms.quantiles([0.5, 0.95, 1.0]));
        let by_alone = |share| {
            Some(turn)
                .filter(|turn| *turn != Turn::UmountsAlone)
                .and_then(|turn| by(records, turn, Turn::UmountsAlone, share))
        };
        row.estimate(by_alone(0.5)).estimate(by_alone(0.95)).text(seen.errors.len());
    }
    report.table(table);
    for (title, turns) in [("Write of 64 KiB and fsync", &WRITES[..]), ("Unmount of a pod's volume", &UNMOUNTS)] {
        let seen = turns.iter().filter_map(|turn| Some((turn, records.of(turn)?)));
        let curves = seen.enumerate().map(|(number, (turn, seen))| Curve::new(turn.name(), number, seen.ms.all()));
        report.curves(title, "milliseconds", curves);
    }
    for (turn, seen) in records.iter() {
        report.figure(
            turn.name(),
            json!({ "ms_by_round": seen.ms.rounds(), "hog_mb_per_s": seen.mb_per_s.all(), "errors": seen.errors }),
        );
    }
    let fsync = by(records, Turn::Beside, Turn::Alone, 0.99);
    report.target("fsync p99 beside the hog by alone", Bound::AtMost(BY_ALONE), fsync);
    let unmounts = by(records, Turn::UmountsBeside, Turn::UmountsAlone, 0.95);
    report.target("unmount p95 while other pods write by alone", Bound::AtMost(BY_ALONE), unmounts);
    let errors: usize = records.iter().map(|(_, seen)| seen.errors.len()).sum();
    report.target(
        "errors of programs, with an upgrade in each round",
        Bound::AtMost(0.0),
        Estimate::exactly(errors as f64),
    );
    report.finding(Source::Ours, finding(records));
    report.note(format!(
        "{} pods, each with a volume in one daemon with --keep, a limit of 64 MiB, and a cgroup with the name that a kubelet gives it. \
         Victims write 64 KiB and fsync every 200 ms; the hog overwrites its file in blocks of 1 MiB. The program outside does the \
         same with a file of the disk itself, through the kernel's page cache. By alone: the quantile of all \
         rounds divided by the same of the turns alone, 95 % intervals.",
        amounts.pods
    ));
}

fn rows<const N: usize>(records: &Records, turns: [Turn; N]) -> impl Iterator<Item = (Turn, &Seen)> {
    turns.into_iter().filter_map(|turn| Some((turn, records.of(&turn)?)))
}

fn finding(records: &Records) -> Option<String> {
    let quantile = |turn, share| Some(figure(records.of(&turn)?.ms.quantile(share)?));
    let longest = quantile(Turn::Upgraded, 1.0)?;
    let [alone, beside] = [quantile(Turn::Alone, 0.99)?, quantile(Turn::Beside, 0.99)?];
    Some(format!(
        "p99 of write and fsync in ms: {alone} alone, {beside} beside a hog; at most {longest} while the daemon is upgraded."
    ))
}

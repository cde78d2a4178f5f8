//! `node`: the volumes of twenty pods in one daemon, of which one pod writes all the time.
//!
//! Each pod has a volume, a cgroup with the name that a kubelet gives it, and a limit. Nineteen pods, the *victims*, write
//! 64 KiB and fsync several times a second. The twentieth, the *hog*, overwrites a large file as fast as it can. One daemon
//! with `--keep` serves all volumes in all rounds. A round has these turns, in an order that rotates:
//!
//! ```text
//! alone            the victims write
//! beside           the hog, too
//! upgraded         the same; in the middle, another process takes the daemon over
//! unmounts alone   each victim's volume is unmounted and mounted again; no pod writes
//! unmounts beside  the same, while all other pods write
//! unmounts outside the same, while only a program outside of all volumes writes, through the kernel's page cache
//! ```

mod pods;

use std::time::Duration;

use anyhow::{Context, Result};

use self::pods::{Node, Writers};
use crate::harness::{AtMost, Estimate, Options, Report, Source, Table, amounts, axis, rounds};
use crate::interrupt;
use crate::scratch::Scratch;

amounts! {
    /// How much of everything.
    struct Amounts {
        pods: usize = 20, 20;
        cache_mib: u64 = 1024, 1024;
        /// The file of the hog.
        hog_bytes: u64 = 4 << 30, 512 << 20;
        /// Time from the start of the hog until the victims write.
        warm_up: Duration = Duration::from_secs(1), Duration::from_millis(300);
        /// How long the victims of a turn write.
        time: Duration = Duration::from_secs(4), Duration::from_millis(1200);
    }
}

axis! {
    /// The turns of a round.
    enum Turn {
        Alone = "victims alone",
        Beside = "beside the hog",
        Upgraded = "beside it, daemon upgraded",
        UmountsAlone = "no pod writes",
        UmountsBeside = "the other pods write",
        UmountsOutside = "a program outside writes",
    }
}

/// The rows; their subjects are the turns.
const WRITE: &str = "write of 64 KiB and fsync of a victim, ms";
const UMOUNT: &str = "unmount, ms";
const HOG: &str = "hog, MB/s";
const ERRORS: &str = "programs or requests that failed";

const WRITES: [Turn; 3] = [Turn::Alone, Turn::Beside, Turn::Upgraded];
const UMOUNTS: [Turn; 3] = [Turn::UmountsAlone, Turn::UmountsBeside, Turn::UmountsOutside];

/// Runs the experiment.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let amounts = Amounts::of(options);
    let home = Scratch::in_folder(&options.dir)?;
    let errors = measure(options.rounds(), amounts, &home, report)?;
    report.figure("errors", errors);
    publish(amounts, report);
    Ok(())
}

/// Gives each turn its place in every round, and returns the messages of what failed.
fn measure(count: u32, amounts: Amounts, home: &Scratch, report: &mut Report) -> Result<Vec<String>> {
    let node = Node::new(amounts, home)?;
    // The files that were just made are in the cache of the disk.
    node.settle()?;
    let mut all = Vec::new();
    rounds::run("node", count, &Turn::ALL, |_, turn| {
        let taken = if WRITES.contains(turn) {
            write(&node, amounts, *turn, report)
        } else {
            unmount(&node, amounts, *turn, report)
        };
        let errors = taken.with_context(|| turn.name())?;
        report.series.add(ERRORS, turn.name(), errors.len() as f64);
        all.extend(errors);
        node.settle()
    })?;
    node.end()?;
    Ok(all)
}

/// Lets the victims write, and the hog before and beside them.
fn write(node: &Node, amounts: Amounts, turn: Turn, report: &mut Report) -> Result<Vec<String>> {
    let mut writers = Writers::default();
    let mut errors = Vec::new();
    if turn != Turn::Alone {
        writers.start_hog(node)?;
    }
    interrupt::sleep(amounts.warm_up)?;
    writers.start_victims(node)?;
    interrupt::sleep(amounts.time / 2)?;
    if turn == Turn::Upgraded {
        errors.extend(node.upgrade().err().map(|error| format!("{error:#}")));
    }
    interrupt::sleep(amounts.time / 2)?;
    let written = writers.stop(amounts.warm_up);
    anyhow::ensure!(!written.ms.is_empty(), "no victim wrote anything: {:?}", written.errors);
    report.series.add_round(WRITE, turn.name(), written.ms);
    written.mb_per_s.into_iter().for_each(|rate| report.series.add(HOG, turn.name(), rate));
    errors.extend(written.errors);
    Ok(errors)
}

/// Unmounts the volume of each victim in turn.
fn unmount(node: &Node, amounts: Amounts, turn: Turn, report: &mut Report) -> Result<Vec<String>> {
    let mut writers = Writers::default();
    if turn == Turn::UmountsBeside {
        writers.start_hog(node)?;
        writers.start_victims(node)?;
    }
    if turn == Turn::UmountsOutside {
        writers.start_outside(node)?;
        interrupt::sleep(amounts.warm_up)?;
    }
    let mut ms = Vec::new();
    for victim in node.victims() {
        interrupt::check()?;
        let wrote = writers.stop_victim(victim)?;
        ms.push(node.unmount_and_mount(victim)?);
        if wrote {
            writers.start_victim(node, victim)?;
        }
    }
    report.series.add_round(UMOUNT, turn.name(), ms);
    Ok(writers.stop(Duration::ZERO).errors)
}

/// Adds the tables, plots and targets.
fn publish(amounts: Amounts, report: &mut Report) {
    let series = &report.series;
    let by = |row, turn: Turn, alone: Turn, share| -> Option<Estimate> {
        series.of(row, turn.name()).quantile_by(series.of(row, alone.name()), share).filter(|_| turn != alone)
    };
    let errors = |turn: Turn| series.of(ERRORS, turn.name()).all().iter().sum::<f64>();
    let title = format!("Write of 64 KiB and fsync of {} pods, all rounds", amounts.pods - 1);
    let mut writes = Table::new(title, " | writes | p50 ms | p99 | max | p99 by alone | hog MB/s | errors");
    for turn in WRITES {
        let ms = series.of(WRITE, turn.name());
        let row = writes.row(turn.name()).text(ms.count()).figures(ms.quantiles([0.5, 0.99, 1.0]));
        let row = row.estimate(by(WRITE, turn, Turn::Alone, 0.99)).figure(series.median(HOG, turn.name()));
        row.text(errors(turn));
    }
    let columns = " | unmounts | p50 ms | p95 | max | p50 by alone | p95 by alone | errors";
    let mut umounts = Table::new("Unmount of a pod's volume with 64 KiB unwritten, all rounds", columns);
    for turn in UMOUNTS {
        let ms = series.of(UMOUNT, turn.name());
        let row = umounts.row(turn.name()).text(ms.count()).figures(ms.quantiles([0.5, 0.95, 1.0]));
        let by_alone = [0.5, 0.95].map(|share| by(UMOUNT, turn, Turn::UmountsAlone, share));
        by_alone.into_iter().fold(row, |row, ratio| row.estimate(ratio)).text(errors(turn));
    }
    let fsync = by(WRITE, Turn::Beside, Turn::Alone, 0.99);
    let umount = by(UMOUNT, Turn::UmountsBeside, Turn::UmountsAlone, 0.95);
    let failed = Estimate::exactly(Turn::ALL.into_iter().map(errors).sum());
    let p99 = WRITES.map(|turn| (turn.name(), series.of(WRITE, turn.name()).quantile(0.99)));
    report.finding(Source::Ours, "p99 of write and fsync in ms", p99);
    report.table(writes);
    report.table(umounts);
    report.curves("Write of 64 KiB and fsync", "milliseconds", WRITE, WRITES.map(Turn::name));
    report.curves("Unmount of a pod's volume", "milliseconds", UMOUNT, UMOUNTS.map(Turn::name));
    report.target("fsync p99 beside the hog by alone", AtMost(1.2), fsync);
    report.target("unmount p95 while other pods write by alone", AtMost(1.2), umount);
    report.target("errors of programs, with an upgrade in each round", AtMost(0.0), failed);
    report.note(format!(
        "{} pods, each with a volume in one daemon with --keep, a limit of 64 MiB, and a cgroup with the name that a kubelet gives it. \
         Victims write 64 KiB and fsync every 200 ms; the hog overwrites its file in blocks of 1 MiB. The program outside does the \
         same with a file of the disk itself, through the kernel's page cache. By alone: the quantile of all \
         rounds divided by the same of the turns alone, 95 % intervals.",
        amounts.pods
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_turns_are_measured_without_errors_and_nothing_stays() {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let time = Duration::from_millis(400);
        let amounts = Amounts { pods: 3, cache_mib: 64, hog_bytes: 64 << 20, warm_up: time, time };
        let mut report = Report::of_test("node");
        assert_eq!(measure(2, amounts, &home, &mut report).unwrap(), [""; 0]);
        for (row, turn) in WRITES.map(|turn| (WRITE, turn)).into_iter().chain(UMOUNTS.map(|turn| (UMOUNT, turn))) {
            let count = report.series.of(row, turn.name()).count();
            assert!(count >= 4, "{}: {count}", turn.name());
        }
        assert_eq!(report.series.of(UMOUNT, Turn::UmountsBeside.name()).count(), 4);
        home.assert_nothing_is_mounted();
        publish(amounts, &mut report);
        report.assert_page_has(&["beside it, daemon upgraded", "the other pods write", "errors of programs", "<svg"]);
    }
}

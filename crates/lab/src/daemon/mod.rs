//! `daemon`: the cost of a volume of `slackwater daemon` beside a thousand others, and of an unmount beside tenants that
//! come and go on other volumes.
//!
//! *Many volumes*: a daemon with a thousand volumes, beside one with a single volume. Small writes go to a file of the only
//! volume, to a file of one of the thousand, and to a file of each in random order. The same with as many files in one
//! volume separates the cost of files from that of volumes. The same with mounts of a server that does nothing shows the
//! kernel's part. Then come requests over the socket, and what the idle process uses.
//!
//! *Unmounts*: on four volumes programs write synchronously to one file, one after another: each in a new cgroup that is
//! removed afterwards (*churn*), or all in the same cgroup (*control*). Meanwhile volumes are mounted and unmounted over the
//! socket. The same on a second daemon with one more volume, whose source does not answer.
//!
//! *Hung neighbours*: writes and fsyncs on the only volume of a daemon, and on a volume beside nine whose source does not
//! answer.

mod bare;
mod hung;
mod many;
mod neighbours;
mod process;
mod results;
mod testbed;

use std::path::Path;

use anyhow::{Context, Result};

use self::hung::Hung;
use self::testbed::{Testbed, Umount};
use crate::cgroups::Hierarchy;
use crate::fuse::slackwater;
use crate::harness::{Cells, Options, Report, Samples, axis, rounds};
use crate::interrupt;
use crate::programs::Tenants;
use crate::scratch::Scratch;

pub(crate) use self::bare::{BareArguments, run_bare};
pub(crate) use self::process::{Daemon, Volume};

const ABOUT: &str = "The cost of a volume in a process that has a thousand others, and how long the unmount of a volume takes there while \
     tenants come and go on other volumes, and while a source hangs.";

/// How much of the unmounts.
#[derive(Copy, Clone, Debug)]
struct Amounts {
    /// Blocks of 4 KiB that a program writes.
    blocks: u64,
    /// In a turn.
    umounts: usize,
}

impl Amounts {
    fn of(options: &Options) -> Self {
        Self { blocks: options.pick(256, 16), umounts: options.pick(20, 4) }
    }
}

axis! {
    /// The load beside the unmounts.
    enum Cell {
        Control = "control",
        Churn = "churn",
        HungControl = "control, a source hangs",
        HungChurn = "churn, a source hangs",
    }
}

impl Cell {
    /// Control and churn.
    fn of(beside_hung: bool) -> [Self; 2] {
        if beside_hung { [Self::HungControl, Self::HungChurn] } else { [Self::Control, Self::Churn] }
    }

    fn is_churn(self) -> bool {
        matches!(self, Self::Churn | Self::HungChurn)
    }

    fn beside_hung(self) -> bool {
        matches!(self, Self::HungControl | Self::HungChurn)
    }
}

/// The unmounts of a cell, including those that failed.
#[derive(Default)]
struct Seen {
    umount_ms: Samples,
    mount_ms: Samples,
    failures: Vec<String>,
    /// Programs that have written in the background.
    programs: u64,
}

type Umounts = Cells<Cell, Seen>;

impl Seen {
    fn add_round(&mut self, umounts: Vec<Umount>, programs: u64) {
        self.umount_ms.push_round(umounts.iter().map(|umount| umount.umount_ms).collect());
        self.mount_ms.push_round(umounts.iter().map(|umount| umount.mount_ms).collect());
        self.failures.extend(umounts.into_iter().filter_map(|umount| umount.failure));
        self.programs += programs;
    }
}

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let program = slackwater()?;
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("daemon", ABOUT, options);
    let many = many::measure(options.rounds(), options.seed, many::Amounts::of(options), &home, &program)?;
    results::report_many(&many, &mut report);
    let amounts = Amounts::of(options);
    let umounts = measure_umounts(options.rounds(), amounts, &home, &program)?;
    results::report_umounts(&umounts, amounts.blocks, &mut report);
    if let Some(bindfs) = Hung::program() {
        let amounts = neighbours::Amounts::of(options);
        let seen = neighbours::measure(options.rounds(), amounts, &home, (&program, &bindfs))?;
        neighbours::report(&seen, &mut report);
    } else {
        report.note("bindfs is not installed: no rows beside a source that hangs.");
    }
    Ok(report)
}

/// Gives each cell its turn in every round.
fn measure_umounts(count: u32, amounts: Amounts, home: &Scratch, program: &Path) -> Result<Umounts> {
    let cgroups = Hierarchy::of_tenants().context("each tenant needs a cgroup of its own")?;
    let mut testbeds = vec![Testbed::new(program, home.subdirectory("answering")?, &cgroups, None)?];
    if let Some(bindfs) = Hung::program() {
        testbeds.push(Testbed::new(program, home.subdirectory("hung")?, &cgroups, Some(&bindfs))?);
    }
    let turns: Vec<(&Testbed, Cell)> =
        testbeds.iter().flat_map(|testbed| Cell::of(testbed.has_hung()).map(|cell| (testbed, cell))).collect();
    let mut umounts = Umounts::default();
    rounds::run("unmounts", count, &turns, |_, (testbed, cell)| {
        let unmount_all = || {
            let one = |_| interrupt::check().and_then(|()| testbed.mount_and_umount());
            (0..amounts.umounts).map(one).collect::<Result<Vec<_>>>()
        };
        let tenants = if cell.is_churn() { Tenants::Fresh } else { Tenants::Steady };
        let (seen, programs) = testbed.under(tenants, amounts.blocks, unmount_all).with_context(|| cell.name())?;
        umounts.entry(*cell).add_round(seen, programs);
        Ok(())
    })?;
    testbeds.into_iter().try_for_each(Testbed::end)?;
    Ok(umounts)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    /// Mounts in `home` that still exist.
    fn left(home: &Scratch) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let home = home.path().display().to_string();
        mounts.lines().filter(|line| line.contains(&home)).map(str::to_owned).collect()
    }

    #[test]
    fn writes_and_requests_are_measured_and_nothing_stays_mounted() {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let program = slackwater().unwrap();
        let amounts = many::Amounts { volumes: 3, writes: 20, settle: Duration::ZERO, idle: Duration::ZERO };
        let records = many::measure(2, 1, amounts, &home, &program).unwrap();
        assert_eq!((records.alone.volumes, records.many.volumes), (1, 3));
        assert!(records.many.descriptors > records.alone.descriptors);
        assert!(many::ASKED.iter().all(|row| records.series.of(row, many::MANY).count() == 2));
        assert_eq!(left(&home), [""; 0]);
        // Everything was written back.
        for number in 0..3 {
            let file = home.path().join(format!("many-volumes/volume-{number}/source/file-{number}"));
            let bytes = fs::read(file).unwrap();
            assert!(bytes.len() == 4 * 4096 && bytes.iter().all(|byte| [2, 7].contains(byte)), "{number}");
        }
        let mut report = Report::of_test("daemon");
        results::report_many(&records, &mut report);
        report.assert_page_has(&[
            "2 CPUs: bare server, a file of each",
            "descriptors, idle",
            "list over the socket, ms, of many",
        ]);
    }

    #[test]
    fn every_unmount_ends_in_each_cell_and_nothing_stays_mounted() {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let program = slackwater().unwrap();
        let umounts = measure_umounts(1, Amounts { blocks: 2, umounts: 2 }, &home, &program).unwrap();
        let has_hung = Hung::program().is_some();
        for cell in Cell::ALL.into_iter().filter(|cell| has_hung || !cell.beside_hung()) {
            let seen = umounts.of(&cell).unwrap();
            assert_eq!((seen.umount_ms.count(), &seen.failures[..]), (2, &[][..]), "{}", cell.name());
            // Two of each of the four writers before the first unmount.
            assert!(seen.programs >= 8, "{}", seen.programs);
        }
        assert_eq!(left(&home), [""; 0]);
        let mut report = Report::of_test("daemon");
        results::report_umounts(&umounts, 2, &mut report);
        report.assert_page_has(&[
            "control",
            "all sources answer",
            "<svg",
            "churn: p95 by the control",
            "failed, churn",
        ]);
    }

    #[test]
    fn failed_unmounts_are_counted_and_keep_their_times() {
        let umount =
            |umount_ms, failure: Option<&str>| Umount { mount_ms: 1.0, umount_ms, failure: failure.map(str::to_owned) };
        let mut seen = Seen::default();
        seen.add_round(vec![umount(3.0, None), umount(99.0, Some("no"))], 5);
        assert_eq!((seen.failures.len(), seen.programs, seen.umount_ms.all()), (1, 5, vec![3.0, 99.0]));
    }

    #[test]
    fn a_volume_is_measured_beside_others_that_hang() {
        let Some(bindfs) = Hung::program() else { return };
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let amounts = neighbours::Amounts { open_files: 2, writes: 3, syncs: 2 };
        let seen = neighbours::measure(2, amounts, &home, (&slackwater().unwrap(), &bindfs)).unwrap();
        assert_eq!(left(&home), [""; 0]);
        let mut report = Report::of_test("daemon");
        neighbours::report(&seen, &mut report);
        report.assert_page_has(&["beside nine that hang", "64 KiB and fsync", "p99 by alone"]);
    }

    /// As after an interrupt, when nothing is ended in order.
    #[test]
    fn dropping_a_hung_source_removes_everything() {
        let Some(bindfs) = Hung::program() else { return };
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let config = "cache = \"64MiB\"\ndirty-expire = \"1s\"\n";
        let daemon = process::Daemon::start(&slackwater().unwrap(), config, &[], "KILL").unwrap();
        let hung = Hung::new(&bindfs, &daemon, home.path(), (2, 1)).unwrap();
        hung.probe().unwrap();
        drop(hung);
        drop(daemon);
        let path = home.path().to_path_buf();
        drop(home);
        assert!(!path.exists());
    }
}

//! `daemon`: what a volume of `slackwater daemon` costs beside a thousand others, and what an unmount costs beside tenants
//! that come and go on other volumes.
//!
//! *Many volumes*: a daemon with a thousand volumes beside one with a single volume. Small writes go to a file of the only
//! volume, to one of one of the thousand, and to one of each in random order; the same of as many files in one volume, which
//! tells what is due to files and what to volumes; and of mounts whose server does nothing, which tells what of that is the
//! kernel's. Then what is asked over the socket, and what the idle process has.
//!
//! *Unmounts*: on four volumes programs write synchronously over one file, one after another, each in a cgroup that is new
//! and removed after it (*churn*), or all in the same (*control*). Beside that, volumes are mounted and unmounted over the
//! socket. The same on a second daemon with one more volume, whose source does not answer.
//!
//! *Hung neighbours*: writes and fsyncs on a volume that is the only one of its daemon, and on one beside nine volumes whose source
//! does not answer.

mod axes;
mod bare;
mod hung;
mod many;
mod neighbours;
mod process;
mod records;
mod results;
mod testbed;

use std::path::Path;

use anyhow::{Context, Result};

use self::axes::Cell;
use self::hung::Hung;
use self::records::Umounts;
use self::testbed::Testbed;
use crate::cgroups::Hierarchy;
use crate::fuse::slackwater;
use crate::options::Options;
use crate::report::Report;
use crate::scratch::Scratch;
use crate::{interrupt, rounds};

pub(crate) use self::bare::{BareArguments, run_bare};

/// How much of the unmounts.
#[derive(Copy, Clone, Debug)]
struct Amounts {
    /// Of 4 KiB, that a program writes.
    blocks: u64,
    /// Of a turn.
    umounts: usize,
}

impl Amounts {
    fn of(options: &Options) -> Self {
        Self { blocks: options.pick(256, 16), umounts: options.pick(20, 4) }
    }
}

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let program = slackwater()?;
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("daemon", Some(&options.dir), options.seed, Some(options.rounds()));
    report.about(
        "What a volume of one process costs that has a thousand others, and how long the unmount of a volume takes there while tenants \
         come and go on other volumes, and while a source hangs.",
    );
    let many = many::measure(options.rounds(), options.seed, many::Amounts::of(options), &home, &program)?;
    results::report_many(&many, &mut report);
    let amounts = Amounts::of(options);
    let umounts = measure_umounts(options.rounds(), amounts, &home, &program)?;
    results::report_umounts(&umounts, &mut report);
    if let Some(bindfs) = Hung::program() {
        let amounts = neighbours::Amounts::of(options);
        let seen = neighbours::measure(options.rounds(), amounts, &home, (&program, &bindfs))?;
        neighbours::report(&seen, &mut report);
    }
    report.note("Small writes: medians of the rounds; by a single mount's: of the rounds' ratios, 95 % intervals; the bare server's");
    report.note("by its own. Client and server on one CPU, or on two where it says so. Nothing is written back meanwhile; at the end all is.");
    report.note(
        "A write to a file of each of many volumes takes the same system calls as any other, on what is in no cache of the",
    );
    report.note("CPU: the kernel has structures of its own for each mount, as the daemon has for each volume.");
    report.note(format!(
        "Each program beside unmounts writes {} blocks of 4 KiB, each synced. Churn: each in a new cgroup; control: all",
        amounts.blocks
    ));
    report.note("those of a volume in one. By control: of all unmounts, 95 % intervals by a bootstrap of rounds.");
    if Hung::program().is_none() {
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
    rounds::run("unmounts", count, turns.len(), |_, turn| {
        let (testbed, cell) = turns[turn];
        let unmount_all = || {
            let one = |_| interrupt::check().and_then(|()| testbed.mount_and_umount());
            (0..amounts.umounts).map(one).collect::<Result<Vec<_>>>()
        };
        let (seen, programs) = testbed.under(cell.tenants, amounts.blocks, unmount_all).with_context(|| cell.name())?;
        umounts.add_round(cell, seen, programs);
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

    /// Daemons, mounts and cgroups of this process that are still there.
    fn left(home: &Scratch) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut left: Vec<String> = mounts.lines().map(str::to_owned).collect();
        left.retain(|line| line.contains(&home.path().display().to_string()));
        left
    }

    #[test]
    fn writes_and_requests_are_measured_and_nothing_stays_mounted() {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let program = slackwater().unwrap();
        let amounts = many::Amounts { volumes: 3, writes: 20, settle: Duration::ZERO, idle: Duration::ZERO };
        let records = many::measure(2, 1, amounts, &home, &program).unwrap();
        assert_eq!((records.alone.volumes, records.many.volumes), (1, 3));
        assert!(records.many.descriptors > records.alone.descriptors);
        assert!(many::ASKED.iter().all(|row| records.series.of(row, many::MANY).len() == 2));
        assert_eq!(left(&home), [""; 0]);
        // All was brought in.
        for number in 0..3 {
            let file = home.path().join(format!("many-volumes/volume-{number}/source/file-{number}"));
            let bytes = fs::read(file).unwrap();
            assert!(bytes.len() == 4 * 4096 && bytes.iter().all(|byte| [2, 7].contains(byte)), "{number}");
        }
        let mut page = Report::new("daemon", None, 1, Some(2));
        results::report_many(&records, &mut page);
        let path = home.path().join("page.html");
        page.write_page(&path).unwrap();
        let page = fs::read_to_string(path).unwrap();
        for part in ["2 CPUs: bare server, a file of each", "descriptors, idle", "list over the socket, ms, of many"] {
            assert!(page.contains(part), "{part}");
        }
    }

    #[test]
    fn every_unmount_ends_in_each_cell_and_nothing_stays() {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let program = slackwater().unwrap();
        let umounts = measure_umounts(1, Amounts { blocks: 2, umounts: 2 }, &home, &program).unwrap();
        let has_hung = Hung::program().is_some();
        for cell in Cell::of(false).into_iter().chain(Cell::of(true).into_iter().filter(|_| has_hung)) {
            let seen = umounts.of(cell).unwrap();
            assert_eq!((seen.all_ms().len(), &seen.failures[..]), (2, &[][..]), "{}", cell.name());
            // Two of each of the four writers before the first unmount.
            assert!(seen.programs >= 8, "{}", seen.programs);
        }
        assert_eq!(left(&home), [""; 0]);
        let mut page = Report::new("daemon", None, 1, Some(1));
        results::report_umounts(&umounts, &mut page);
        let path = home.path().join("page.html");
        page.write_page(&path).unwrap();
        let page = fs::read_to_string(path).unwrap();
        for part in ["control", "all sources answer", "<svg", "churn: p95 by the control", "did not end, churn"] {
            assert!(page.contains(part), "{part}");
        }
    }

    #[test]
    fn a_volume_is_measured_beside_others_that_hang() {
        let Some(bindfs) = Hung::program() else { return };
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let amounts = neighbours::Amounts { open_files: 2, writes: 3, syncs: 2 };
        let seen = neighbours::measure(2, amounts, &home, (&slackwater().unwrap(), &bindfs)).unwrap();
        assert_eq!(left(&home), [""; 0]);
        let mut page = Report::new("daemon", None, 1, Some(2));
        neighbours::report(&seen, &mut page);
        let path = home.path().join("page.html");
        page.write_page(&path).unwrap();
        let page = fs::read_to_string(path).unwrap();
        for part in ["beside nine that hang", "64 KiB and fsync", "p99 by alone"] {
            assert!(page.contains(part), "{part}");
        }
    }

    /// As after an interrupt: nothing is ended in order.
    #[test]
    fn what_hangs_is_gone_when_it_is_dropped() {
        let Some(bindfs) = Hung::program() else { return };
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let daemon =
            process::Daemon::start(&slackwater().unwrap(), "cache = \"64MiB\"\ndirty-expire = \"1s\"\n", "KILL")
                .unwrap();
        let hung = Hung::new(&bindfs, &daemon, home.path(), (2, 1)).unwrap();
        hung.probe().unwrap();
        drop(hung);
        drop(daemon);
        let path = home.path().to_path_buf();
        drop(home);
        assert!(!path.exists());
    }
}

//! `umount`: how long an unmount takes while tenants come and go on other volumes, in four forms of the wait for switches.
//!
//! On four volumes a writer syncs every block; every few blocks it is a new tenant, and the old one goes offline. So
//! inodes are switched from wb to wb all the time. Beside that, volumes are mounted and unmounted: with such a writer of
//! their own (A), idle (B), eight idle ones at once (C). The *control* is the same writers, each one tenant all the time.
//!
//! Form, backend and length of a grace period make a [`Setting`]; each has an engine of its own, and each setting under each
//! load has a turn in every round.

mod axes;
mod kernel;
mod published;
mod records;
mod results;
mod target;
mod testbed;
mod writer;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use self::axes::{Load, Scenario, Setting};
use self::records::{Cell, Records};
use self::testbed::Testbed;
use crate::interrupt;
use crate::options::Options;
use crate::report::{Report, Source};
use crate::rounds;
use crate::scratch::Scratch;

/// How much of everything.
struct Amounts {
    /// Blocks that a tenant writes.
    blocks: u64,
    /// A turn spreads the most number of unmounts of a scenario over this time, and stops there if they take longer, but not
    /// before the least number. In a row all of them would see the scheduler do the same.
    time: Duration,
    least: [usize; 3],
    most: [usize; 3],
}

impl Amounts {
    fn of(options: &Options) -> Self {
        if options.quick {
            Self { blocks: 32, time: Duration::from_millis(12), least: [1, 3, 1], most: [10, 20, 5] }
        } else {
            Self { blocks: 256, time: Duration::from_millis(250), least: [2, 10, 2], most: [20, 150, 10] }
        }
    }
}

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let amounts = Amounts::of(options);
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("umount", Some(&options.dir), options.seed, Some(options.rounds()));
    report.about(
        "How long an unmount takes while tenants come and go on other volumes, in the four forms that the wait for switches has had in \
         Linux, all of them in this engine.",
    );
    let testbeds = Setting::all().into_iter().map(|setting| Testbed::new(home.path(), setting, amounts.blocks));
    let testbeds = testbeds.collect::<Result<Vec<_>>>()?;
    let records = measure(options, &amounts, &testbeds)?;
    let dead_uses = testbeds.iter().map(|testbed| (testbed.setting, testbed.engine.dead_volume_uses()));
    let dead_uses: Vec<(Setting, u64)> = dead_uses.collect();
    results::report(&records, &dead_uses, &mut report);
    report.figure("umounts", records.json());
    report.figure("dead_uses", dead_uses.iter().map(|(_, uses)| uses).sum::<u64>());
    let tenants_left: usize = testbeds.iter().map(Testbed::tenants_left).sum();
    report.figure("tenants_left", tenants_left);
    if tenants_left != 0 {
        report.note(format!("Of {tenants_left} tenants that are offline something stays in memory."));
    }
    drop(testbeds);
    report.note(format!(
        "A tenant writes {} blocks of 4 KiB, each synced. Control: the same writers, each one tenant all the time. By control:",
        amounts.blocks
    ));
    report.note(
        "p50 of all unmounts by p50 of all, 95 % intervals by a bootstrap of rounds. Idle: no writers. Published: on 16 CPUs, \
         340 unmounts.",
    );
    match kernel::measure(options, amounts.blocks, home.path()) {
        Ok(kernel) => {
            report.table(results::kernel_table(&kernel));
            report.finding(Source::Kernel, results::kernel_finding(&kernel));
            report.figure("kernel", kernel.json());
        }
        Err(error) => {
            interrupt::check()?;
            report.note(format!("No row for the kernel's own umount(2): {error:#}."));
        }
    }
    Ok(report)
}

/// Gives every engine its turn under every load in each round.
fn measure(options: &Options, amounts: &Amounts, testbeds: &[Testbed]) -> Result<Records> {
    let turns: Vec<(&Testbed, Load)> =
        testbeds.iter().flat_map(|testbed| testbed.setting.loads().iter().map(move |load| (testbed, *load))).collect();
    let mut records = Records::default();
    rounds::run("umount", options.rounds(), turns.len(), |_, turn| {
        let (testbed, load) = turns[turn];
        measure_turn(testbed, load, amounts, &mut records).with_context(|| testbed.setting.name())
    })?;
    Ok(records)
}

/// All scenarios under `load`. A volume has a writer of its own only where there are others.
fn measure_turn(testbed: &Testbed, load: Load, amounts: &Amounts, records: &mut Records) -> Result<()> {
    let setting = testbed.setting;
    testbed.under(load, || {
        for (number, scenario) in Scenario::ALL.into_iter().enumerate() {
            if scenario == Scenario::OwnWriter && load == Load::Idle {
                continue;
            }
            let (start, mut umounts) = (Instant::now(), Vec::new());
            let (least, most) = (amounts.least[number], amounts.most[number]);
            while umounts.len() < least || umounts.len() < most && start.elapsed() < amounts.time {
                interrupt::check()?;
                let due = amounts.time * umounts.len() as u32 / most as u32;
                std::thread::sleep(due.saturating_sub(start.elapsed()));
                umounts.push(target::measure(testbed, scenario, load, amounts.blocks)?);
            }
            records.add_round(Cell { setting, load, scenario }, &umounts);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use slackwater::UmountForm;

    use super::axes::{Delay, FORMS, Place};
    use super::*;

    fn records(form: UmountForm, place: Place) -> (Records, u64) {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let setting = Setting { form, place, delay: Delay::None };
        let testbeds = [Testbed::new(home.path(), setting, 32).unwrap()];
        let amounts = Amounts { blocks: 32, time: Duration::ZERO, least: [1, 2, 1], most: [1, 2, 1] };
        let mut records = Records::default();
        for load in Load::ALL {
            measure_turn(&testbeds[0], load, &amounts, &mut records).unwrap();
        }
        (records, testbeds[0].engine.dead_volume_uses())
    }

    #[test]
    fn every_form_goes_through_every_scenario_and_the_last_waits_for_nothing() {
        for form in FORMS {
            let (records, dead_uses) = records(form, Place::Mem);
            assert_eq!(records.umounts(form), (1 + 2 + 8) * 2 + (2 + 8), "{form:?}");
            let setting = Setting { form, place: Place::Mem, delay: Delay::None };
            let waits = |load| {
                let (costs, _) = records.costs(setting, load);
                (costs.grace_periods, costs.barriers, costs.flushes)
            };
            assert_eq!((waits(Load::Control), waits(Load::Idle)), ((0, 0, 0), (0, 0, 0)), "{form:?}: no switches");
            if form == UmountForm::PerSb {
                assert_eq!(waits(Load::Churn), (0, 0, 0));
            }
            assert!(form == UmountForm::Base || dead_uses == 0, "{form:?}");
        }
    }

    #[test]
    fn directories_of_targets_are_removed() {
        let (records, _) = records(UmountForm::PerSb, Place::Dir);
        assert_eq!(records.umounts(UmountForm::PerSb), 32);
    }

    #[test]
    fn a_report_has_all_tables_plots_and_targets() {
        let (records, _) = records(UmountForm::PerSb, Place::Mem);
        let mut report = Report::new("umount", None, 1, Some(1));
        let setting = Setting { form: UmountForm::PerSb, place: Place::Mem, delay: Delay::None };
        results::report(&records, &[(setting, 0)], &mut report);
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let path = home.path().join("page.html");
        report.write_page(&path).unwrap();
        let page = std::fs::read_to_string(path).unwrap();
        for part in ["mem, 0 ms, per_sb: B p50 by the control", "Inside the drain", "<svg", "no pressure"] {
            assert!(page.contains(part), "{part}");
        }
    }
}

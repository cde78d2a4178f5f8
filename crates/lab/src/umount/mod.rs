//! `umount`: how long an unmount takes while tenants come and go on other volumes, in four forms of the wait for switches.
//!
//! On four volumes a writer syncs every block. Every few blocks it becomes a new tenant, and the old one goes offline, so
//! inodes are switched from wb to wb all the time. Meanwhile volumes are mounted and unmounted: with such a writer of their
//! own (A), idle (B), eight idle ones at once (C). The *control* is the same writers, each one tenant throughout.
//!
//! A normal grace period takes microseconds here and at least some milliseconds in a kernel. Each form is therefore measured
//! twice: as it is, and with a wait of 12 ms *injected* before each normal grace period. The milliseconds of the older forms
//! are two or three of these waits, so they are not a result. The result is the number and the order of the waits, which the
//! RCU layer logs for the thread that unmounts ([`slackwater_sync::rcu::waits_during`]).
//!
//! Form, backend and injected wait make a [`Setting`]. Each has an engine of its own, and each setting has a turn under each
//! load in every round.

mod axes;
mod kernel;
mod published;
mod results;
mod target;
mod testbed;
mod writer;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use self::axes::{Cell, Load, Scenario, Setting};
use self::target::Costs;
use self::testbed::Testbed;
use crate::harness::{Cells, Options, Report, Samples, Source, rounds};
use crate::interrupt;
use crate::scratch::Scratch;

const ABOUT: &str = "How long an unmount takes while tenants come and go on other volumes, in the four forms that the wait for switches \
     has had in Linux, all of them in this engine.";

/// How much of everything.
struct Amounts {
    /// Blocks that a tenant writes.
    blocks: u64,
    /// A turn spreads the largest number of unmounts of a scenario over this time, so that they do not all meet the
    /// scheduler in the same state. It stops then if they take longer, but not before the least number.
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

/// The unmounts of a cell.
#[derive(Default)]
struct Seen {
    /// Milliseconds of each unmount.
    ms: Samples,
    /// Microseconds of a drain that found no switch of its volume in flight: the mean of each round.
    drain_us: Samples,
    costs: Costs,
}

type Records = Cells<Cell, Seen>;

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let amounts = Amounts::of(options);
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("umount", ABOUT, options);
    let testbeds = Setting::all().into_iter().map(|setting| Testbed::new(home.path(), setting, amounts.blocks));
    let testbeds = testbeds.collect::<Result<Vec<_>>>()?;
    let turns: Vec<(&Testbed, Load)> =
        testbeds.iter().flat_map(|testbed| testbed.setting.loads().iter().map(move |load| (testbed, *load))).collect();
    let mut records = Records::default();
    rounds::run("umount", options.rounds(), &turns, |_, (testbed, load)| {
        measure_turn(testbed, *load, &amounts, &mut records).with_context(|| testbed.setting.name())
    })?;
    let dead_uses: Vec<_> =
        testbeds.iter().map(|testbed| (testbed.setting, testbed.engine.dead_volume_uses())).collect();
    results::report(&records, &dead_uses, &mut report);
    let tenants_left: usize = testbeds.iter().map(Testbed::tenants_left).sum();
    report.figure("tenants_left", tenants_left);
    if tenants_left != 0 {
        report.note(format!("{tenants_left} tenants that are offline still have something in memory."));
    }
    drop(testbeds);
    results::notes(amounts.blocks, &mut report);
    let kernel = kernel::measure(options, amounts.blocks, home.path());
    if let Some(kernel) = report.optional("the kernel's own umount(2)", kernel)? {
        report.table(results::kernel_table(&kernel));
        report.finding(Source::Kernel, results::kernel_finding(&kernel));
        report.figure("kernel", kernel.json());
    }
    Ok(report)
}

/// Measures all scenarios under `load`. Without a load no target has a writer of its own either.
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
            records.entry(Cell { setting, load, scenario }).add_round(&umounts);
        }
        Ok(())
    })
}

impl Seen {
    fn add_round(&mut self, umounts: &[target::Umounts]) {
        let times = umounts.iter().flat_map(|umount| &umount.times);
        self.ms.push_round(times.map(|time| time.as_secs_f64() * 1e3).collect());
        let mut alone = Costs::default();
        for umount in umounts {
            self.costs.add(&umount.costs);
            if umount.costs.waits == 0 {
                alone.add(&umount.costs);
            }
        }
        if alone.drains != 0 {
            self.drain_us.push(alone.time.as_secs_f64() * 1e6 / alone.drains as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use slackwater::UmountForm;
    use slackwater_sync::rcu::Wait;

    use super::axes::{FORMS, Injected, Place};
    use super::results::{by_control, costs, umounts};
    use super::target::Umounts;
    use super::*;

    fn setting(form: UmountForm, place: Place) -> Setting {
        Setting { form, place, injected: Injected::Nothing }
    }

    fn measure(form: UmountForm, place: Place) -> (Records, u64) {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let testbed = Testbed::new(home.path(), setting(form, place), 32).unwrap();
        let amounts = Amounts { blocks: 32, time: Duration::ZERO, least: [1, 2, 1], most: [1, 2, 1] };
        let mut records = Records::default();
        for load in Load::ALL {
            measure_turn(&testbed, load, &amounts, &mut records).unwrap();
            // A flusher that moves the files of tenants that have ended does so by a switch, for which the next load would wait.
            testbed.tenants_left();
        }
        (records, testbed.engine.dead_volume_uses())
    }

    #[test]
    fn every_form_does_every_scenario_and_the_last_waits_for_no_grace_period() {
        for form in FORMS {
            let (records, dead_uses) = measure(form, Place::Mem);
            assert_eq!(umounts(&records, form), (1 + 2 + 8) * 2 + (2 + 8), "{form:?}");
            let waits = |load| {
                let costs = costs(&records, setting(form, Place::Mem), load);
                (costs.all_rcu_waits(), costs.flushes)
            };
            assert_eq!((waits(Load::Control), waits(Load::Idle)), ((0, 0), (0, 0)), "{form:?}: no switches");
            assert!(form != UmountForm::PerSb || waits(Load::Churn) == (0, 0));
            assert!(form == UmountForm::Base || dead_uses == 0, "{form:?}");
        }
    }

    #[test]
    fn directories_of_targets_are_removed() {
        let (records, _) = measure(UmountForm::PerSb, Place::Dir);
        assert_eq!(umounts(&records, UmountForm::PerSb), 32);
    }

    #[test]
    fn a_report_has_all_tables_plots_and_targets() {
        let (records, _) = measure(UmountForm::PerSb, Place::Mem);
        let mut report = Report::of_test("umount");
        results::report(&records, &[(setting(UmountForm::PerSb, Place::Mem), 0)], &mut report);
        report.assert_page_has(&[
            "mem, per_sb, 0 ms injected: B p50 by the control",
            "waits logged by the RCU layer",
            "Inside the drain",
            "<svg",
            "no load",
        ]);
    }

    #[test]
    fn quantiles_are_compared_and_drains_that_waited_are_counted_separately() {
        let umount = |ms, waits, drain_us| {
            let orders = BTreeMap::from([(vec![Wait::Normal, Wait::Barrier], 1)]);
            let costs = Costs { drains: 1, waits, time: Duration::from_micros(drain_us), orders, ..Costs::default() };
            Umounts { times: vec![Duration::from_millis(ms)], costs }
        };
        let setting = setting(UmountForm::PerSb, Place::Mem);
        let cell = |load| Cell { setting, load, scenario: Scenario::Quiet };
        let mut records = Records::default();
        for round in [2, 8] {
            records.entry(cell(Load::Churn)).add_round(&[umount(3 * round, 0, 1), umount(99 * round, 1, 5000)]);
            records.entry(cell(Load::Control)).add_round(&[umount(round, 0, 1), umount(9 * round, 0, 3)]);
        }
        let ratio = |scenario, share| by_control(&records, setting, scenario, share).map(|ratio| ratio.value);
        assert_eq!((ratio(Scenario::Quiet, 0.5), ratio(Scenario::Quiet, 0.95)), (Some(3.0), Some(11.0)));
        assert_eq!(ratio(Scenario::OwnWriter, 0.5), None);
        let drain_us = |load| records.of(&cell(load)).unwrap().drain_us.all();
        assert_eq!((drain_us(Load::Churn), drain_us(Load::Control)), (vec![1.0, 1.0], vec![2.0, 2.0]));
        let costs = costs(&records, setting, Load::Churn);
        assert_eq!((umounts(&records, UmountForm::PerSb), costs.waits, costs.rcu_waits(Wait::Barrier)), (8, 2, 4));
        assert_eq!(costs.all_rcu_waits(), 8);
    }
}

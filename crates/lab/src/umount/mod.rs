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

mod results;
mod testbed;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use slackwater::UmountForm;

use self::testbed::{Costs, Testbed, Umounts};
use crate::harness::{Options, Report, amounts, axis, ms, rounds};
use crate::interrupt;
use crate::scratch::Scratch;

/// The forms, in the order of their history.
const FORMS: [UmountForm; 4] = [UmountForm::Base, UmountForm::Race, UmountForm::RmBarrier, UmountForm::PerSb];

/// The name of a form in tables, plots, targets and JSON.
fn name(form: UmountForm) -> &'static str {
    match form {
        UmountForm::Base => "base",
        UmountForm::Race => "race",
        UmountForm::RmBarrier => "rmbarrier",
        UmountForm::PerSb => "per_sb",
    }
}

axis! {
    /// Where the data of all volumes is stored.
    enum Place {
        Mem = "mem",
        /// Directories on the disk.
        Dir = "dir",
    }
}

axis! {
    /// The wait that is injected before each normal grace period, for others to join.
    enum Injected {
        Nothing = "0 ms injected",
        /// Three ticks of a kernel with 250 per second: what a normal grace period takes there at least.
        ThreeTicks = "12 ms injected",
    }
}

axis! {
    /// The load on other volumes.
    enum Load {
        /// Writers, each of which becomes a new tenant every few blocks.
        Churn = "churn",
        /// The same writers, each one tenant throughout: no inode is switched.
        Control = "control",
        Idle = "idle",
    }
}

axis! {
    /// The target of the unmount, named by its letter in the published tables.
    enum Scenario {
        /// A volume that had a writer of its own until just before.
        OwnWriter = "A",
        /// A volume that one tenant wrote to and closed.
        Quiet = "B",
        /// Eight of those at once.
        EightQuiet = "C",
    }
}

impl Scenario {
    fn title(self) -> &'static str {
        match self {
            Self::OwnWriter => "a target with a writer of its own",
            Self::Quiet => "an idle target",
            Self::EightQuiet => "eight idle targets at once",
        }
    }
}

/// An engine.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
struct Setting {
    form: UmountForm,
    place: Place,
    injected: Injected,
}

impl Setting {
    /// All settings; those of a form with and without the injected wait are beside each other.
    fn all() -> Vec<Self> {
        let forms = |place| FORMS.into_iter().map(move |form| (place, form));
        let all = Place::ALL.into_iter().flat_map(forms);
        all.flat_map(|(place, form)| Injected::ALL.map(|injected| Self { form, place, injected })).collect()
    }

    /// The loads it is measured under. Without writers there are no switches, so an unmount waits for no grace period and the
    /// injected wait makes no difference.
    fn loads(self) -> &'static [Load] {
        match self.injected {
            Injected::Nothing => &Load::ALL,
            Injected::ThreeTicks => &[Load::Churn, Load::Control],
        }
    }

    fn name(self) -> String {
        format!("{}, {}, {}", self.place.name(), name(self.form), self.injected.name())
    }

    /// The row of the milliseconds of each unmount; its subjects are the loads.
    fn umounts(self, scenario: Scenario) -> String {
        format!("{}, {}: unmount ms", self.name(), scenario.name())
    }

    /// The row of the microseconds of a drain that found no switch of its volume in flight: the mean of each round.
    fn drains(self, scenario: Scenario) -> String {
        format!("{}, {}: drain with nothing in flight, us", self.name(), scenario.name())
    }
}

amounts! {
    /// How much of everything.
    struct Amounts {
        /// Blocks that a tenant writes.
        blocks: u64 = 256, 32;
        /// A turn spreads the largest number of unmounts of a scenario over this time, so that they do not all meet the
        /// scheduler in the same state. It stops then if they take longer, but not before the least number.
        time: Duration = Duration::from_millis(250), Duration::from_millis(12);
        least: [usize; 3] = [2, 10, 2], [1, 3, 1];
        most: [usize; 3] = [20, 150, 10], [10, 20, 5];
    }
}

/// The waits of the unmounts of all scenarios together, by setting and load.
#[derive(Default)]
struct Records(BTreeMap<(String, &'static str), Costs>);

impl Records {
    fn costs(&self, setting: Setting, load: Load) -> Costs {
        self.0.get(&(setting.name(), load.name())).cloned().unwrap_or_default()
    }

    /// Unmounts of engines with `form`.
    fn umounts(&self, form: UmountForm) -> u64 {
        let settings = Setting::all().into_iter().filter(|setting| setting.form == form);
        settings.flat_map(|setting| Load::ALL.map(|load| self.costs(setting, load).drains)).sum()
    }

    fn add(&mut self, setting: Setting, load: Load, scenario: Scenario, umounts: &[Umounts], report: &mut Report) {
        let times = umounts.iter().flat_map(|umount| &umount.times).map(|time| ms(*time)).collect();
        report.series.add_round(&setting.umounts(scenario), load.name(), times);
        let (costs, mut alone) = (self.0.entry((setting.name(), load.name())).or_default(), Costs::default());
        for umount in umounts {
            costs.add(&umount.costs);
            if umount.costs.waits == 0 {
                alone.add(&umount.costs);
            }
        }
        if alone.drains != 0 {
            let us = alone.time.as_secs_f64() * 1e6 / alone.drains as f64;
            report.series.add(&setting.drains(scenario), load.name(), us);
        }
    }
}

/// Runs the experiment.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let amounts = Amounts::of(options);
    let home = Scratch::in_folder(&options.dir)?;
    let testbeds = Setting::all().into_iter().map(|setting| Testbed::new(home.path(), setting, amounts.blocks));
    let testbeds = testbeds.collect::<Result<Vec<_>>>()?;
    let turns: Vec<(&Testbed, Load)> =
        testbeds.iter().flat_map(|testbed| testbed.setting.loads().iter().map(move |load| (testbed, *load))).collect();
    let mut records = Records::default();
    rounds::run("umount", options.rounds(), &turns, |_, (testbed, load)| {
        measure_turn(testbed, *load, amounts, &mut records, report).with_context(|| testbed.setting.name())
    })?;
    let dead_uses: Vec<_> =
        testbeds.iter().map(|testbed| (testbed.setting, testbed.engine.dead_volume_uses())).collect();
    results::publish(&records, &dead_uses, amounts.blocks, report);
    let tenants_left: usize = testbeds.iter().map(Testbed::tenants_left).sum();
    report.figure("tenants_left", tenants_left);
    if tenants_left != 0 {
        report.note(format!("{tenants_left} tenants that are offline still have something in memory."));
    }
    Ok(())
}

/// Measures all scenarios under `load`. Without a load no target has a writer of its own either.
fn measure_turn(
    testbed: &Testbed,
    load: Load,
    amounts: Amounts,
    records: &mut Records,
    report: &mut Report,
) -> Result<()> {
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
                umounts.push(testbed.measure(scenario, load, amounts.blocks)?);
            }
            records.add(testbed.setting, load, scenario, &umounts, report);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use slackwater_sync::rcu::Wait;

    use super::results::by_control;
    use super::*;

    fn setting(form: UmountForm, place: Place) -> Setting {
        Setting { form, place, injected: Injected::Nothing }
    }

    fn measure(form: UmountForm, place: Place) -> (Records, Report, u64) {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let testbed = Testbed::new(home.path(), setting(form, place), 32).unwrap();
        let amounts = Amounts { blocks: 32, time: Duration::ZERO, least: [1, 2, 1], most: [1, 2, 1] };
        let (mut records, mut report) = (Records::default(), Report::of_test("umount"));
        for load in Load::ALL {
            measure_turn(&testbed, load, amounts, &mut records, &mut report).unwrap();
            // A flusher that moves the files of tenants that have ended does so by a switch, for which the next load would wait.
            testbed.tenants_left();
        }
        (records, report, testbed.engine.dead_volume_uses())
    }

    #[test]
    fn every_form_does_every_scenario_and_the_last_waits_for_no_grace_period() {
        for form in FORMS {
            let (records, _, dead_uses) = measure(form, Place::Mem);
            assert_eq!(records.umounts(form), (1 + 2 + 8) * 2 + (2 + 8), "{form:?}");
            let waits = |load| {
                let costs = records.costs(setting(form, Place::Mem), load);
                (costs.all_rcu_waits(), costs.flushes)
            };
            assert_eq!((waits(Load::Control), waits(Load::Idle)), ((0, 0), (0, 0)), "{form:?}: no switches");
            assert!(form != UmountForm::PerSb || waits(Load::Churn) == (0, 0));
            assert!(form == UmountForm::Base || dead_uses == 0, "{form:?}");
        }
    }

    #[test]
    fn directories_of_targets_are_removed() {
        let (records, ..) = measure(UmountForm::PerSb, Place::Dir);
        assert_eq!(records.umounts(UmountForm::PerSb), 32);
    }

    #[test]
    fn a_report_has_all_tables_plots_and_targets() {
        let (records, mut report, _) = measure(UmountForm::PerSb, Place::Mem);
        results::publish(&records, &[(setting(UmountForm::PerSb, Place::Mem), 0)], 32, &mut report);
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
        let (setting, quiet) = (setting(UmountForm::PerSb, Place::Mem), Scenario::Quiet);
        let (mut records, mut report) = (Records::default(), Report::of_test("umount"));
        for round in [2, 8] {
            let churn = [umount(3 * round, 0, 1), umount(99 * round, 1, 5000)];
            records.add(setting, Load::Churn, quiet, &churn, &mut report);
            let control = [umount(round, 0, 1), umount(9 * round, 0, 3)];
            records.add(setting, Load::Control, quiet, &control, &mut report);
        }
        let ratio = |scenario, share| by_control(&report.series, setting, scenario, share).map(|ratio| ratio.value);
        assert_eq!((ratio(quiet, 0.5), ratio(quiet, 0.95)), (Some(3.0), Some(11.0)));
        assert_eq!(ratio(Scenario::OwnWriter, 0.5), None);
        let drain_us = |load: Load| report.series.of(&setting.drains(quiet), load.name()).all();
        assert_eq!((drain_us(Load::Churn), drain_us(Load::Control)), (vec![1.0, 1.0], vec![2.0, 2.0]));
        let costs = records.costs(setting, Load::Churn);
        assert_eq!((records.umounts(UmountForm::PerSb), costs.waits, costs.rcu_waits(Wait::Barrier)), (8, 2, 4));
        assert_eq!(costs.all_rcu_waits(), 8);
    }
}

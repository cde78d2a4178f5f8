//! What was seen of all unmounts, by what was varied.

use slackwater::UmountForm;

use super::axes::{Load, Scenario, Setting, name};
use super::target::{Costs, Umounts};
use crate::statistics::{Estimate, quantile_ratio_estimate};

/// What unmounts have in common.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Cell {
    pub(crate) setting: Setting,
    pub(crate) load: Load,
    pub(crate) scenario: Scenario,
}

/// The unmounts of a cell.
#[derive(Default)]
pub(crate) struct Seen {
    /// Milliseconds of each, by round.
    rounds: Vec<Vec<f64>>,
    /// Microseconds of a drain that found no switch of its volume in flight: the mean of a round.
    pub(crate) drain_us: Vec<f64>,
    pub(crate) costs: Costs,
    pub(crate) busy: u64,
}

/// All cells.
#[derive(Default)]
pub(crate) struct Records(Vec<(Cell, Seen)>);

impl Records {
    /// Adds a round of `cell`.
    pub(crate) fn add_round(&mut self, cell: Cell, umounts: &[Umounts]) {
        let at = self.0.iter().position(|(other, _)| *other == cell).unwrap_or_else(|| {
            self.0.push((cell, Seen::default()));
            self.0.len() - 1
        });
        let seen = &mut self.0[at].1;
        let (mut ms, mut alone) = (Vec::new(), Costs::default());
        for umount in umounts {
            ms.extend(umount.times.iter().map(|time| time.as_secs_f64() * 1e3));
            seen.costs += umount.costs;
            seen.busy += umount.busy;
            if umount.costs.waits == 0 {
                alone += umount.costs;
            }
        }
        seen.rounds.push(ms);
        if alone.drains != 0 {
            seen.drain_us.push(alone.time.as_secs_f64() * 1e6 / alone.drains as f64);
        }
    }

    /// None if the cell was not measured.
    pub(crate) fn of(&self, cell: Cell) -> Option<&Seen> {
        self.0.iter().find(|(other, _)| *other == cell).map(|(_, seen)| seen)
    }

    /// Unmounts of engines with `form`.
    pub(crate) fn umounts(&self, form: UmountForm) -> u64 {
        self.0.iter().filter(|(cell, _)| cell.setting.form == form).map(|(_, seen)| seen.costs.drains).sum()
    }

    /// All scenarios together.
    pub(crate) fn costs(&self, setting: Setting, load: Load) -> (Costs, u64) {
        let (mut costs, mut busy) = (Costs::default(), 0);
        for seen in Scenario::ALL.iter().filter_map(|scenario| self.of(Cell { setting, load, scenario: *scenario })) {
            costs += seen.costs;
            busy += seen.busy;
        }
        (costs, busy)
    }

    /// A quantile under churn by the same under the control.
    pub(crate) fn by_control(&self, setting: Setting, scenario: Scenario, share: f64) -> Option<Estimate> {
        let of = |load| self.of(Cell { setting, load, scenario }).map(|seen| &seen.rounds);
        Some(quantile_ratio_estimate(of(Load::Churn)?, of(Load::Control)?, share))
    }

    /// Everything, for other programs.
    pub(crate) fn json(&self) -> serde_json::Value {
        let one = |(cell, seen): &(Cell, Seen)| {
            serde_json::json!({
                "form": name(cell.setting.form), "backend": cell.setting.place.name(),
                "grace_period_delay_ms": cell.setting.delay.time().as_millis() as u64,
                "load": cell.load.name(), "scenario": cell.scenario.letter(),
                "drains": seen.costs.drains, "grace_periods": seen.costs.grace_periods,
                "barriers": seen.costs.barriers, "flushes": seen.costs.flushes, "waits": seen.costs.waits,
                "drain_total_ms": seen.costs.time.as_secs_f64() * 1e3, "busy": seen.busy,
                "ms_by_round": seen.rounds,
            })
        };
        self.0.iter().map(one).collect()
    }
}

impl Seen {
    /// Milliseconds of each unmount.
    pub(crate) fn all_ms(&self) -> Vec<f64> {
        self.rounds.concat()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::axes::{Delay, Place};
    use super::*;

    fn umount(ms: u64, waits: u64, drain_us: u64) -> Umounts {
        let costs = Costs { drains: 1, waits, time: Duration::from_micros(drain_us), ..Costs::default() };
        Umounts { times: vec![Duration::from_millis(ms)], costs, busy: 0 }
    }

    #[test]
    fn quantiles_are_compared_and_drains_that_waited_are_set_apart() {
        let setting = Setting { form: UmountForm::PerSb, place: Place::Mem, delay: Delay::None };
        let cell = |load| Cell { setting, load, scenario: Scenario::Quiet };
        let mut records = Records::default();
        for round in [2, 8] {
            records.add_round(cell(Load::Churn), &[umount(3 * round, 0, 1), umount(99 * round, 1, 5000)]);
            records.add_round(cell(Load::Control), &[umount(round, 0, 1), umount(9 * round, 0, 3)]);
        }
        assert_eq!(records.by_control(setting, Scenario::Quiet, 0.5).unwrap().value, 3.0);
        assert_eq!(records.by_control(setting, Scenario::Quiet, 0.95).unwrap().value, 11.0);
        assert!(records.by_control(setting, Scenario::OwnWriter, 0.5).is_none());
        assert_eq!(records.of(cell(Load::Churn)).unwrap().drain_us, [1.0, 1.0]);
        assert_eq!(records.of(cell(Load::Control)).unwrap().drain_us, [2.0, 2.0]);
        assert_eq!(records.umounts(UmountForm::PerSb), 8);
        assert_eq!(records.costs(setting, Load::Churn).0.waits, 2);
    }
}

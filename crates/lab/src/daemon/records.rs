//! What was seen of all unmounts, by what was beside.

use super::axes::Cell;
use super::testbed::Umount;
use crate::programs::Tenants;
use crate::statistics::{Estimate, quantile_ratio_estimate};

/// The unmounts of a cell.
#[derive(Default)]
pub(super) struct Seen {
    /// Milliseconds of each, by round.
    rounds: Vec<Vec<f64>>,
    pub(super) mount_ms: Vec<f64>,
    /// Why some did not end.
    pub(super) failures: Vec<String>,
    /// That wrote in the background.
    pub(super) programs: u64,
}

/// All cells.
#[derive(Default)]
pub(super) struct Umounts(Vec<(Cell, Seen)>);

impl Umounts {
    /// Adds a turn of `cell`, beside which so many programs have run.
    pub(super) fn add_round(&mut self, cell: Cell, umounts: Vec<Umount>, programs: u64) {
        let at = self.0.iter().position(|(other, _)| *other == cell).unwrap_or_else(|| {
            self.0.push((cell, Seen::default()));
            self.0.len() - 1
        });
        let seen = &mut self.0[at].1;
        seen.rounds.push(umounts.iter().map(|umount| umount.umount_ms).collect());
        seen.mount_ms.extend(umounts.iter().map(|umount| umount.mount_ms));
        seen.failures.extend(umounts.into_iter().filter_map(|umount| umount.failure));
        seen.programs += programs;
    }

    /// None if it was not measured.
    pub(super) fn of(&self, cell: Cell) -> Option<&Seen> {
        self.0.iter().find(|(other, _)| *other == cell).map(|(_, seen)| seen)
    }

    /// A quantile under churn by the same under the control.
    pub(super) fn by_control(&self, beside_hung: bool, share: f64) -> Option<Estimate> {
        let [control, churn] = Cell::of(beside_hung).map(|cell| self.of(cell).map(|seen| &seen.rounds));
        Some(quantile_ratio_estimate(churn?, control?, share))
    }

    /// Everything, for other programs.
    pub(super) fn json(&self) -> serde_json::Value {
        let one = |(cell, seen): &(Cell, Seen)| {
            serde_json::json!({
                "cell": cell.name(), "fresh_cgroups": cell.tenants == Tenants::Fresh, "beside_hung": cell.beside_hung,
                "programs": seen.programs, "failures": seen.failures, "mount_ms": seen.mount_ms,
                "ms_by_round": seen.rounds,
            })
        };
        self.0.iter().map(one).collect()
    }
}

impl Seen {
    /// Milliseconds of each unmount, also of those that did not end.
    pub(super) fn all_ms(&self) -> Vec<f64> {
        self.rounds.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn umount(umount_ms: f64, failure: Option<&str>) -> Umount {
        Umount { mount_ms: 1.0, umount_ms, failure: failure.map(str::to_owned) }
    }

    #[test]
    fn quantiles_are_compared_and_failures_are_kept() {
        let [control, churn] = Cell::of(true);
        let mut umounts = Umounts::default();
        for round in [2.0, 8.0] {
            umounts.add_round(control, vec![umount(round, None), umount(9.0 * round, None)], 4);
            umounts.add_round(churn, vec![umount(3.0 * round, None), umount(99.0 * round, Some("no"))], 5);
        }
        assert_eq!(umounts.by_control(true, 0.5).unwrap().value, 3.0);
        assert_eq!(umounts.by_control(true, 0.95).unwrap().value, 11.0);
        assert!(umounts.by_control(false, 0.5).is_none());
        let seen = umounts.of(churn).unwrap();
        assert_eq!((seen.failures.len(), seen.programs, seen.all_ms().len()), (2, 10, 4));
    }
}

//! What the runs have shown, by who wrote what and where.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::site::{Cell, Place, Subject};
use crate::statistics::{Estimate, median, median_estimate, quantile, ratios};

/// Of one run.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Of all writers together.
    pub(super) mb_per_s: f64,
    /// Of the first file's.
    pub(super) first_mb_per_s: f64,
    pub(super) latencies_us: Vec<f64>,
    pub(super) peak_dirty_bytes: u64,
    /// When all is clean.
    pub(super) cache_growth_bytes: u64,
    /// Of flushers, for DONTCACHE writes.
    pub(super) passes: u64,
}

/// What is compared of a run.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Figure {
    MbPerS,
    P50Us,
    P99Us,
    P999Us,
    PeakDirtyMb,
    CacheGrowthMb,
    KicksPerPass,
    /// Of two that compete, the slower by the faster.
    Fairness,
}

impl Figure {
    const ALL: [(Self, &'static str); 8] = [
        (Self::MbPerS, "mb_per_s"),
        (Self::P50Us, "p50_us"),
        (Self::P99Us, "p99_us"),
        (Self::P999Us, "p999_us"),
        (Self::PeakDirtyMb, "peak_dirty_mb"),
        (Self::CacheGrowthMb, "cache_growth_mb"),
        (Self::KicksPerPass, "kicks_per_pass"),
        (Self::Fairness, "fairness"),
    ];
}

impl Outcome {
    pub(super) fn of(&self, figure: Figure) -> f64 {
        match figure {
            Figure::MbPerS => self.mb_per_s,
            Figure::P50Us => quantile(&self.latencies_us, 0.5),
            Figure::P99Us => quantile(&self.latencies_us, 0.99),
            Figure::P999Us => quantile(&self.latencies_us, 0.999),
            Figure::PeakDirtyMb => self.peak_dirty_bytes as f64 / 1e6,
            Figure::CacheGrowthMb => self.cache_growth_bytes as f64 / 1e6,
            Figure::KicksPerPass => self.latencies_us.len() as f64 / self.passes.max(1) as f64,
            Figure::Fairness => {
                let other = self.mb_per_s - self.first_mb_per_s;
                other.min(self.first_mb_per_s) / other.max(self.first_mb_per_s)
            }
        }
    }
}

#[derive(Default)]
pub(super) struct Records(BTreeMap<Cell, Vec<Outcome>>);

impl Records {
    /// `None`: it could not be done.
    pub(super) fn add(&mut self, cell: Cell, outcome: Option<Outcome>) {
        self.0.entry(cell).or_default().extend(outcome);
    }

    pub(super) fn has(&self, subject: Subject, place: Place) -> bool {
        self.0.iter().any(|(cell, outcomes)| (cell.subject, cell.place) == (subject, place) && !outcomes.is_empty())
    }

    pub(super) fn cells(&self) -> BTreeSet<Cell> {
        self.0.keys().copied().collect()
    }

    /// One figure of each round; none if it could not be done.
    pub(super) fn of(&self, cell: Cell, figure: Figure) -> Vec<f64> {
        self.0.get(&cell).map_or_else(Vec::new, |outcomes| outcomes.iter().map(|outcome| outcome.of(figure)).collect())
    }

    pub(super) fn median_of(&self, cell: Cell, how: impl Fn(&Outcome) -> f64) -> Option<f64> {
        let samples: Vec<f64> = self.0.get(&cell)?.iter().map(how).collect();
        (!samples.is_empty()).then(|| median(&samples))
    }

    /// Of two cells, round by round; `None` if one could not be done.
    pub(super) fn ratio(&self, top: Cell, bottom: Cell, figure: Figure) -> Option<Estimate> {
        let ratios = ratios(&self.of(top, figure), &self.of(bottom, figure));
        (!ratios.is_empty()).then(|| median_estimate(&ratios))
    }

    pub(super) fn latencies_us(&self, cell: Cell) -> Vec<f64> {
        self.0.get(&cell).into_iter().flatten().flat_map(|outcome| outcome.latencies_us.iter().copied()).collect()
    }

    /// Everything but single latencies, for other programs.
    pub(super) fn json(&self) -> Value {
        let cells = self.0.iter().map(|(cell, outcomes)| {
            let figures = Figure::ALL.map(|(figure, name)| {
                let samples: Vec<f64> = outcomes.iter().map(|outcome| outcome.of(figure)).collect();
                (name.to_owned(), json!(samples))
            });
            let mut value = json!({
                "job": cell.job.name(), "place": cell.place.name(), "subject": cell.subject.name(),
            });
            if let Some(object) = value.as_object_mut() {
                object.extend(figures);
            }
            value
        });
        cells.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::jobs::Job;
    use super::*;

    fn outcome(mb_per_s: f64, first_mb_per_s: f64) -> Outcome {
        let latencies_us = (1..=1000).map(f64::from).collect();
        Outcome { mb_per_s, first_mb_per_s, latencies_us, peak_dirty_bytes: 0, cache_growth_bytes: 0, passes: 4 }
    }

    #[test]
    fn figures_are_those_of_a_run() {
        let run = outcome(90.0, 50.0);
        let figures = [Figure::P50Us, Figure::P99Us, Figure::P999Us, Figure::KicksPerPass, Figure::Fairness];
        assert_eq!(figures.map(|figure| run.of(figure)), [500.0, 990.0, 999.0, 250.0, 0.8]);
    }

    #[test]
    fn who_cannot_do_it_is_compared_with_nobody() {
        let cell = |subject| Cell { job: Job::Random, place: Place::Disk, subject };
        let mut records = Records::default();
        records.add(cell(Subject::Kick), Some(outcome(4.0, 1.0)));
        records.add(cell(Subject::KernelDontcache), None);
        records.add(cell(Subject::Buffered), Some(outcome(2.0, 1.0)));
        let ratio = |other| records.ratio(cell(Subject::Kick), cell(other), Figure::MbPerS).map(|ratio| ratio.value);
        assert_eq!((ratio(Subject::Buffered), ratio(Subject::KernelDontcache)), (Some(2.0), None));
        assert!(!records.has(Subject::KernelDontcache, Place::Disk) && records.cells().len() == 3);
    }
}

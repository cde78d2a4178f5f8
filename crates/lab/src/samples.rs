//! Times of many equal things: each of them, and what is said of all.

use std::time::{Duration, Instant};

use crate::statistics::quantile;

/// How long something took, each time.
#[derive(Clone, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    /// Does `work` and notes its time.
    pub(crate) fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.0.push(start.elapsed());
        done
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    pub(crate) fn microseconds(&self) -> Vec<f64> {
        self.0.iter().map(|time| time.as_secs_f64() * 1e6).collect()
    }
}

/// Samples of one kind, of all rounds together.
#[derive(Clone, Default)]
pub(crate) struct Microseconds(Vec<f64>);

impl Microseconds {
    pub(crate) fn add(&mut self, samples: &Samples) {
        self.0.extend(samples.microseconds());
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// None without samples.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| quantile(&self.0, share))
    }

    /// So many of them that a curve through them looks like one through all.
    pub(crate) fn thinned(&self) -> Vec<f64> {
        const POINTS: usize = 400;
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        match sorted.len() {
            0..=POINTS => sorted,
            _ => (0..POINTS).map(|point| sorted[last * point / (POINTS - 1)]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thinned_distribution_keeps_its_ends_and_its_middle() {
        let all = Microseconds((0..100_000).rev().map(f64::from).collect());
        let thin = all.thinned();
        assert_eq!((thin.len(), thin[0], thin[399]), (400, 0.0, 99_999.0));
        assert!((quantile(&thin, 0.5) - 50_000.0).abs() < 300.0);
        assert_eq!(Microseconds(vec![2.0, 1.0]).thinned(), [1.0, 2.0]);
        assert!(Microseconds::default().thinned().is_empty() && Microseconds::default().quantile(0.5).is_none());
    }
}

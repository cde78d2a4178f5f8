//! Times of many equal things: each of them, and what is said of all.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

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

    pub(crate) fn all(&self) -> Vec<f64> {
        self.0.clone()
    }
}

/// Samples through which a curve looks like one through all that the histogram has, in `unit`s of it.
pub(crate) fn of_histogram(histogram: &Histogram<u64>, unit: f64) -> Vec<f64> {
    const POINTS: u64 = 400;
    let points = histogram.len().min(POINTS);
    let share = |point| (point as f64 + 0.5) / points as f64;
    (0..points).map(|point| histogram.value_at_quantile(share(point)) as f64 / unit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_histogram_are_its_quantiles() {
        let mut histogram = Histogram::new(3).unwrap();
        [1000_u64, 2000, 4000].into_iter().for_each(|value| histogram.record(value).unwrap());
        let samples: Vec<f64> = of_histogram(&histogram, 1e3).into_iter().map(f64::round).collect();
        assert_eq!(samples, [1.0, 2.0, 4.0]);
    }
}

//! Samples by what was measured, and the figures of a cell.

use std::collections::BTreeMap;
use std::time::Instant;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::statistics::{Estimate, median, median_estimate, quantile, quantile_ratio_estimate, ratios};

/// The samples of one cell, round by round. Often a round has a single one.
#[derive(Clone, Default, Debug)]
pub(crate) struct Samples(Vec<Vec<f64>>);

impl Samples {
    /// Adds a round with a single sample.
    pub(crate) fn push(&mut self, sample: f64) {
        self.0.push(vec![sample]);
    }

    /// Adds a round.
    pub(crate) fn push_round(&mut self, samples: Vec<f64>) {
        self.0.push(samples);
    }

    pub(crate) fn rounds(&self) -> &[Vec<f64>] {
        &self.0
    }

    /// The samples of all rounds together.
    pub(crate) fn all(&self) -> Vec<f64> {
        self.0.concat()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// `what` of all samples; `None` without any.
    fn if_any<T>(&self, what: impl FnOnce(&[f64]) -> T) -> Option<T> {
        let all = self.all();
        (!all.is_empty()).then(|| what(&all))
    }

    pub(crate) fn median(&self) -> Option<f64> {
        self.if_any(median)
    }

    /// The median with its interval.
    pub(crate) fn estimate(&self) -> Option<Estimate> {
        self.if_any(median_estimate)
    }

    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        self.if_any(|all| quantile(all, share))
    }

    pub(crate) fn quantiles<const N: usize>(&self, shares: [f64; N]) -> [Option<f64>; N] {
        let mut all = self.all();
        all.sort_by(f64::total_cmp); // once for all of them
        shares.map(|share| (!all.is_empty()).then(|| quantile(&all, share)))
    }

    /// The count and a few quantiles.
    pub(crate) fn json(&self) -> Value {
        let [p50, p99, max] = self.quantiles([0.5, 0.99, 1.0]);
        json!({ "count": self.count(), "p50": p50, "p99": p99, "max": max })
    }

    /// The median of the rounds' ratios of this to `bottom`. For cells with one sample per round.
    pub(crate) fn by(&self, bottom: &Self) -> Option<Estimate> {
        ratio(&self.all(), &bottom.all())
    }

    /// A quantile of all samples of this divided by the same quantile of `bottom`.
    pub(crate) fn quantile_by(&self, bottom: &Self, share: f64) -> Option<Estimate> {
        let has_both = self.count() != 0 && bottom.count() != 0;
        has_both.then(|| quantile_ratio_estimate(&self.0, &bottom.0, share))
    }
}

/// The median of the rounds' ratios; `None` if one side has no rounds.
pub(crate) fn ratio(top: &[f64], bottom: &[f64]) -> Option<Estimate> {
    let ratios = ratios(top, bottom);
    (!ratios.is_empty()).then(|| median_estimate(&ratios))
}

/// The records of each cell, in the order in which cells were first measured.
pub(crate) struct Cells<K, V>(Vec<(K, V)>);

impl<K, V> Default for Cells<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: PartialEq, V: Default> Cells<K, V> {
    /// `None` if the cell was not measured.
    pub(crate) fn of(&self, key: &K) -> Option<&V> {
        self.0.iter().find(|(other, _)| other == key).map(|(_, value)| value)
    }

    /// The cell, new if it was not there.
    pub(crate) fn entry(&mut self, key: K) -> &mut V {
        let at = self.0.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
            self.0.push((key, V::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }
}

/// Samples of one unit by the name of a row and of a subject.
#[derive(Default)]
pub(crate) struct Series(BTreeMap<(String, &'static str), Samples>);

impl Series {
    /// Adds a round with a single sample.
    pub(crate) fn add(&mut self, row: &str, subject: &'static str, sample: f64) {
        self.0.entry((row.to_owned(), subject)).or_default().push(sample);
    }

    /// No samples if nothing was measured under these names.
    pub(crate) fn of(&self, row: &str, subject: &'static str) -> &Samples {
        const NONE: &Samples = &Samples(Vec::new());
        self.0.get(&(row.to_owned(), subject)).unwrap_or(NONE)
    }

    pub(crate) fn median(&self, row: &str, subject: &'static str) -> Option<f64> {
        self.of(row, subject).median()
    }

    pub(crate) fn estimate(&self, row: &str, subject: &'static str) -> Option<Estimate> {
        self.of(row, subject).estimate()
    }

    /// The median of the rounds' ratios of two subjects.
    pub(crate) fn ratio(&self, row: &str, top: &'static str, bottom: &'static str) -> Option<Estimate> {
        self.of(row, top).by(self.of(row, bottom))
    }

    /// The smaller or greater of several subjects, round by round; those that were not measured are left out.
    pub(crate) fn best(&self, row: &str, subjects: &[&'static str], choose: fn(f64, f64) -> f64) -> Vec<f64> {
        let each = subjects.iter().map(|subject| self.of(row, subject).all());
        each.filter(|samples| !samples.is_empty())
            .reduce(|best, other| best.into_iter().zip(other).map(|(one, other)| choose(one, other)).collect())
            .unwrap_or_default()
    }

    pub(crate) fn json(&self) -> Value {
        let named = self.0.iter().filter_map(|((row, subject), samples)| {
            let Estimate { value, low, high } = samples.estimate()?;
            Some(json!({
                "row": row, "subject": subject, "median": value, "low": low, "high": high, "samples": samples.all(),
            }))
        });
        named.collect()
    }
}

/// Does `work` and adds the microseconds that it took.
pub(crate) fn time_us<T>(us: &mut Vec<f64>, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    us.push(start.elapsed().as_secs_f64() * 1e6);
    done
}

/// Samples whose curve looks like that of all values in the histogram, divided by `unit`.
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
    fn ratios_and_extremes_are_taken_within_a_round() {
        let mut series = Series::default();
        for (one, other) in [(1.0, 2.0), (4.0, 2.0), (9.0, 3.0)] {
            series.add("r", "one", one);
            series.add("r", "other", other);
        }
        assert_eq!(series.ratio("r", "one", "other").unwrap().value, 2.0);
        assert_eq!(series.best("r", &["one", "other", "missing"], f64::min), [1.0, 2.0, 3.0]);
        assert_eq!(series.best("r", &["one", "other"], f64::max), [2.0, 4.0, 9.0]);
        assert_eq!((series.median("r", "missing"), series.ratio("r", "one", "missing")), (None, None));
    }

    #[test]
    fn samples_of_a_histogram_are_its_quantiles() {
        let mut histogram = Histogram::new(3).unwrap();
        [1000_u64, 2000, 4000].into_iter().for_each(|value| histogram.record(value).unwrap());
        let samples: Vec<f64> = of_histogram(&histogram, 1e3).into_iter().map(f64::round).collect();
        assert_eq!(samples, [1.0, 2.0, 4.0]);
    }
}

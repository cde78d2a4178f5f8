//! Samples by what was measured, and the figures of a cell.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

use super::statistics::{Estimate, median, median_estimate, quantile, quantile_ratio_estimate, ratios};

/// The samples of one cell, round by round. Often a round has a single one.
#[derive(Clone, Default, Debug)]
pub(crate) struct Samples(Vec<Vec<f64>>);

impl Samples {
    /// Adds a round.
    pub(crate) fn push_round(&mut self, samples: Vec<f64>) {
        self.0.push(samples);
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

    /// Round by round, or flat if each round has a single sample; nothing if there are too many to read.
    fn json(&self) -> Value {
        const MOST: usize = 2000;
        match self.count() {
            count if count == self.0.len() => json!(self.all()),
            count if count <= MOST => json!(self.0),
            _ => Value::Null,
        }
    }

    /// The median of the rounds' ratios of this to `bottom`. For cells with one sample per round.
    pub(crate) fn by(&self, bottom: &Self) -> Option<Estimate> {
        ratio(&self.all(), &bottom.all())
    }

    /// A quantile of each round.
    pub(crate) fn of_rounds(&self, share: f64) -> Self {
        Self(self.0.iter().map(|round| vec![quantile(round, share)]).collect())
    }

    /// The median of the rounds' ratios of a quantile of this to that of `bottom`.
    pub(crate) fn by_rounds(&self, bottom: &Self, share: f64) -> Option<Estimate> {
        self.of_rounds(share).by(&bottom.of_rounds(share))
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

/// Samples by the name of a row, which says what was measured and in which unit, and of a subject.
#[derive(Default)]
pub(crate) struct Series(BTreeMap<(String, &'static str), Samples>);

impl Series {
    /// Adds a round with a single sample.
    pub(crate) fn add(&mut self, row: &str, subject: &'static str, sample: f64) {
        self.add_round(row, subject, vec![sample]);
    }

    /// Adds a round.
    pub(crate) fn add_round(&mut self, row: &str, subject: &'static str, samples: Vec<f64>) {
        self.0.entry((row.to_owned(), subject)).or_default().push_round(samples);
    }

    /// Adds a round of two quantiles of `us`, in the rows [`p50`] and [`p99`].
    pub(crate) fn add_latencies(&mut self, row: &str, subject: &'static str, us: &[f64]) {
        self.add(&p50(row), subject, quantile(us, 0.5));
        self.add(&p99(row), subject, quantile(us, 0.99));
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

    /// Several subjects combined, round by round; those that were not measured are left out.
    pub(crate) fn combined(&self, row: &str, subjects: &[&'static str], combine: fn(f64, f64) -> f64) -> Vec<f64> {
        let each = subjects.iter().map(|subject| self.of(row, subject).all());
        each.filter(|samples| !samples.is_empty())
            .reduce(|all, other| all.into_iter().zip(other).map(|(one, other)| combine(one, other)).collect())
            .unwrap_or_default()
    }

    pub(crate) fn json(&self) -> Value {
        let named = self.0.iter().filter_map(|((row, subject), samples)| {
            let Estimate { value, low, high } = samples.estimate()?;
            let [p99, max] = samples.quantiles([0.99, 1.0]);
            Some(json!({
                "row": row, "subject": subject, "median": value, "low": low, "high": high, "p99": p99, "max": max,
                "count": samples.count(), "samples": samples.json(),
            }))
        });
        named.collect()
    }
}

/// The rows of a latency.
pub(crate) fn p50(row: &str) -> String {
    format!("{row}, p50 us")
}

pub(crate) fn p99(row: &str) -> String {
    format!("{row}, p99 us")
}

/// Does `work` and adds the microseconds that it took.
pub(crate) fn time_us<T>(us: &mut Vec<f64>, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    us.push(start.elapsed().as_secs_f64() * 1e6);
    done
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
        assert_eq!(series.combined("r", &["one", "other", "missing"], f64::min), [1.0, 2.0, 3.0]);
        assert_eq!(series.combined("r", &["one", "other"], f64::max), [2.0, 4.0, 9.0]);
        assert_eq!((series.median("r", "missing"), series.ratio("r", "one", "missing")), (None, None));
    }
}

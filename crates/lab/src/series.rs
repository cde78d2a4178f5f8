//! Figures by name of what was measured and of who was, one for each round.

use std::collections::BTreeMap;

use crate::statistics::{Estimate, median, median_estimate, ratios};

/// Samples of one unit.
#[derive(Default)]
pub(crate) struct Series {
    samples: BTreeMap<(String, &'static str), Vec<f64>>,
}

impl Series {
    pub(crate) fn add(&mut self, row: &str, subject: &'static str, value: f64) {
        self.samples.entry((row.to_owned(), subject)).or_default().push(value);
    }

    /// All samples, in the order of the rounds; none if nothing was measured under these names.
    pub(crate) fn of(&self, row: &str, subject: &'static str) -> &[f64] {
        self.samples.get(&(row.to_owned(), subject)).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn median(&self, row: &str, subject: &'static str) -> Option<f64> {
        let samples = self.of(row, subject);
        (!samples.is_empty()).then(|| median(samples))
    }

    /// Ratio of two subjects, round by round.
    pub(crate) fn ratio(&self, row: &str, top: &'static str, bottom: &'static str) -> Estimate {
        median_estimate(&ratios(self.of(row, top), self.of(row, bottom)))
    }

    /// The smaller of several subjects, round by round.
    pub(crate) fn least(&self, row: &str, subjects: &[&'static str]) -> Vec<f64> {
        self.of_each_round(row, subjects, f64::min)
    }

    /// The greater of several subjects, round by round.
    pub(crate) fn most(&self, row: &str, subjects: &[&'static str]) -> Vec<f64> {
        self.of_each_round(row, subjects, f64::max)
    }

    fn of_each_round(&self, row: &str, subjects: &[&'static str], choose: fn(f64, f64) -> f64) -> Vec<f64> {
        let each: Vec<&[f64]> = subjects.iter().map(|subject| self.of(row, subject)).collect();
        let rounds = each.iter().map(|samples| samples.len()).min().unwrap_or(0);
        (0..rounds).filter_map(|round| each.iter().map(|samples| samples[round]).reduce(choose)).collect()
    }

    /// Everything, for other programs.
    pub(crate) fn json(&self) -> serde_json::Value {
        let named = self.samples.iter().map(|((row, subject), samples)| {
            let estimate = median_estimate(samples);
            let figures = serde_json::json!({
                "row": row, "subject": subject, "median": estimate.value, "low": estimate.low,
                "high": estimate.high, "samples": samples,
            });
            figures
        });
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_and_minima_are_taken_within_a_round() {
        let mut series = Series::default();
        for (one, other) in [(1.0, 2.0), (4.0, 2.0), (9.0, 3.0)] {
            series.add("r", "one", one);
            series.add("r", "other", other);
        }
        assert_eq!(series.ratio("r", "one", "other").value, 2.0);
        assert_eq!(series.least("r", &["one", "other"]), [1.0, 2.0, 3.0]);
        assert_eq!(series.most("r", &["one", "other"]), [2.0, 4.0, 9.0]);
        assert_eq!(series.median("r", "nobody"), None);
    }
}

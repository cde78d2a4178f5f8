//! From samples to one figure and its interval.

use slackwater_testkit::Random;

use super::quantity::figure;

/// A figure with its 95 % interval: in 95 of 100 runs the interval contains the true value.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) struct Estimate {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Estimate {
    /// A count, or an extreme: it has no interval.
    pub(crate) fn exactly(value: f64) -> Self {
        Self { value, low: value, high: value }
    }

    /// The median, the least and the greatest of some samples, for those that must all be the same.
    pub(crate) fn of_all(samples: &[f64]) -> Self {
        let [low, value, high] = [0.0, 0.5, 1.0].map(|share| quantile(samples, share));
        Self { value, low, high }
    }

    /// The same in another unit.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, low: self.low * factor, high: self.high * factor }
    }

    /// `1.23 [1.20, 1.31]`, or `1.23` without an interval.
    pub(crate) fn text(&self) -> String {
        let Self { value, low, high } = *self;
        match low == value && high == value {
            true => figure(value),
            false => format!("{} [{}, {}]", figure(value), figure(low), figure(high)),
        }
    }
}

/// The middle of the samples.
///
/// # Panics
/// Without samples.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

/// The smallest sample that is not exceeded by at least the share `quantile` of all samples.
///
/// # Panics
/// Without samples.
pub(crate) fn quantile(samples: &[f64], quantile: f64) -> f64 {
    let sorted = sorted(samples);
    let rank = (quantile * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// The median with its 95 % interval between two of the samples. That makes no assumption about their distribution. With
/// fewer than six samples the interval spans all of them and has less than 95 %.
///
/// # Panics
/// Without samples.
pub(crate) fn median_estimate(samples: &[f64]) -> Estimate {
    let sorted = sorted(samples);
    let skip = skipped_ends(sorted.len());
    Estimate { value: median(samples), low: sorted[skip], high: sorted[sorted.len() - 1 - skip] }
}

/// A quantile of all samples of `top` divided by the same quantile of `bottom`, with its 95 % bootstrap interval. The samples
/// of a round are not independent, so the bootstrap draws rounds, the same ones of both sides. Quantiles are of all samples,
/// since a high quantile of the few samples of one round would say little.
///
/// # Panics
/// Without samples in a round.
pub(crate) fn quantile_ratio_estimate(top: &[Vec<f64>], bottom: &[Vec<f64>], share: f64) -> Estimate {
    const RESAMPLES: usize = 1000;
    const SEED: u64 = 1;
    let count = top.len().min(bottom.len());
    let [top, bottom] = [top, bottom].map(|rounds| ascending(&rounds[..count]));
    let ratio = |weights: &[u64]| weighted_quantile(&top, share, weights) / weighted_quantile(&bottom, share, weights);
    let mut random = Random::new(SEED);
    let mut drawn = || {
        let mut weights = vec![0; count];
        (0..count).for_each(|_| weights[random.below(count as u64) as usize] += 1);
        ratio(&weights)
    };
    let ratios: Vec<f64> = (0..RESAMPLES).map(|_| drawn()).collect();
    bootstrapped(ratio(&vec![1; count]), &ratios)
}

/// `value`, with the interval that contains 95 % of the resampled values.
fn bootstrapped(value: f64, drawn: &[f64]) -> Estimate {
    let drawn = sorted(drawn);
    Estimate { value, low: drawn[drawn.len() * 25 / 1000], high: drawn[drawn.len() * 975 / 1000] }
}

/// The samples of several rounds in ascending order, each with its round.
fn ascending(rounds: &[Vec<f64>]) -> Vec<(f64, usize)> {
    let rounds = rounds.iter().enumerate();
    let mut samples: Vec<_> =
        rounds.flat_map(|(round, samples)| samples.iter().map(move |sample| (*sample, round))).collect();
    samples.sort_by(|a, b| a.0.total_cmp(&b.0));
    samples
}

/// The [`quantile`] of samples in ascending order, each counted as often as the weight of its round.
fn weighted_quantile(samples: &[(f64, usize)], share: f64, weights: &[u64]) -> f64 {
    let total: u64 = samples.iter().map(|(_, round)| weights[*round]).sum();
    let rank = ((share * total as f64).ceil() as u64).max(1);
    let mut passed = 0;
    let reached = samples.iter().find(|(_, round)| {
        passed += weights[*round];
        passed >= rank
    });
    reached.expect("a figure needs samples").0
}

/// `top` divided by `bottom`, round by round.
pub(crate) fn ratios(top: &[f64], bottom: &[f64]) -> Vec<f64> {
    top.iter().zip(bottom).map(|(top, bottom)| top / bottom).collect()
}

/// How many samples the interval of the median leaves out at each end: as many as keep the chance that the true median lies
/// outside on that side at 2.5 % at most. Each sample is below the true median with a probability of one half.
fn skipped_ends(count: usize) -> usize {
    let mut chance = 0.5_f64.powi(count as i32);
    let (mut below, mut skip) = (0.0, 0);
    for candidate in 0..count / 2 {
        below += chance;
        if below > 0.025 {
            break;
        }
        skip = candidate;
        chance *= (count - candidate) as f64 / (candidate + 1) as f64;
    }
    skip
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    assert!(!samples.is_empty(), "a figure needs samples");
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up_to(count: u32) -> Vec<f64> {
        (1..=count).rev().map(f64::from).collect()
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn quantiles_are_samples() {
        let of = |share| quantile(&up_to(20), share);
        assert_eq!([0.0, 0.5, 0.51, 0.95, 0.96, 1.0].map(of), [1.0, 10.0, 11.0, 19.0, 20.0, 20.0]);
    }

    /// Ranks from the tables of the sign test.
    #[test]
    fn the_interval_of_the_median_has_the_textbook_ranks() {
        for (count, low, high) in
            [(1, 1.0, 1.0), (5, 1.0, 5.0), (6, 1.0, 6.0), (10, 2.0, 9.0), (20, 6.0, 15.0), (40, 14.0, 27.0)]
        {
            let estimate = median_estimate(&up_to(count));
            assert_eq!((estimate.low, estimate.high), (low, high), "{count} samples");
        }
    }

    #[test]
    fn a_ratio_of_quantiles_uses_all_samples_and_its_interval_draws_whole_rounds() {
        let bottom: Vec<Vec<f64>> = vec![up_to(20); 10];
        let tripled: Vec<Vec<f64>> = vec![up_to(20).into_iter().map(|sample| 3.0 * sample).collect(); 10];
        let equal = quantile_ratio_estimate(&tripled, &bottom, 0.95);
        assert_eq!(equal, Estimate { value: 3.0, low: 3.0, high: 3.0 });
        // One slow round in ten is 10 % of all samples, and would not show in a median of rounds.
        let mut one_slow = bottom.clone();
        one_slow[4] = vec![1000.0; 20];
        let slow = quantile_ratio_estimate(&one_slow, &bottom, 0.95);
        assert_eq!(slow.value, 1000.0 / 19.0);
        assert_eq!(
            (slow.low, slow.high),
            (1.0, 1000.0 / 19.0),
            "a resample may lack the round, or have it more than once"
        );
        let all = quantile_ratio_estimate(&one_slow, &bottom, 0.5);
        assert_eq!(all.value, quantile(&one_slow.concat(), 0.5) / quantile(&bottom.concat(), 0.5));
        assert_eq!(quantile_ratio_estimate(&bottom, &tripled[..1], 1.0).value, 20.0 / 60.0, "rounds that both have");
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        assert_eq!(ratios(&[2.0, 9.0], &[1.0, 3.0]), [2.0, 3.0]);
    }
}

//! Which pages are read, in order.

use slackwater_testkit::Random;

/// Pages that a Zipf trace draws from. All these amounts are multiples of the pages in the cache.
const UNIVERSE: u64 = 8;
/// Pages of a scan, and reads between two scans.
const SCAN: f64 = 0.5;
const BETWEEN_SCANS: f64 = 1.5;
/// Pages of the working set, and the number of reads after which a tenth of it has been replaced.
const SET: f64 = 1.2;
const MOVES_AFTER: f64 = 4.0;

/// A kind of trace.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) enum Kind {
    /// The nth page is read in proportion to 1 / n^alpha.
    Zipf { alpha: f64 },
    /// The same, with occasional scans through pages that are never read again.
    Scans { alpha: f64 },
    /// A loop over so many times the cache.
    Loop { times: f64 },
    /// Zipf over a working set that moves.
    Moving { alpha: f64 },
}

impl Kind {
    pub(super) const ALL: [Self; 6] = [
        Self::Zipf { alpha: 0.8 },
        Self::Zipf { alpha: 1.0 },
        Self::Scans { alpha: 1.0 },
        Self::Loop { times: 1.25 },
        Self::Loop { times: 2.0 },
        Self::Moving { alpha: 0.8 },
    ];

    pub(super) fn name(self) -> String {
        match self {
            Self::Zipf { alpha } => format!("zipf {alpha}"),
            Self::Scans { alpha } => format!("zipf {alpha} with scans"),
            Self::Loop { times } => format!("loop over {times} x the cache"),
            Self::Moving { alpha } => format!("moving set, zipf {alpha}"),
        }
    }

    /// `count` pages for a cache of `cache` pages.
    pub(super) fn trace(self, cache: u64, count: usize, seed: u64) -> Vec<u64> {
        let part = |of: f64| (cache as f64 * of) as u64;
        let universe = UNIVERSE * cache;
        let mut random = Random::new(seed);
        match self {
            Self::Zipf { alpha } => {
                let zipf = Zipf::new(universe, alpha);
                (0..count).map(|_| zipf.draw(&mut random)).collect()
            }
            Self::Scans { alpha } => {
                let (zipf, period) = (Zipf::new(universe, alpha), part(SCAN + BETWEEN_SCANS));
                let mut scanned = universe..;
                let mut read = |nth: u64| match nth % period < part(BETWEEN_SCANS) {
                    true => zipf.draw(&mut random),
                    false => scanned.next().unwrap_or(universe),
                };
                (0..count as u64).map(&mut read).collect()
            }
            Self::Loop { times } => (0..count as u64).map(|nth| nth % part(times)).collect(),
            Self::Moving { alpha } => {
                let zipf = Zipf::new(part(SET), alpha);
                let base = |nth: u64| nth / part(MOVES_AFTER) * part(SET / 10.0);
                (0..count as u64).map(|nth| base(nth) + zipf.draw(&mut random)).collect()
            }
        }
    }
}

/// Draws pages with the frequencies of Zipf's law. Ranks are shuffled, so that neighbours are not alike.
pub(super) struct Zipf {
    /// The cumulated weights up to each rank.
    sums: Vec<f64>,
    /// The page of each rank.
    pages: Vec<u64>,
}

impl Zipf {
    pub(super) fn new(pages: u64, alpha: f64) -> Self {
        let mut sum = 0.0;
        let weigh = |rank: u64| {
            sum += (rank as f64).powf(-alpha);
            sum
        };
        let sums = (1..=pages).map(weigh).collect();
        let mut pages: Vec<u64> = (0..pages).collect();
        Random::new(0).shuffle(&mut pages);
        Self { sums, pages }
    }

    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        let all = self.sums.last().copied().unwrap_or(0.0);
        let at = random.next() as f64 / u64::MAX as f64 * all;
        let rank = self.sums.partition_point(|sum| *sum < at);
        self.pages[rank.min(self.pages.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_trace_and_the_first_rank_has_its_frequency() {
        let kind = Kind::Zipf { alpha: 1.0 };
        let trace = kind.trace(100, 100_000, 7);
        assert_eq!(trace, kind.trace(100, 100_000, 7));
        let zipf = Zipf::new(800, 1.0);
        let first = trace.iter().filter(|page| **page == zipf.pages[0]).count() as f64 / trace.len() as f64;
        let expected = 1.0 / zipf.sums.last().copied().unwrap_or(0.0);
        assert!((first / expected - 1.0).abs() < 0.05, "{first}, not {expected}");
    }

    #[test]
    fn scans_are_a_quarter_of_the_reads_and_never_repeat_a_page() {
        let trace = Kind::Scans { alpha: 1.0 }.trace(100, 10_000, 7);
        let scanned: Vec<u64> = trace.into_iter().filter(|page| *page >= 800).collect();
        assert_eq!(scanned, (800..800 + 2500).collect::<Vec<_>>());
    }
}

//! Floating proportions: the fraction of recent events that came from one of many sources.
//!
//! A domain counts all its events in a [`FpropGlobal`], each source its own in a [`FpropLocal`]. All counts are halved
//! every three seconds, so that old events fade. The global count is halved at once, a local one when it is next used.
//!
//! # Invariants
//! F1. The local counts, once brought up to date, add up to at most the global one.
//!
//! # Memory ordering
//! A `FpropLocal` changes only in methods that take the `&mut FpropGlobal` it belongs to, which the domain's lock
//! protects. Its counters are atomic so that it can be shared, and all accesses are relaxed.
//!
//! # Kernel counterpart
//! `lib/flex_proportions.c`. Differs: there is no timer; elapsed periods are applied at the next use.

use slackwater_sync::shim::atomic::{AtomicU64, Ordering::Relaxed};

use super::to_u64;

/// Length of a period.
const PERIOD_MS: u64 = 3000;

/// A fraction, at most 1.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fraction {
    num: u64,
    /// At least 1, at least `num`.
    den: u64,
}

impl Fraction {
    #[cfg(test)]
    pub(crate) fn new(num: u64, den: u64) -> Self {
        let den = den.max(1);
        Self { num: num.min(den), den }
    }

    /// This fraction of `pages`, rounded down.
    pub(crate) fn of(self, pages: u64) -> u64 {
        to_u64(u128::from(pages) * u128::from(self.num) / u128::from(self.den))
    }
}

/// The events of one source, in one domain.
pub(crate) struct FpropLocal {
    events: AtomicU64,
    /// The period up to which `events` is current.
    period: AtomicU64,
}

impl FpropLocal {
    pub(crate) fn new() -> Self {
        Self { events: AtomicU64::new(0), period: AtomicU64::new(0) }
    }
}

/// The events of all sources of a domain.
pub(crate) struct FpropGlobal {
    /// At least 1.
    events: u64,
    period: u64,
    /// When the current period ends; `None` while nothing is left to fade.
    period_end_ms: Option<u64>,
}

impl FpropGlobal {
    pub(crate) fn new() -> Self {
        Self { events: 1, period: 0, period_end_ms: None }
    }

    /// Records `n` events of the source `local`.
    pub(crate) fn event(&mut self, local: &FpropLocal, n: u64, now_ms: u64) {
        let events = self.up_to_date(local, now_ms);
        self.period_end_ms.get_or_insert(now_ms.saturating_add(PERIOD_MS));
        self.events = self.events.saturating_add(n);
        local.events.store(events.saturating_add(n), Relaxed);
    }

    /// The fraction of recent events that came from `local`.
    pub(crate) fn fraction(&mut self, local: &FpropLocal, now_ms: u64) -> Fraction {
        let num = self.up_to_date(local, now_ms);
        Fraction { num, den: self.events.max(num) }
    }

    /// Applies the elapsed periods to the global count and to `local`. Returns the events of `local`.
    fn up_to_date(&mut self, local: &FpropLocal, now_ms: u64) -> u64 {
        self.advance(now_ms);
        let missed = u32::try_from(self.period - local.period.load(Relaxed)).unwrap_or(u32::MAX);
        let events = local.events.load(Relaxed).checked_shr(missed).unwrap_or(0);
        local.events.store(events, Relaxed);
        local.period.store(self.period, Relaxed);
        events
    }

    fn advance(&mut self, now_ms: u64) {
        let Some(late_ms) = self.period_end_ms.and_then(|end| now_ms.checked_sub(end)) else { return };
        let passed = 1 + late_ms / PERIOD_MS;
        // A count of one is not halved: nothing is left to fade until the next event.
        let ended = passed.min(u64::from(self.events.ilog2()));
        self.events >>= ended;
        self.period += ended;
        self.period_end_ms = (ended == passed).then(|| now_ms.saturating_add(PERIOD_MS - late_ms % PERIOD_MS));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fractions_match_the_event_counts() {
        let (mut all, a, b) = (FpropGlobal::new(), FpropLocal::new(), FpropLocal::new());
        assert_eq!(all.fraction(&a, 0), Fraction { num: 0, den: 1 });
        all.event(&a, 300, 0);
        all.event(&b, 99, 0);
        assert_eq!(all.fraction(&a, 0), Fraction { num: 300, den: 400 });
        assert_eq!(all.fraction(&b, 2999).of(4000), 990);
    }

    #[test]
    fn counts_halve_every_three_seconds() {
        let (mut all, a, b) = (FpropGlobal::new(), FpropLocal::new(), FpropLocal::new());
        all.event(&a, 1023, 100);
        all.event(&b, 1024, 3099);
        assert_eq!(all.fraction(&a, 3099), Fraction { num: 1023, den: 2048 });
        assert_eq!(all.fraction(&a, 3100), Fraction { num: 511, den: 1024 });
        // Two periods late with the same result; `b` catches up with all three.
        assert_eq!(all.fraction(&b, 9100), Fraction { num: 128, den: 256 });
        assert_eq!(all.period_end_ms, Some(12_100));
    }

    #[test]
    fn periods_stop_when_nothing_is_left_to_fade() {
        let (mut all, a) = (FpropGlobal::new(), FpropLocal::new());
        all.event(&a, 7, 0);
        assert_eq!(all.fraction(&a, 86_400_000), Fraction { num: 0, den: 1 });
        assert_eq!((all.period, all.period_end_ms), (3, None));
        all.event(&a, 1, 90_000_000);
        assert_eq!(all.period_end_ms, Some(90_003_000), "the next event starts them again");
        assert_eq!(all.fraction(&a, 90_000_000), Fraction { num: 1, den: 2 });
    }

    #[test]
    fn a_source_idle_for_ages_has_no_share() {
        let (mut all, a, b) = (FpropGlobal::new(), FpropLocal::new(), FpropLocal::new());
        all.event(&a, u64::MAX, 0);
        for period in 0..70 {
            all.event(&b, 1 << 20, period * PERIOD_MS);
        }
        assert_eq!(all.fraction(&a, 70 * PERIOD_MS).of(u64::MAX), 0);
        assert!(all.fraction(&b, 70 * PERIOD_MS).of(1000) > 990);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// F1, and agreement with counts halved one period at a time by a timer that is never late.
        #[test]
        fn it_agrees_with_a_timer(
            steps in prop::collection::vec((0_usize..3, 0_u64..100_000, 0_u64..20_000), 1..60),
        ) {
            let mut all = FpropGlobal::new();
            let locals = [FpropLocal::new(), FpropLocal::new(), FpropLocal::new()];
            let (mut global, mut counts, mut timer, mut now) = (1_u64, [0_u64; 3], None, 0);
            for (source, n, wait) in steps {
                now += wait;
                while let Some(end) = timer.filter(|end| *end <= now) {
                    timer = (global > 1).then_some(end + PERIOD_MS);
                    if global > 1 {
                        global /= 2;
                        counts.iter_mut().for_each(|count| *count /= 2);
                    }
                }
                timer = timer.or(Some(now + PERIOD_MS));
                global += n;
                counts[source] += n;
                all.event(&locals[source], n, now);
                for (local, count) in locals.iter().zip(counts) {
                    prop_assert_eq!(all.fraction(local, now), Fraction { num: count, den: global.max(count) });
                }
                prop_assert!(counts.iter().sum::<u64>() <= global);
            }
        }
    }
}

//! The position ratio: the factor on a writer's rate that drives the number of dirty pages to the setpoint.
//!
//! ```text
//!  2.0 *
//!         *
//!  1.0        *  *  *  *
//!                          *
//!  0                          *      a cubic: flat around the setpoint, steep at both ends
//!   freerun   setpoint     limit
//! ```
//! In [`LimitMode::Shared`] it is multiplied by a line that does the same for the wb's own pages, but mildly: wbs may
//! trade headroom while the domain has some. In [`LimitMode::Strict`] the wb has a cubic of its own, and the smaller of
//! the two applies.
//!
//! # Kernel counterpart
//! `wb_position_ratio`.

use super::sample::{DomainSample, LimitMode};

/// The ratio is a fixed-point number with this many bits after the point.
pub(super) const SHIFT: u32 = 10;
/// The ratio 1.0.
pub(super) const ONE: u64 = 1 << SHIFT;

/// The largest factor by which a wb with few dirty pages is sped up.
const RESERVE_FACTOR_MAX: u128 = 8;

/// Upper bound of the ratio, so that a rate times a ratio fits in 64 bits.
const RATIO_MAX: u128 = u32::MAX as u128;

/// The ratio for writers of a wb with bandwidth `avg_pages_per_s`; [`ONE`] is 1.0.
pub(super) fn position_ratio(domain: &DomainSample, mode: LimitMode, avg_pages_per_s: u64) -> u64 {
    if domain.held_pages() >= domain.limit_pages() {
        return 0;
    }
    let ratio = cubic(domain.setpoint_pages(), domain.held_pages(), domain.limit_pages());
    match mode {
        LimitMode::Shared => wb_line(domain, ratio, avg_pages_per_s),
        LimitMode::Strict => ratio.min(wb_cubic(domain)),
    }
}

/// `1 + ((setpoint - dirty) / (limit - setpoint))^3`, from 0 to 2.
fn cubic(setpoint: u64, dirty: u64, limit: u64) -> u64 {
    const UNIT: i128 = ONE as i128;
    let distance = (i128::from(setpoint) - i128::from(dirty)) << SHIFT;
    // The cube is clamped beyond one unit anyway.
    let x = (distance / i128::from(limit.saturating_sub(setpoint) | 1)).clamp(-UNIT, UNIT);
    let cube = (((x * x) >> SHIFT) * x) >> SHIFT;
    u64::try_from(UNIT + cube).unwrap_or(0)
}

fn wb_line(domain: &DomainSample, ratio: u64, avg_pages_per_s: u64) -> u64 {
    let thresh = u128::from(domain.thresholds.thresh_pages);
    let wb_thresh = u128::from(domain.share.thresh_pages).min(thresh);
    let wb_dirty = u128::from(domain.wb_dirty_pages);
    let mut ratio = u128::from(ratio);

    // The line falls to zero at `end`. The larger the wb's share of the domain, the more the domain's own cubic
    // controls it, and the nearer `end` is: eight seconds of writing, or the pages of the others.
    let part = (wb_thresh << 16) / (thresh | 1);
    let setpoint = (u128::from(domain.setpoint_pages()) * part) >> 16;
    let span = ((thresh - wb_thresh + 8 * u128::from(avg_pages_per_s)) * part) >> 16;
    let end = setpoint + span;
    ratio = if wb_dirty < end - span / 4 { ratio * (end - wb_dirty) / ((end - setpoint) | 1) } else { ratio / 4 };

    // A wb that is about to run dry may write more, even if pages of other wbs fill the domain.
    let reserve = wb_thresh / 2;
    if wb_dirty < reserve {
        let fed = if wb_dirty > reserve / RESERVE_FACTOR_MAX {
            ratio * reserve / wb_dirty
        } else {
            ratio * RESERVE_FACTOR_MAX
        };
        ratio = fed;
    }
    ratio.min(RATIO_MAX) as u64
}

fn wb_cubic(domain: &DomainSample) -> u64 {
    let wb_thresh = domain.share.thresh_pages;
    let setpoint = domain.wb_middle_pages();
    if domain.wb_dirty_pages >= wb_thresh || setpoint == 0 || setpoint == wb_thresh {
        return 0;
    }
    cubic(setpoint, domain.wb_dirty_pages, wb_thresh)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::share::WbShare;
    use super::super::thresholds::Thresholds;
    use super::*;

    /// A wb that has a whole domain to itself.
    fn alone(thresh_pages: u64, background_pages: u64, dirty_pages: u64) -> DomainSample {
        DomainSample {
            thresholds: Thresholds { thresh_pages, background_pages },
            dirty_pages,
            writeback_pages: 0,
            dirty_limit_pages: thresh_pages,
            share: WbShare { thresh_pages, background_pages },
            wb_dirty_pages: dirty_pages,
        }
    }

    fn strict(domain: &DomainSample) -> u64 {
        position_ratio(domain, LimitMode::Strict, 1)
    }

    /// The same in floating point, straight from the formulas in the text: the cubic, and the factor on it.
    fn reference(domain: &DomainSample, mode: LimitMode, avg: f64) -> (f64, f64) {
        let cubic = |set: f64, dirty: f64, limit: f64| (1.0 + ((set - dirty) / (limit - set)).powi(3)).clamp(0.0, 2.0);
        let thresh = domain.thresholds.thresh_pages as f64;
        let freerun = (thresh + domain.thresholds.background_pages as f64) / 2.0;
        let limit = thresh.max(domain.dirty_limit_pages as f64);
        let setpoint = (freerun + limit) / 2.0;
        let dirty = (domain.dirty_pages + domain.writeback_pages) as f64;
        let (wb_dirty, wb_thresh) = (domain.wb_dirty_pages as f64, domain.share.thresh_pages as f64);
        if dirty >= limit {
            return (0.0, 1.0);
        }
        let ratio = cubic(setpoint, dirty, limit);
        if mode == LimitMode::Strict {
            let wb_setpoint = (wb_thresh + domain.share.background_pages as f64) / 2.0;
            let own = if wb_dirty >= wb_thresh { 0.0 } else { cubic(wb_setpoint, wb_dirty, wb_thresh) };
            return (ratio.min(own), 1.0);
        }
        let x = wb_thresh.min(thresh) / thresh;
        let span = (thresh - wb_thresh.min(thresh) + 8.0 * avg) * x;
        let z = setpoint * x + span;
        let mut factor = if wb_dirty < z - span / 4.0 { (z - wb_dirty) / span } else { 0.25 };
        if wb_dirty < wb_thresh / 2.0 {
            factor *= (wb_thresh / 2.0 / wb_dirty).min(8.0);
        }
        (ratio, factor)
    }

    #[test]
    fn the_cubic_has_its_shape() {
        let at = |dirty| cubic(174_926, dirty, 199_951);
        assert_eq!([at(174_926), at(199_951), at(0), at(u64::MAX)], [1024, 0, 2048, 0]);
        assert!((2045..=2048).contains(&at(149_902)), "2.0 at freerun, up to rounding: {}", at(149_902));
        // Half way: 1 + 0.5^3 and 1 - 0.5^3.
        assert!(at(162_414).abs_diff(1152) <= 2 && at(187_438).abs_diff(896) <= 2);
    }

    #[test]
    fn a_domain_at_its_limit_stops_all_writers() {
        for mode in [LimitMode::Shared, LimitMode::Strict] {
            let mut domain = alone(1000, 500, 1000);
            domain.wb_dirty_pages = 1;
            assert_eq!(position_ratio(&domain, mode, 25_600), 0, "{mode:?}");
            domain.dirty_limit_pages = 1100;
            assert!(
                position_ratio(&domain, mode, 25_600) > 0,
                "the limit in force has not fallen to the threshold yet"
            );
        }
    }

    #[test]
    fn a_wb_above_its_share_is_slowed_down_and_one_below_sped_up() {
        let mut domain = alone(200_000, 100_000, 175_000);
        domain.share = WbShare { thresh_pages: 100_000, background_pages: 50_000 };
        let mut at = |wb_dirty_pages| {
            domain.wb_dirty_pages = wb_dirty_pages;
            position_ratio(&domain, LimitMode::Shared, 25_600)
        };
        // wb_setpoint = 175000 / 2; span = (100000 + 8 * 25600) / 2 = 152400; the line ends at 239900.
        assert!(at(87_500).abs_diff(1024) <= 1);
        assert!(at(163_700).abs_diff(512) <= 1);
        assert_eq!(at(201_800), 256, "never below a quarter");
        assert_eq!(at(u64::MAX), 256);
        // h = 50000: doubled at half of it, on top of the line at (239900 - 25000) / 152400.
        assert!(at(25_000).abs_diff(2 * 1444) <= 3);
        assert!(at(0).abs_diff(8 * 1612) <= 8, "eightfold at most");
    }

    #[test]
    fn strict_mode_binds_a_wb_to_its_own_limit() {
        let mut domain = alone(200_000, 100_000, 2000);
        domain.share = WbShare { thresh_pages: 2000, background_pages: 1000 };
        let mut at = |wb_dirty_pages| {
            domain.wb_dirty_pages = wb_dirty_pages;
            strict(&domain)
        };
        assert_eq!([at(1500), at(2000), at(9000)], [1024, 0, 0]);
        assert!(at(1000).abs_diff(2048) <= 10 && at(1750).abs_diff(896) <= 4);
        domain.share = WbShare { thresh_pages: 1, background_pages: 1 };
        domain.wb_dirty_pages = 0;
        assert_eq!(strict(&domain), 0, "no headroom for a setpoint");
        domain.share = WbShare { thresh_pages: 1, background_pages: 0 };
        assert_eq!(strict(&domain), 0);
    }

    #[test]
    fn limits_of_no_page_and_one_page_are_legal() {
        for mode in [LimitMode::Shared, LimitMode::Strict] {
            assert_eq!(position_ratio(&alone(0, 0, 0), mode, 1), 0);
            assert_eq!(position_ratio(&alone(1, 0, 1), mode, 1), 0);
            position_ratio(&alone(1, 0, 0), mode, 1);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_agrees_with_floating_point(
            thresh in 1_000_000_u64..10_000_000,
            background in 0.05_f64..0.9,
            limit in 1.0_f64..1.3,
            dirty in 0.0_f64..1.3,
            part in 0.05_f64..1.0,
            wb_dirty in 0.01_f64..1.0,
            avg in 100_u64..1_000_000,
        ) {
            let pages = |parts: f64| (thresh as f64 * parts) as u64;
            let mut domain = alone(thresh, pages(background), pages(dirty));
            domain.dirty_limit_pages = pages(limit);
            domain.share = WbShare { thresh_pages: pages(part), background_pages: pages(part * background) };
            domain.wb_dirty_pages = pages(wb_dirty);
            for mode in [LimitMode::Shared, LimitMode::Strict] {
                let ratio = position_ratio(&domain, mode, avg) as f64 / ONE as f64;
                let (cubic, factor) = reference(&domain, mode, avg as f64);
                let exact = cubic * factor;
                // A distance is rounded down to multiples of 1/1024, and its cube is three times as steep at the ends.
                let rounding = factor * 6.0 / ONE as f64 + exact * 0.005;
                prop_assert!((ratio - exact).abs() < rounding, "{ratio} instead of {exact}, {mode:?}");
            }
        }

        #[test]
        fn more_dirty_pages_never_raise_it(
            (thresh, background, part) in (1_u64..1_000_000, 0_u64..1000, 0_u64..=1000),
            (dirty, wb_dirty) in (0_u64..1_200_000, 0_u64..1_200_000),
            (more, wb_more) in (0_u64..1000, 0_u64..1000),
            avg in 1_u64..1_000_000,
        ) {
            let mut domain = alone(thresh, thresh * background / 1000, dirty);
            let share = thresh * part / 1000;
            domain.share = WbShare { thresh_pages: share, background_pages: share * background / 1000 };
            domain.wb_dirty_pages = wb_dirty;
            let mut fuller = domain;
            (fuller.dirty_pages, fuller.wb_dirty_pages) = (dirty + more, wb_dirty + wb_more);
            for mode in [LimitMode::Shared, LimitMode::Strict] {
                let (before, after) = (position_ratio(&domain, mode, avg), position_ratio(&fuller, mode, avg));
                prop_assert!(after <= before, "{before}, then {after}: {mode:?}");
            }
        }
    }
}

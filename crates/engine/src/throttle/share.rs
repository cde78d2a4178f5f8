//! A wb's share of a domain's limits, in proportion to its share of recent completions.
//!
//! A fast device may therefore have more dirty pages than a slow one, and each drains in about the same time. An idle
//! device has no completions and would never get a share, so it may always use a part of the headroom.
//!
//! # Kernel counterpart
//! `__wb_calc_thresh`, `wb_dirty_limits`. Differs: `min_ratio` is 0 and `max_ratio` 100 % for all.

use super::proportions::Fraction;
use super::sample::LimitMode;
use super::to_u64;

/// An idle device may start with 1/`IDLE_PART` of the headroom.
const IDLE_PART: u64 = 8;
/// The same in strict mode, where the wb's own limit binds and it cannot grow into the headroom of others.
const IDLE_PART_STRICT: u64 = 100;

/// A wb's share of its domain's thresholds, in pages.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct WbShare {
    pub(crate) thresh_pages: u64,
    pub(crate) background_pages: u64,
}

impl WbShare {
    /// The share of a wb with `fraction` of the completions, while `dirty_pages` of the domain are dirty.
    pub(super) fn of(thresholds: super::Thresholds, dirty_pages: u64, fraction: Fraction, mode: LimitMode) -> Self {
        let thresh_pages = wb_part(thresholds.thresh_pages, dirty_pages, fraction, mode);
        let background = u128::from(thresh_pages) * u128::from(thresholds.background_pages)
            / u128::from(thresholds.thresh_pages.max(1));
        Self { thresh_pages, background_pages: to_u64(background) }
    }
}

/// The share of the level `thresh_pages`.
pub(super) fn wb_part(thresh_pages: u64, dirty_pages: u64, fraction: Fraction, mode: LimitMode) -> u64 {
    let part = match mode {
        LimitMode::Shared => IDLE_PART,
        LimitMode::Strict => IDLE_PART_STRICT,
    };
    let start = thresh_pages.saturating_sub(dirty_pages) / part;
    fraction.of(thresh_pages).max(start)
}

/// Whether a wb's dirty pages must be summed exactly, because the counter's error, `stat_error_pages`, is no longer
/// small compared with its share.
pub(crate) fn needs_exact_sum(wb_thresh_pages: u64, stat_error_pages: u64) -> bool {
    wb_thresh_pages < stat_error_pages.saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use super::super::thresholds::Thresholds;
    use super::*;

    const LEVELS: Thresholds = Thresholds { thresh_pages: 10_000, background_pages: 5000 };

    fn share(dirty_pages: u64, num: u64, mode: LimitMode) -> (u64, u64) {
        let share = WbShare::of(LEVELS, dirty_pages, Fraction::new(num, 1000), mode);
        (share.thresh_pages, share.background_pages)
    }

    #[test]
    fn completions_decide() {
        assert_eq!(share(10_000, 1000, LimitMode::Shared), (10_000, 5000));
        assert_eq!(share(10_000, 333, LimitMode::Shared), (3330, 1665));
        assert_eq!(share(u64::MAX, 0, LimitMode::Shared), (0, 0));
    }

    #[test]
    fn an_idle_device_may_start() {
        assert_eq!(share(2000, 0, LimitMode::Shared), (1000, 500));
        assert_eq!(share(2000, 0, LimitMode::Strict), (80, 40));
        assert_eq!(share(2000, 500, LimitMode::Shared), (5000, 2500), "a wb with a share needs no starting part");
    }

    #[test]
    fn limits_of_no_page_and_one_page_are_legal() {
        for thresh_pages in [0, 1] {
            let levels = Thresholds { thresh_pages, background_pages: 0 };
            let share = WbShare::of(levels, 0, Fraction::new(1, 1), LimitMode::Strict);
            assert_eq!(share, WbShare { thresh_pages, background_pages: 0 });
        }
    }

    #[test]
    fn small_shares_are_counted_exactly() {
        assert!(needs_exact_sum(191, 96));
        assert!(!needs_exact_sum(192, 96));
        assert!(needs_exact_sum(u64::MAX - 1, u64::MAX));
    }
}

//! The levels of dirty pages in a domain at which behaviour changes.
//!
//! ```text
//!  0 ---- background ---- freerun ---- setpoint ---- limit
//!              |             |             |            '- all writers stop
//!              |             |             '- writers are held to the device's rate
//!              |             '- writers are slowed down above this
//!              '- the flusher starts
//! ```
//!
//! # Kernel counterpart
//! `domain_dirty_limits`, `dirty_freerun_ceiling`. Differs: a tenant's limit is a number of pages, not a
//! fraction of the available ones.

use crate::tunables::Tunables;

use super::to_u64;

/// Ratios are rounded down to multiples of 1/`RATIO_UNITS`, as in the reference.
const RATIO_UNITS: u128 = 4096;

/// Thresholds are capped here, so that the product of two fits.
const PAGES_MAX: u64 = u32::MAX as u64;

/// Percentages of the available pages; values above 100 count as 100.
#[derive(Copy, Clone, Debug)]
pub(crate) struct DirtyRatios {
    /// Where writers are stopped (`dirty_ratio`).
    pub(crate) dirty_percent: u32,
    /// Where the flusher starts (`dirty_background_ratio`).
    pub(crate) background_percent: u32,
}

impl DirtyRatios {
    pub(crate) fn of(tunables: &Tunables) -> Self {
        Self { dirty_percent: tunables.dirty_percent, background_percent: tunables.dirty_background_percent }
    }
}

/// The two basic levels of dirty pages, from which the others follow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Thresholds {
    /// Writers are stopped above it, unless the domain's limit is still falling towards it.
    pub(crate) thresh_pages: u64,
    /// The flusher starts unasked above it. Less than `thresh_pages`, unless both are 0.
    pub(crate) background_pages: u64,
}

impl Thresholds {
    /// Fractions of `available_pages`, which are the free pages and the clean ones that can be dropped.
    pub(crate) fn of_available(available_pages: u64, ratios: DirtyRatios) -> Self {
        let part = |percent: u32| {
            let units = u128::from(percent.min(100)) * RATIO_UNITS / 100;
            to_u64(units * u128::from(available_pages) / RATIO_UNITS)
        };
        Self::new(part(ratios.dirty_percent), part(ratios.background_percent))
    }

    /// Levels for a configured limit. The background level is the same fraction of the limit as `background_percent` is
    /// of `dirty_percent`.
    pub(crate) fn of_limit(limit_pages: u64, ratios: DirtyRatios) -> Self {
        let background = u128::from(limit_pages) * u128::from(ratios.background_percent.min(100))
            / u128::from(ratios.dirty_percent.clamp(1, 100));
        Self::new(limit_pages, to_u64(background))
    }

    fn new(thresh_pages: u64, background_pages: u64) -> Self {
        let thresh_pages = thresh_pages.min(PAGES_MAX);
        let background_pages = if background_pages >= thresh_pages { thresh_pages / 2 } else { background_pages };
        Self { thresh_pages, background_pages }
    }

    /// Writers are not slowed down up to this level.
    pub(crate) fn freerun(self) -> u64 {
        freerun(self.thresh_pages, self.background_pages)
    }

    /// The level at which the number of dirty pages should settle, under a limit of `limit_pages`.
    pub(crate) fn setpoint(self, limit_pages: u64) -> u64 {
        freerun(self.freerun(), limit_pages)
    }
}

/// The middle of two levels.
pub(super) fn freerun(thresh_pages: u64, background_pages: u64) -> u64 {
    thresh_pages.midpoint(background_pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: DirtyRatios = DirtyRatios { dirty_percent: 20, background_percent: 10 };

    #[test]
    fn the_worked_example_comes_out() {
        let levels = Thresholds::of_available(1_000_000, DEFAULT);
        assert_eq!(levels, Thresholds { thresh_pages: 199_951, background_pages: 99_853 });
        assert_eq!(levels.freerun(), 149_902);
        assert_eq!(levels.setpoint(levels.thresh_pages), 174_926);
    }

    #[test]
    fn a_limit_keeps_the_distance_of_the_ratios() {
        let ratios = DirtyRatios { dirty_percent: 40, background_percent: 10 };
        let levels = Thresholds::of_limit(16_384, ratios);
        assert_eq!(levels, Thresholds { thresh_pages: 16_384, background_pages: 4096 });
        assert_eq!(levels.freerun(), 10_240);
    }

    #[test]
    fn background_at_or_above_the_threshold_is_half_of_it() {
        for (dirty_percent, background_percent) in [(10, 10), (10, 90), (0, 100), (500, 500)] {
            let ratios = DirtyRatios { dirty_percent, background_percent };
            for levels in [Thresholds::of_available(4096, ratios), Thresholds::of_limit(4096, ratios)] {
                assert_eq!(levels.background_pages, levels.thresh_pages / 2, "{ratios:?}");
            }
        }
    }

    #[test]
    fn the_smallest_and_largest_limits_are_legal() {
        assert_eq!(Thresholds::of_limit(0, DEFAULT), Thresholds { thresh_pages: 0, background_pages: 0 });
        assert_eq!(Thresholds::of_limit(1, DEFAULT), Thresholds { thresh_pages: 1, background_pages: 0 });
        assert_eq!(Thresholds::of_limit(u64::MAX, DEFAULT).thresh_pages, PAGES_MAX);
        assert_eq!(Thresholds::of_available(u64::MAX, DEFAULT).thresh_pages, PAGES_MAX);
    }
}

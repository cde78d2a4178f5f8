//! A snapshot of one dirty domain, from the point of view of one wb.
//!
//! # Kernel counterpart
//! `struct dirty_throttle_control`.

use super::share::WbShare;
use super::thresholds::{Thresholds, freerun};

/// Which limits apply.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum LimitMode {
    /// The domain's: a wb may exceed its share while others use less.
    Shared,
    /// Also each wb's own, even while the domain has headroom (`BDI_CAP_STRICTLIMIT`).
    Strict,
}

/// The domain that a number refers to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum DomainKind {
    /// The whole arena.
    Global,
    /// The writer's tenant, or one above it.
    Memcg,
}

/// The most tenants, one above the other, whose limits slow a writer down. Beyond them, a limit only refuses writes.
pub(crate) const LEVELS_MAX: usize = 8;

/// The counts and limits of one domain, all in pages.
#[derive(Copy, Clone, Debug)]
pub(crate) struct DomainSample {
    pub(crate) thresholds: Thresholds,
    /// Dirty pages of the domain that are not under write-back.
    pub(crate) dirty_pages: u64,
    /// Pages of the domain that are under write-back, or written and not yet clean.
    pub(crate) writeback_pages: u64,
    /// This and the next come from [`WbDomain::wb_limits`](super::WbDomain::wb_limits).
    pub(crate) dirty_limit_pages: u64,
    pub(crate) share: WbShare,
    /// Dirty and write-back pages of the wb; exact if [`needs_exact_sum`](super::needs_exact_sum).
    pub(crate) wb_dirty_pages: u64,
}

impl DomainSample {
    /// The pages that count against the limit, including those under write-back, which still use frames.
    pub(super) fn held_pages(&self) -> u64 {
        self.dirty_pages.saturating_add(self.writeback_pages)
    }

    /// All writers stop at this number. It is above the threshold only while the limit is falling.
    pub(super) fn limit_pages(&self) -> u64 {
        self.thresholds.thresh_pages.max(self.dirty_limit_pages)
    }

    pub(super) fn setpoint_pages(&self) -> u64 {
        self.thresholds.setpoint(self.limit_pages())
    }

    /// The middle of the wb's two levels: its freerun ceiling, and its setpoint in strict mode.
    pub(super) fn wb_middle_pages(&self) -> u64 {
        freerun(self.share.thresh_pages, self.share.background_pages)
    }

    /// Pages left up to the threshold while writers are not throttled; `None` if they must be.
    pub(super) fn freerun_headroom(&self, mode: LimitMode) -> Option<u64> {
        let (dirty, ceiling, thresh) = match mode {
            LimitMode::Shared => (self.held_pages(), self.thresholds.freerun(), self.thresholds.thresh_pages),
            LimitMode::Strict => (self.wb_dirty_pages, self.wb_middle_pages(), self.share.thresh_pages),
        };
        (dirty <= ceiling).then(|| thresh.saturating_sub(dirty))
    }

    /// Whether fewer pages than the setpoint are dirty.
    pub(super) fn is_below_setpoint(&self, mode: LimitMode) -> bool {
        match mode {
            LimitMode::Shared => self.held_pages() < self.setpoint_pages(),
            LimitMode::Strict => self.wb_dirty_pages < self.wb_middle_pages(),
        }
    }

    /// Whether the wb is over its share of a domain that is itself over its threshold; its writers then poll more
    /// often.
    pub(super) fn is_exceeded(&self, mode: LimitMode) -> bool {
        let domain_is_over = match mode {
            LimitMode::Shared => self.held_pages() > self.thresholds.thresh_pages,
            LimitMode::Strict => true,
        };
        domain_is_over && self.wb_dirty_pages > self.share.thresh_pages
    }

    pub(super) fn is_over_background(&self) -> bool {
        self.dirty_pages > self.thresholds.background_pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wb at `wb_dirty_pages` of its share of 2000, in a domain at `held_pages` of 20 000.
    fn sample(held_pages: u64, wb_dirty_pages: u64) -> DomainSample {
        DomainSample {
            thresholds: Thresholds { thresh_pages: 20_000, background_pages: 10_000 },
            dirty_pages: held_pages / 2,
            writeback_pages: held_pages - held_pages / 2,
            dirty_limit_pages: 22_000,
            share: WbShare { thresh_pages: 2000, background_pages: 1000 },
            wb_dirty_pages,
        }
    }

    #[test]
    fn each_mode_has_its_levels() {
        let headroom = |held, wb_dirty, mode| sample(held, wb_dirty).freerun_headroom(mode);
        assert_eq!(headroom(15_000, 9000, LimitMode::Shared), Some(5000));
        assert_eq!(headroom(15_001, 0, LimitMode::Shared), None);
        assert_eq!(headroom(30_000, 1500, LimitMode::Strict), Some(500));
        assert_eq!(headroom(0, 1501, LimitMode::Strict), None);

        let below = |held, wb_dirty, mode| sample(held, wb_dirty).is_below_setpoint(mode);
        assert!(below(18_499, 9000, LimitMode::Shared) && !below(18_500, 0, LimitMode::Shared));
        assert!(below(30_000, 1499, LimitMode::Strict) && !below(0, 1500, LimitMode::Strict));
    }

    #[test]
    fn the_limit_in_force_is_the_larger_one() {
        let mut sample = sample(0, 0);
        assert_eq!(sample.limit_pages(), 22_000);
        sample.dirty_limit_pages = 0;
        assert_eq!(sample.limit_pages(), 20_000);
    }
}
